"""Transfer of model and optimizer state to joining and late peers."""
