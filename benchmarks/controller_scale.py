"""Measure how the controller scales: 8, 100, 1,000 and 10,000 simulated peers, each in a separate process.

Simulates a day with one tick per minute, in which spot VMs are preempted (each once in 20 hours, and in storms) and
replaced. Prints for each size the VMs rented, ticks, CPU seconds, CPU time per tick and peak memory, and the CPU time
of the controller's core (`orchestrator.core.machine.advance` and the detection of missing and silent peers). Exits
with 1 if a day of the largest size takes more than 60 s, or if the time per peer more than doubles from 1,000 peers on.

    python -m benchmarks.controller_scale --peers 8 100 1000 10000
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from dataclasses import replace
from itertools import pairwise
from typing import Any

_LIMIT_S = 60.0
_GROWTH = 2.0


def measure(peers: int, days: float) -> dict[str, Any]:
    """Run one simulation in this process."""
    from orchestrator.controller import tick as loop
    from orchestrator.simulation.driver import simulate
    from orchestrator.simulation.scenario import scenario

    core_s = 0.0

    def timed(function: Any) -> Any:
        def call(*arguments: Any) -> Any:
            nonlocal core_s
            began_s = time.process_time()
            try:
                return function(*arguments)
            finally:
                core_s += time.process_time() - began_s

        return call

    for name in ("advance", "missing", "silent"):
        setattr(loop, name, timed(getattr(loop, name)))
    made = scenario(7, days=days, peers=peers, faults=("preemption", "storm"))
    spec = replace(made.spec, budget_usd=None, max_usd_per_h=None)
    places = tuple(replace(place, preempt_per_h=0.05) for place in made.places)
    made = replace(made, spec=spec, places=places, peers=replace(made.peers, max_epochs=0), busy_tick_s=60.0)
    began_s, wall_s = time.process_time(), time.perf_counter()
    outcome = simulate(made, check=False)
    return {
        "peers": peers,
        "vms": outcome.vms,
        "ticks": outcome.rounds,
        "core_s": core_s,
        "cpu_s": time.process_time() - began_s,
        "wall_s": time.perf_counter() - wall_s,
        "training_share": outcome.training_share,
    }


def in_a_process(peers: int, days: float) -> dict[str, Any]:
    """Run `measure` in a new process and add its peak memory. Raises RuntimeError if it fails."""
    command = [sys.executable, "-m", "benchmarks.controller_scale", "--one", str(peers), "--days", str(days)]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    output = child.stdout.read()
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode != 0:
        raise RuntimeError(f"the simulation of {peers} peers ended with {child.returncode}")
    unit = 1 if sys.platform == "darwin" else 1024  # unit of ru_maxrss
    return {**json.loads(output), "peak_bytes": usage.ru_maxrss * unit}


def main() -> int:
    """Measure each size; return 0 if the largest is within the limit and time grows linearly."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--peers", type=int, nargs="+", default=[8, 100, 1000, 10_000])
    parser.add_argument("--days", type=float, default=1.0)
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        print(json.dumps(measure(arguments.one, arguments.days)))
        return 0
    done: list[dict[str, Any]] = []
    print(" peers     VMs  ticks   cpu s  ticks/s  core s  core ms/tick  peak MB  training")
    for peers in arguments.peers:
        row = in_a_process(peers, arguments.days)
        done.append(row)
        print(
            f"{peers:6d}  {row['vms']:6d}  {row['ticks']:5d}  {row['cpu_s']:6.2f}  {row['ticks'] / row['cpu_s']:7.0f}  "
            f"{row['core_s']:6.2f}  {1000 * row['core_s'] / row['ticks']:12.2f}  {row['peak_bytes'] / 1e6:7.0f}  "
            f"{row['training_share']:8.1%}",
            flush=True,
        )
    last = done[-1]
    good = last["cpu_s"] * (1.0 / arguments.days) <= _LIMIT_S
    print(f"a day of {last['peers']} peers within {_LIMIT_S:.0f} s: {'yes' if good else 'NO'}")
    large = [row for row in done if row["peers"] >= 1000]
    for first, second in pairwise(large):
        growth = (second["cpu_s"] / second["peers"]) / (first["cpu_s"] / first["peers"])
        print(f"time per peer, {first['peers']} to {second['peers']}: x {growth:.2f}")
        good = good and growth <= _GROWTH
    return 0 if good else 1


if __name__ == "__main__":
    raise SystemExit(main())
