"""Rules and cost basis of the paper, kept separate from our own."""
