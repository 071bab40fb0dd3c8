"""Exports of a run: its records as files, its costs as FOCUS rows, and the comparison with a provider's bill."""
