"""Training loop, batches, models, and accounting of steps and epochs."""
