"""Ray: the process that holds it and the session."""
