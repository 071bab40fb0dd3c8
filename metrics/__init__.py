"""Measurements: record types, the run store, and pure functions that compute figures from records."""
