"""Which samples' first operations to run beside the storage (Wang et al., HotStorage 2024, and beyond). Pure."""
