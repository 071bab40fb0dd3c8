"""Measure how `orch replay` scales with its logs: 10^4, 10^5 and 10^6 rows, each in a separate process.

Generates logs of four VMs and a monitor in the paper's format (two interleaved loggers, a step every 0.9 s, an
averaging round every 230 s), replays them, and prints rows, seconds, rows per second and peak memory. Exits with 1
if the last size takes more than 10 s or 1 GB, or if time grows faster than the number of rows.

    python -m benchmarks.replay_scale --rows 10000 100000 1000000
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

_VMS = 4
_STEP_S, _SYNC_S, _EPOCH_STEPS, _BATCH = 0.9, 8.0, 250, 32
_EPOCH_S = _STEP_S * _EPOCH_STEPS + _SYNC_S
_BEGAN_S = 1_680_000_000.0
_ROWS_PER_S = 1 + _EPOCH_STEPS / _EPOCH_S  # per VM: one of the network card, one per step
_LIMIT_S, _LIMIT_BYTES = 10.0, 1e9


class Measured(NamedTuple):
    """The result of a replay: rows of the logs, wall seconds, peak memory, epochs found."""

    rows: int
    seconds: float
    peak_bytes: int
    epochs: int


def vm_log(seconds: float, random: np.random.Generator) -> pd.DataFrame:
    """Generate a VM's rows in chronological order; cells that a logger does not write are empty."""
    count = int(seconds / _EPOCH_S) * _EPOCH_STEPS
    sync = np.arange(1, count + 1) % _EPOCH_STEPS == 0
    ended = np.cumsum(np.where(sync, _STEP_S + _SYNC_S, _STEP_S)) + 10.0
    steps = pd.DataFrame({
        "at": ended,
        "01_general/locally_processed_samples": _BATCH * np.arange(1.0, count + 1),
        "01_general/step": np.arange(count, dtype=float),
        "01_general/minibatch_loss": random.uniform(5, 7, count),
        "02_timing/dataload_time_s": random.uniform(0.004, 0.006, count),
        "02_timing/dataload_cuda_move_time_s": random.uniform(0.006, 0.007, count),
        "02_timing/forward_time_s": random.uniform(0.026, 0.028, count),
        "02_timing/loss_calc_time_s": random.uniform(0.0007, 0.0009, count),
        "02_timing/backward_time_s": random.uniform(0.39, 0.40, count),
        "02_timing/opt_step_time_s": random.uniform(0.11, 0.12, count) + _SYNC_S * sync,
        "03_hivemind/global_epoch": np.cumsum(sync).astype(float),
        "03_hivemind/num_peers": np.full(count, float(_VMS)),
    })  # fmt: skip
    at = np.arange(0.0, seconds)
    averaging = (at - 10.0) % _EPOCH_S > _EPOCH_S - _SYNC_S
    card = pd.DataFrame({
        "at": at,
        "bandwidth/net_sent_sys_bandwidth_Mbits": np.where(averaging, 600.0, 0.2) * random.uniform(0.9, 1.1, len(at)),
        "bandwidth/net_recv_sys_bandwidth_Mbits": np.where(averaging, 600.0, 35.0) * random.uniform(0.9, 1.1, len(at)),
        "memory/used_memory_sys_MB": random.uniform(6700, 6800, len(at)),
        "cpu/load/avg_sys_load_one_min_percent": random.uniform(9, 11, len(at)),
    })  # fmt: skip
    rows = pd.concat([steps, card]).sort_values("at", kind="stable", ignore_index=True)
    clock = np.floor(rows.pop("at"))
    rows.insert(0, "_step", np.arange(len(rows)))
    rows.insert(1, "_runtime", clock.astype(int))
    rows.insert(2, "_timestamp", clock + _BEGAN_S)
    return rows


