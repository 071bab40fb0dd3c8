"""Rules and cost basis of the published paper, kept apart from our own."""
