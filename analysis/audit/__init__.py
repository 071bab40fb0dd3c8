"""`orch audit`: what is doubtful in somebody's numbers, as findings with evidence."""
