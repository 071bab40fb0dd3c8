"""Checkpoints of a run as its owner uses them: find, pull, evaluate."""
