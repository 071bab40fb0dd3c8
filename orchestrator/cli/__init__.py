"""The `orch` command line; stdout is data, stderr is progress."""
