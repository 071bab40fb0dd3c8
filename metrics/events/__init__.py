"""Events within a run: joins and evaluations."""
