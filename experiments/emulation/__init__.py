"""Scales of an emulated run: time, bytes, ballast, TCP windows and expected host load."""
