"""Measures the emulated network from inside, for `orch net check`."""
