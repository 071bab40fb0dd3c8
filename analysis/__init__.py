"""Plans before a run, reports after it, audits, exports and comparisons with the paper."""
