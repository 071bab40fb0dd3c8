"""The report on an input: trace, map, profile and plan of a pipeline on one page."""
