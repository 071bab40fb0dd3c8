"""Epochs of peers and of the swarm: throughput, granularity, scaling and restarts."""
