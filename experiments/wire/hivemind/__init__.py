"""Patches of Hivemind 1.1.12. docs/hivemind.md describes each."""
