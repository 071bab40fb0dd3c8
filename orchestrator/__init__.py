"""Decides what should run where, and makes it so: the command line, the pure core, the Ray controller."""
