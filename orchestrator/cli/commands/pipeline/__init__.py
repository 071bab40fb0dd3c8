"""The commands of `orch pipeline`."""
