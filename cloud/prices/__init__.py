"""Dated price books as data files with sources; a missing price is unknown, never 0."""
