"""One module per command, one folder or module per group of commands."""
