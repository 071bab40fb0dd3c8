"""Simulate the real controller on a virtual clock, with a simulated cloud, a model of the peers and seeded faults."""
