"""Declared input pipelines: the operations that turn a stored sample into the arrays that a task trains on."""
