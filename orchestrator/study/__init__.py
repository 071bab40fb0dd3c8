"""Run a study: a pure core that decides what is next, its journal, and the loop that runs one job after the other."""
