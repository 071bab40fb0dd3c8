"""Run one peer in the foreground: `python -m experiments.peer CONFIG`."""

from __future__ import annotations

import os
import sys

from experiments.peer.main import main

if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.stderr.write("usage: python -m experiments.peer CONFIG.json\n")
        sys.exit(2)
    code = main(sys.argv[1])
    sys.stdout.flush()
    os._exit(code)  # skips exit handlers: Hivemind's would wait for processes that no longer exist
