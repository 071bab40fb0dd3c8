"""Dated price books as data files with sources; an absent price is unknown, never 0."""
