"""Tasks: a model, its loss and its evaluation on what an input pipeline delivers."""
