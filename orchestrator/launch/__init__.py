"""Prepares runs from experiments: checks, plans, launch requests, keys."""
