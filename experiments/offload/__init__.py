"""Offloading: a server next to the storage that runs the first operations of a pipeline, and the peers' reader of it."""
