"""A user's first steps with an experiment: its files from a template, and a trial in one process."""
