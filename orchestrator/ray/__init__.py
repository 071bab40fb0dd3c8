"""The private Ray session that orch's controllers run in, and the process that hosts it."""
