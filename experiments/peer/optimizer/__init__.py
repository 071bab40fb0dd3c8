"""Optimizers built on hivemind.Optimizer: synchronous, overlapped, single peer."""
