"""The run store: one SQLite file per run, and its schema."""
