"""Run the monitor: `python -m experiments.monitor CONFIG`."""

import sys

from experiments.monitor.main import main

if len(sys.argv) != 2:
    print("usage: python -m experiments.monitor CONFIG", file=sys.stderr)  # noqa: T201
    sys.exit(2)
sys.exit(main(sys.argv[1]))
