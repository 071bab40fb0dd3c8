"""Data sets that any machine can make, and the reading of a user's own files, as records of shards."""
