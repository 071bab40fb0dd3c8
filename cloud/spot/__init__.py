"""Histories of spot capacity: a pure model of one, and readers of published formats."""
