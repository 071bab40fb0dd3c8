"""Experiments: the schema of the experiment file, the library, and the peer and monitor programs."""
