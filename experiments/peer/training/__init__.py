"""Training loop, batches, models, and the accounting of steps and epochs."""
