"""A peer with a wrong machine clock that is set during training: `peer_off_clock.py CONFIG AHEAD_S SET_BY_S FLAG`.

The clock is ahead by AHEAD_S, and by SET_BY_S more once the file FLAG exists.
"""

from __future__ import annotations

import os
import sys
import time

if __name__ == "__main__":
    config, ahead_s, set_by_s, flag = sys.argv[1], float(sys.argv[2]), float(sys.argv[3]), sys.argv[4]
    right_s = time.time

    def wrong_s() -> float:
        return right_s() + ahead_s + (set_by_s if os.path.exists(flag) else 0.0)

    time.time = wrong_s  # before Hivemind imports it
    from experiments.peer.main import main

    code = main(config)
    sys.stdout.flush()
    os._exit(code)  # as `python -m experiments.peer`
