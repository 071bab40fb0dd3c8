"""`orch audit`: checks a run's numbers and reports doubtful ones as findings with evidence."""
