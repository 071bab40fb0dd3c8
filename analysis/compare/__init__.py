"""Runs compared with each other and with the paper: rows, options, expectations, accuracy."""
