"""Run store: one SQLite file per run, and its schema."""
