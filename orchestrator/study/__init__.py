"""A study as it runs: what is next (pure), its journal, the loop that drives one run after the other."""
