"""Scales of an emulated run: time, bytes, ballast, TCP windows, expected host load."""
