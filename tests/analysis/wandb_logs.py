"""Synthetic logs in the paper's format: a monitor and n VMs with known epochs.

The VMs' two loggers write in turn, as in the real logs: network counters each second in rows of their own,
a step's timers in one row or in two. Clocks are cut to whole seconds.
"""

from __future__ import annotations

import csv
import gzip
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

BEE_HEADER = (
    "_step", "_runtime", "cpu/logical_core_count", "_timestamp", "bandwidth/net_sent_sys_bandwidth_Mbits",
    "bandwidth/net_recv_sys_bandwidth_Mbits", "02_timing/dataload_cuda_move_time_s", "03_hivemind/num_peers",
    "02_timing/loss_calc_time_s", "02_timing/forward_time_s", "02_timing/opt_step_time_s",
    "01_general/locally_processed_samples", "01_general/minibatch_loss", "02_timing/backward_time_s",
    "02_timing/step_time_s", "03_hivemind/global_epoch", "01_general/lr", "02_timing/dataload_time_s",
    "01_general/step",
)  # fmt: skip
MONITOR_HEADER = (
    "_step", "_runtime", "_timestamp", "03_hivemind/global_epoch", "03_hivemind/epoch_based_sps",
    "03_hivemind/per_epoch_training_samples", "03_hivemind/epoch_s", "03_hivemind/num_peers",
    "03_hivemind/global_samples_accumulated", "03_hivemind/actual_total_samples_per_second",
    "03_hivemind/eta_next_epoch_s", "03_hivemind/num_clients",
)  # fmt: skip
_EARLY = ("02_timing/dataload_cuda_move_time_s", "02_timing/forward_time_s", "02_timing/loss_calc_time_s")
_FP16 = 2


@dataclass(frozen=True)
class Swarm:
    """Parameters of the synthetic swarm. Times in seconds."""

    run_id: str = "hivemind-900"
    hosts: Sequence[str] = ("gc-us-t4-1", "gc-us-t4-2")
    epochs: int = 3
    steps: int = 40  # of each VM in an epoch
    batch: int = 32
    step_s: float = 0.9
    timed: float = 0.45  # share of a step that its timers claim
    local_opt_s: float = 0.02
    comm_s: float = 8.0
    parameters: int = 197_767_336
    overhead: float = 1.02  # of an averaging's bytes
    bytes_per_sample: int = 124_000
    startup_s: float = 25.0
    tail_s: float = 5.0
    seed: int = 0
    start_unix: int = 1_680_000_000
    gz: bool = False
    monitor: bool = True
    doubled: Sequence[str] = ()  # VMs whose counters count every byte twice
    idle: Sequence[str] = ()  # VMs that log their machine and train nothing
    fails: Mapping[str, int] = field(
        default_factory=dict
    )  # VM: it stops in the middle of this epoch (1: the first)
    late: Mapping[str, int] = field(default_factory=dict)  # VM: it joins after this epoch has ended
    first_epoch: int = 0  # the swarm's epoch when the logs begin

    @property
    def target_batch_size(self) -> int:
        """Samples of an epoch when all VMs train."""
        return len([h for h in self.hosts if h not in self.idle]) * self.batch * self.steps


@dataclass(frozen=True)
class Truth:
    """The truth, by (host, epoch): wall time between epoch ends, the last optimizer step, and bytes."""

    files: dict[str, Path]
    ended_s: dict[tuple[str, int], float]
    comm_s: dict[tuple[str, int], float]  # the whole synchronising optimizer step
    samples: dict[tuple[str, int], int]
    sent_bytes: dict[str, int]  # an averaging's, by host
    swarm_ended_s: dict[int, float]
    swarm_samples: dict[int, int]


