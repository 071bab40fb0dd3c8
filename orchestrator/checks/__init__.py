"""What this machine and its accounts allow, found out without changing anything (`orch check`, before a launch)."""
