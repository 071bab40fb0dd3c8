"""Experiment schema: the models, their field types, and what follows from one file alone."""
