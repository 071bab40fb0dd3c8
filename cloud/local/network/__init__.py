"""Emulated network: namespaces, one user-space switch, and the model of delay and bandwidth."""
