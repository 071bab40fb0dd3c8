"""`python -m experiments.monitor CONFIG`: the monitor as a program of its own."""

import sys

from experiments.monitor.main import main

if len(sys.argv) != 2:
    print("usage: python -m experiments.monitor CONFIG", file=sys.stderr)  # noqa: T201
    sys.exit(2)
sys.exit(main(sys.argv[1]))
