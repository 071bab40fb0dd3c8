"""`orch study`: its commands, and how a study begins and launches its runs."""
