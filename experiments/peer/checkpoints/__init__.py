"""Checkpoints of a peer: when it writes one, how it is stored in the background, and how a lost swarm goes on from one."""
