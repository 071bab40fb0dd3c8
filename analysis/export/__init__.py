"""A run taken out of orch: its records as files, its costs as FOCUS rows, and a provider's bill laid beside."""
