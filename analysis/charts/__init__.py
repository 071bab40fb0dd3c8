"""Figures as pure functions from rows to Matplotlib figures."""
