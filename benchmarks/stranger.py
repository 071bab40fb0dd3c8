"""Measure the effect of outsiders on a closed swarm, by alternating quiet periods and periods under attack.

Two small peers and the monitor run on loopback. In every second period three foreign Hivemind peers call every RPC
they know, run a hivemind.Optimizer with the run's name, and flood both peers with calls. They run at the lowest
priority, so that only the peers' own work for them is measured. Prints the seconds per epoch with n and a 95 %
t interval, dropped rounds, and what the outsiders obtained. Exits with 1 if they obtained anything.

    python -m benchmarks.stranger --seconds 60 --rounds 2
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from cloud.storage.digits import write_shards

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "experiments"))
from closed_swarm import ClosedSwarm, Stranger
from peer_rig import serve_folder

_T95_MANY = 1.98
_ATTACKS = ["calls", "join", "flood"]
_LOADING_S = 15.0  # for the outsiders to load their libraries


def interval(values: list[float]) -> str:
    """Format the mean with its 95 % interval and n."""
    mean = statistics.fmean(values)
    half = _T95_MANY * statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else math.nan
    return f"{mean:.3f} +- {half:.3f} s (n = {len(values)})"


def measure(swarm: ClosedSwarm, seconds: float, rounds: int, attacks: list[str]) -> bool:
    """Run and print the periods. Returns whether the outsiders obtained and broke nothing."""
    walls: dict[str, list[float]] = {"quiet": [], "attacked": []}
    rates: dict[str, list[float]] = {"quiet": [], "attacked": []}
    broken: list[dict[str, Any]] = []
    got: list[dict[str, Any]] = []
    for turn in range(2 * rounds):
        kind = "attacked" if turn % 2 else "quiet"
        strangers = []
        if kind == "attacked":
            strangers = [Stranger(swarm, what, seconds) for what in attacks]
            time.sleep(_LOADING_S)
        try:
            began_s = time.time()
            for stranger in strangers:
                stranger.go()
            time.sleep(seconds)
            ended_s = time.time()
            got += [stranger.result(60.0) for stranger in strangers]
        finally:
            for stranger in strangers:
                stranger.close()
        time.sleep(6.0)  # for the monitor to read the last epochs
        epochs = [e for e in swarm.epochs() if began_s <= e["began_s"] and e["ended_s"] <= ended_s]
        walls[kind] += [e["ended_s"] - e["began_s"] for e in epochs]
        rates[kind].append(len(epochs) / len(swarm.peers) / (ended_s - began_s))
        broken += [e for e in epochs if e["dropped"] or e["group_size"] != len(swarm.peers)]
    for kind, values in walls.items():
        shown = ", ".join(f"{rate:.3f}" for rate in rates[kind])
        print(f"{kind:>9}: {interval(values)} per epoch; epochs/s by period: {shown}")
    print(
        f"ratio of the means, attacked / quiet: {statistics.fmean(walls['attacked']) / statistics.fmean(walls['quiet']):.3f}"
    )
    print(f"incomplete rounds: {len(broken)}")
    for one in got:
        print(f"an outsider obtained: {json.dumps(one)}")
    for slot, peer in swarm.peers.items():
        print(f"{slot}: {'; '.join(peer.status()['warnings'])}")
    nothing = all(v in (None, 0) for one in got for k, v in one.items() if k != "made")
    return nothing and not broken and not swarm.rejected()


def main() -> int:
    """Parse the command line and run."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=60.0, help="length of each period")
    parser.add_argument("--rounds", type=int, default=2, help="pairs of periods")
    parser.add_argument(
        "--attacks", nargs="+", choices=_ATTACKS, default=_ATTACKS, help="attacks, one outsider each"
    )
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="stranger-") as folder:
        made = write_shards(Path(folder) / "shards", 4, samples_per_shard=256)
        with serve_folder(Path(folder) / "shards") as endpoint:
            shards = tuple(f"s3://bucket/{name}" for name in (*made.train, *made.heldout))
            swarm = ClosedSwarm(Path(folder) / "swarm", endpoint, shards, **ClosedSwarm.QUICK)
            try:
                swarm.gather("a", "b")
                return 0 if measure(swarm, args.seconds, args.rounds, args.attacks) else 1
            finally:
                swarm.close()


if __name__ == "__main__":
    sys.exit(main())
