"""Plans, launches and controls runs: the command line, the pure core and the Ray controller."""
