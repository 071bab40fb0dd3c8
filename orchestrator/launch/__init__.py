"""From an experiment to a run that can be started: checks, plan, requests, keys."""
