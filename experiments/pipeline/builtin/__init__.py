"""Built-in input pipelines and their operations."""
