"""`orch data`: one module per command."""
