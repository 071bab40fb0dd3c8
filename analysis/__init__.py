"""What the numbers mean: the plan before a run, the report after it, the comparison with the study."""