def monitor_log(seconds: float) -> pd.DataFrame:
    """Generate the monitor's scrapes, one per second, with a rate in the rows in which an epoch ended."""
    at = np.arange(0.0, seconds)
    epoch = np.clip(np.floor((at - 10.0) / _EPOCH_S), 0, int(seconds / _EPOCH_S))
    ended = np.diff(epoch, prepend=0.0) > 0
    per_epoch = _VMS * _BATCH * _EPOCH_STEPS
    took = np.full(len(at), _EPOCH_S)
    return pd.DataFrame({
        "_step": np.arange(len(at)),
        "_runtime": at.astype(int),
        "_timestamp": at + _BEGAN_S,
        "03_hivemind/global_epoch": epoch,
        "03_hivemind/num_peers": float(_VMS),
        "03_hivemind/global_samples_accumulated": np.floor((at - 10.0) % _EPOCH_S / _EPOCH_S * per_epoch),
        "03_hivemind/actual_total_samples_per_second": per_epoch / _EPOCH_S,
        "03_hivemind/eta_next_epoch_s": 10.0,
        "03_hivemind/epoch_s": np.where(ended, took, np.nan),
        "03_hivemind/per_epoch_training_samples": np.where(ended, float(per_epoch), np.nan),
        "03_hivemind/epoch_based_sps": np.where(ended, per_epoch / _EPOCH_S, np.nan),
    })  # fmt: skip


def write_logs(folder: Path, rows: int) -> int:
    """Write logs of about `rows` rows and return their exact number."""
    seconds = rows / (_VMS * _ROWS_PER_S + 1)
    random = np.random.default_rng(4)
    total = 0
    for n in range(_VMS):
        frame = vm_log(seconds, random)
        frame.to_csv(folder / f"hivemind-1-gc-us-t4-{n + 1}.csv", index=False)
        total += len(frame)
    watched = monitor_log(seconds)
    watched.to_csv(folder / "hivemind-1-vm-monitor.csv", index=False)
    return total + len(watched)


def measure(rows: int) -> Measured:
    """Replay logs of about `rows` rows in a new process. Raises RuntimeError if it fails."""
    with tempfile.TemporaryDirectory(prefix="orch-scale-") as name:
        folder = Path(name)
        written = write_logs(folder, rows)
        with (folder / "out.json").open("wb") as out, (folder / "err.txt").open("wb") as err:
            began = time.perf_counter()
            child = subprocess.Popen(
                [sys.executable, "-c", "from orchestrator.cli.app import main; raise SystemExit(main())",
                 "replay", str(folder), "-o", "json"], stdout=out, stderr=err,
            )  # fmt: skip
            _, status, usage = os.wait4(child.pid, 0)
            seconds = time.perf_counter() - began
            child.returncode = os.waitstatus_to_exitcode(status)
        if child.returncode != 0:
            raise RuntimeError(
                f"orch replay exited with {child.returncode}: {(folder / 'err.txt').read_text()}"
            )
        (row,) = json.loads((folder / "out.json").read_text())["runs"]
    unit = 1 if sys.platform == "darwin" else 1024  # unit of ru_maxrss
    return Measured(written, seconds, usage.ru_maxrss * unit, row["n_epochs"])


def main() -> int:
    """Measure each size; return 0 if the largest is within the limits and time grows linearly."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, nargs="+", default=[10**4, 10**5, 10**6])
    done: list[Measured] = []
    print("     rows  seconds    rows/s  peak MB  epochs")
    for rows in parser.parse_args().rows:
        found = measure(rows)
        done.append(found)
        print(
            f"{found.rows:9d}  {found.seconds:7.2f}  {found.rows / found.seconds:8.0f}  "
            f"{found.peak_bytes / 1e6:7.0f}  {found.epochs:6d}"
        )
    last = done[-1]
    good = last.seconds <= _LIMIT_S and last.peak_bytes <= _LIMIT_BYTES
    print(
        f"{last.rows} rows within {_LIMIT_S:.0f} s and {_LIMIT_BYTES / 1e9:.0f} GB: {'yes' if good else 'NO'}"
    )
    if len(done) > 1:
        # Startup time is the same for all, so growth is measured between sizes.
        first, second = done[-2], last
        times = (second.seconds / first.seconds) / (second.rows / first.rows)
        linear = times <= 1.3
        print(
            f"time grows {times:.2f} times as fast as the rows: {'linear or less' if linear else 'NOT linear'}"
        )
        good = good and linear
    return 0 if good else 1


if __name__ == "__main__":
    raise SystemExit(main())
