"""Chooses the samples whose first operations should run next to the storage (Wang et al., HotStorage 2024). Pure."""
