"""Read-only checks of this machine and its cloud accounts, for `orch check` and before a launch."""