def write_swarm(folder: Path, swarm: Swarm | None = None) -> Truth:
    """Write a monitor's log and one log per VM into `folder`; return the truth."""
    s = swarm or Swarm()
    rng = random.Random(s.seed)
    folder.mkdir(parents=True, exist_ok=True)
    truth = Truth({}, {}, {}, {}, {}, {}, {})
    rows: dict[str, list[tuple[float, dict[str, Any]]]] = {host: [] for host in s.hosts}
    nic: dict[str, list[tuple[float, float, float, float]]] = {
        host: [] for host in s.hosts
    }  # from, to, sent, received
    now = {host: s.startup_s + rng.random() for host in s.hosts}
    counts = dict.fromkeys(s.hosts, 0)
    steps_done = dict.fromkeys(s.hosts, 0)
    stopped: dict[str, float] = {}
    train_began = min(now.values())
    for number in range(s.first_epoch + 1, s.first_epoch + s.epochs + 1):
        there = [
            h for h in s.hosts
            if h not in s.idle and h not in stopped and s.late.get(h, s.first_epoch) < number
        ]  # fmt: skip
        failing = [h for h in there if s.fails.get(h) == number]
        averaging = [h for h in there if h not in failing]
        before_sync: dict[str, dict[str, float]] = {}
        began = {h: now[h] for h in there}
        for h in there:
            if s.late.get(h) == number - 1:
                now[h] = _download(
                    s,
                    rows[h],
                    nic[h],
                    now[h],
                    max(truth.swarm_ended_s.values()),
                    rng,
                    counts,
                    steps_done,
                    h,
                    number,
                )
            for k in range(s.steps // 2 if h in failing else s.steps):
                timers, wall = _timers(s, rng)
                last = k == s.steps - 1
                if last:
                    before_sync[h] = timers
                    now[h] += wall - timers["02_timing/opt_step_time_s"]
                    break
                now[h] += wall
                counts[h] += s.batch
                steps_done[h] += 1
                rows[h] += _step_rows(
                    s, now[h], timers, counts[h], steps_done[h], number - 1, len(averaging), rng
                )
        for h in failing:
            stopped[h] = now[h]
        if not averaging:
            break
        end = max(now[h] for h in averaging) + s.comm_s
        n = len(averaging)
        size = 2 * (n - 1) / n * s.parameters * _FP16 * s.overhead
        for h in averaging:
            ended = end + 0.05 * rng.random()
            opt = ended - now[h]
            timers = before_sync[h] | {"02_timing/opt_step_time_s": opt}
            nic[h].append((ended - min(s.comm_s, opt), ended, size, size))
            now[h] = ended
            counts[h] += s.batch
            steps_done[h] += 1
            rows[h] += _step_rows(s, ended, timers, counts[h], steps_done[h], number, n, rng)
            truth.ended_s[h, number] = s.start_unix + ended
            truth.comm_s[h, number] = opt
            truth.samples[h, number] = s.steps * s.batch
            truth.sent_bytes[h] = round(size)
        for h in there:
            nic[h].append((began[h], now[h], 0.0, s.steps * s.batch * s.bytes_per_sample))
        truth.swarm_ended_s[number] = s.start_unix + end
        truth.swarm_samples[number] = sum(s.steps * s.batch for _ in averaging)
    over = max(now.values()) + s.tail_s
    suffix = ".csv.gz" if s.gz else ".csv"
    for h in s.hosts:
        path = folder / f"{s.run_id}-{h}{suffix}"
        until = stopped.get(h, over)
        seconds = _seconds(nic[h], until, 2.0 if h in s.doubled else 1.0, rng)
        _write(path, BEE_HEADER, s.start_unix, [*seconds, *rows[h]])
        truth.files[h] = path
    if s.monitor:
        path = folder / f"{s.run_id}-vm-monitor{suffix}"
        _write(path, MONITOR_HEADER, s.start_unix, _monitor(s, truth, train_began, over))
        truth.files["monitor"] = path
    return truth


def write_baseline(folder: Path, name: str = "baseline-901-torchvision.models.convnext_large-gc-us-t4-1", steps: int = 200,
                   swarm: Swarm | None = None) -> Path:  # fmt: skip
    """Write the log of a single-VM baseline; return its path."""
    s = swarm or Swarm()
    rng = random.Random(s.seed)
    folder.mkdir(parents=True, exist_ok=True)
    now, rows = s.startup_s, []
    for k in range(1, steps + 1):
        timers, wall = _timers(s, rng)
        now += wall
        rows += _step_rows(s, now, timers, k * s.batch, k, None, None, rng)
    data = [(s.startup_s, now, 0.0, steps * s.batch * s.bytes_per_sample)]
    path = folder / f"{name}.csv{'.gz' if s.gz else ''}"
    _write(path, BEE_HEADER, s.start_unix, [*_seconds(data, now + s.tail_s, 1.0, rng), *rows])
    return path


def write_index(folder: Path, rows: Sequence[Mapping[str, Any]]) -> Path:
    """Write an INDEX.csv with the columns of the first row."""
    path = folder / "INDEX.csv"
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return path


def _timers(s: Swarm, rng: random.Random) -> tuple[dict[str, float], float]:
    """(timers of a local step, its wall time)."""
    wall = s.step_s * rng.uniform(0.98, 1.02)
    rest = max(wall * s.timed - s.local_opt_s, 0.0)
    return {
        "02_timing/dataload_time_s": 0.01 * rest,
        "02_timing/dataload_cuda_move_time_s": 0.04 * rest,
        "02_timing/forward_time_s": 0.30 * rest,
        "02_timing/loss_calc_time_s": 0.05 * rest,
        "02_timing/backward_time_s": 0.60 * rest,
        "02_timing/opt_step_time_s": s.local_opt_s * rng.uniform(0.9, 1.1),
    }, wall


def _step_rows(
    s: Swarm, at: float, timers: Mapping[str, float], count: int, number: int,
    epoch: int | None, peers: int | None, rng: random.Random,
) -> list[tuple[float, dict[str, Any]]]:  # fmt: skip
    """A step's row, or two: the early timers sometimes come before the rest, in a row of their own."""
    late: dict[str, Any] = {
        **timers,
        "02_timing/step_time_s": sum(timers.values()),
        "01_general/locally_processed_samples": count,
        "01_general/minibatch_loss": 7 - 0.001 * number,
        "01_general/step": number - 1,
    }
    if epoch is not None:
        late |= {"03_hivemind/global_epoch": epoch, "03_hivemind/num_peers": peers}
    if rng.random() > 0.2:
        return [(at, late)]
    early = {name: late.pop(name) for name in _EARLY}
    return [(at - 1e-3, early), (at, late)]


def _download(s: Swarm, rows, nic, now, at, rng, counts, steps_done, host, number) -> float:
    """A late VM's first two steps: an ordinary one, then one that downloads the state."""
    now = max(now, at - s.start_unix) + 1
    for opt, epoch in ((s.local_opt_s, 0), (2 * s.comm_s, number - 1)):
        timers, wall = _timers(s, rng)
        timers["02_timing/opt_step_time_s"] = opt
        now += wall + opt
        counts[host] += s.batch
        steps_done[host] += 1
        rows += _step_rows(s, now, timers, counts[host], steps_done[host], epoch, 2, rng)
    nic.append((now - 2 * s.comm_s, now, 0.0, 12.0 * s.parameters))
    return now


def _seconds(spans, until: float, times: float, rng: random.Random) -> list[tuple[float, dict[str, Any]]]:
    """The 1 Hz rows: each span's bytes spread over its seconds."""
    count = int(until) + 1
    sent, received = (
        [rng.uniform(500, 1500) for _ in range(count)],
        [rng.uniform(500, 1500) for _ in range(count)],
    )
    for began, ended, out, into in spans:
        for k in range(max(int(began), 0), min(int(ended) + 1, count)):
            share = max(min(ended, k + 1) - max(began, k), 0.0) / max(ended - began, 1e-9)
            sent[k] += out * share
            received[k] += into * share
    return [
        (
            k + 0.999,
            {
                "cpu/logical_core_count": 8,
                "bandwidth/net_sent_sys_bandwidth_Mbits": sent[k] * times * 8 / 1e6,
                "bandwidth/net_recv_sys_bandwidth_Mbits": received[k] * times * 8 / 1e6,
            },
        )
        for k in range(count)
    ]


def _monitor(s: Swarm, truth: Truth, began: float, over: float) -> list[tuple[float, dict[str, Any]]]:
    """A row each second; the row after an epoch's end has its rate."""
    ends = sorted(truth.swarm_ended_s.items())
    peers = len(s.hosts)
    rows: list[tuple[float, dict[str, Any]]] = []
    done, last = 0, s.start_unix + began
    for k in range(int(began), int(over) + 1):
        at = s.start_unix + k + 0.5
        row: dict[str, Any] = {
            "03_hivemind/num_peers": peers,
            "03_hivemind/num_clients": 0,
            "03_hivemind/actual_total_samples_per_second": peers * s.batch / s.step_s,
            "03_hivemind/eta_next_epoch_s": 10.0,
        }
        if done < len(ends) and at > ends[done][1]:
            number, end = ends[done]
            samples = truth.swarm_samples[number]
            row |= {
                "03_hivemind/epoch_based_sps": samples / (end - last),
                "03_hivemind/per_epoch_training_samples": samples,
                "03_hivemind/epoch_s": end - last,
            }
            done, last = done + 1, end
        row["03_hivemind/global_epoch"] = s.first_epoch + done
        row["03_hivemind/global_samples_accumulated"] = max(
            round((at - last) * peers * s.batch / s.step_s), 0
        )
        rows.append((at - s.start_unix, row))
    return rows


def _write(path: Path, header: Sequence[str], start: int, rows: list[tuple[float, dict[str, Any]]]) -> None:
    ordered = sorted(rows, key=lambda pair: pair[0])
    with gzip.open(path, "wt", newline="") if path.suffix == ".gz" else path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(header), restval="")
        writer.writeheader()
        for number, (at, row) in enumerate(ordered):
            writer.writerow({"_step": number, "_runtime": int(at), "_timestamp": start + int(at), **row})
