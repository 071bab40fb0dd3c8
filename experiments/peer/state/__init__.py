"""Transfer of model and optimizer state to late peers."""
