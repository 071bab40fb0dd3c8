"""Pure functions from rows to Matplotlib figures."""
