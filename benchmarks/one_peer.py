"""Compare one Hivemind peer with a plain PyTorch loop: same data, same model, same padding.

Runs both in turns (peer, plain, plain, peer, ...), each in its own process with an empty shard cache, and prints of each
the samples/s by wall clock and the CPU seconds per 1,000 samples (all its processes), and the median of the ratios with n
and a 95 % t interval of their mean: of the digits, padded and unpadded, and of the built-in tasks on the data sets glyphs
and stdlib. Both are measured after a warm-up epoch; the peer's window is that of its training loop (steps.csv). The plain
loop runs `forward, backward, every N steps optimizer.step` over the same stream of batches, which it reads with the peer's
reader and decodes with the task's pipeline in a thread, as the peer does.

The ratio of throughputs is right on an idle machine only. That of the CPU seconds hardly depends on other processes, but
counts work on any core, whether or not training waited for it.

    python -m benchmarks.one_peer --only glyphs    # about 4 minutes
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from experiments.peer.config import PeerConfig

_CASES = ("padded", "unpadded", "glyphs", "stdlib")
_PADDED_S = 0.928
_GLYPHS_SPS, _STDLIB_SPS = 700.0, 60.0  # about, on one core: they only decide how long an epoch lasts
_SAMPLE_S = 0.25  # between two readings of the CPU time
_T95 = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 6: 2.447, 7: 2.365, 8: 2.306, 9: 2.262}


@dataclass(frozen=True)
class Window:
    """The measured part of a loop, in Unix seconds, and its samples."""

    began_s: float
    ended_s: float
    samples: int


@dataclass(frozen=True)
class Cost:
    """What one loop was measured to need."""

    sps: float  # samples per second of wall clock
    cpu_s: float  # of all its processes, per 1,000 samples


def plain_window(config_path: Path) -> Window:
    """Run the plain loop, and return its part after a warm-up epoch of the target batch size."""
    import torch

    from experiments.peer.optimizer.build import torch_optimizer_of
    from experiments.peer.optimizer.update_rule import update_rule_of
    from experiments.peer.training.batches import Batches, open_shards
    from experiments.peer.training.step_timer import Padding
    from experiments.peer.training.task import build_runner, use_code_folder
    from experiments.peer.training.task_data import training_source

    config = PeerConfig.load(config_path)
    torch.set_num_threads(config.threads or 1)
    use_code_folder(config, config_path.parent)
    task = build_runner(config)
    optimizer = torch_optimizer_of(config.optimizer)(task.parameter_groups())
    rule = update_rule_of(config, optimizer)
    opener = open_shards(config, config_path.parent / "cache", print)
    batches = Batches(training_source(config, opener, task, print), config.batch_size)
    batches.start()
    padding = Padding(time.perf_counter, time.sleep)
    steps = config.target_batch_size // config.batch_size
    began_s = time.time()
    for epoch in range(config.max_epochs):
        if epoch == 1:
            began_s = time.time()
        for _ in range(steps):
            loaded = batches.next()
            assert loaded is not None
            batch = task.move(loaded.batch)
            with padding.to(config.forward_s):
                loss = task.loss(batch)
            with padding.to(config.backward_s):
                task.backward(loss / steps)
        rule.apply(epoch + 1)
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)
    window = Window(began_s, time.time(), (config.max_epochs - 1) * steps * config.batch_size)
    batches.close()
    return window


def peer_window(folder: Path) -> Window:
    """The peer's training loop after its warm-up epoch."""
    steps: Any = pd.read_csv(folder / "steps.csv")
    steps = steps[steps["epoch"] >= 1]
    began_s = float(steps["began_s"].iloc[0])
    return Window(began_s, began_s + float(steps["wall_s"].sum()), int(steps["samples"].sum()))


class CpuLog:
    """Reads the CPU time of a process and its descendants until it is closed."""

    def __init__(self, pid: int) -> None:
        self._pid, self._ended = pid, threading.Event()
        self._by_process: dict[int, float] = {}
        self._readings: list[tuple[float, float]] = []  # (Unix seconds, CPU seconds)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._ended.set()
        self._thread.join()

    def cost(self, window: Window) -> Cost:
        """The cost of a window in which the processes were watched; CPU time between two readings is interpolated."""
        times, used = zip(*self._readings, strict=True)
        began, ended = np.interp([window.began_s, window.ended_s], times, used)
        return Cost(
            window.samples / (window.ended_s - window.began_s), float(ended - began) / window.samples * 1000
        )

    def _run(self) -> None:
        from experiments.peer.processes import descendants
        from experiments.peer.reporting.utilisation import process_ticks

        tick_s = 1 / os.sysconf("SC_CLK_TCK")
        while True:
            for pid in (self._pid, *descendants(self._pid)):
                try:
                    stat = Path(f"/proc/{pid}/stat").read_text()
                except (FileNotFoundError, ProcessLookupError):  # it ended: its last reading counts
                    continue
                self._by_process[pid] = process_ticks(stat) * tick_s
            self._readings.append((time.time(), sum(self._by_process.values())))
            if self._ended.wait(_SAMPLE_S):
                return


def interval(values: list[float]) -> str:
    """Format median, mean, its 95 % t interval and n: "median M, mean M [low, high], n = N"."""
    median, mean, n = statistics.median(values), statistics.fmean(values), len(values)
    if n < 2:
        return f"{mean:.4f}, n = 1"
    half = _T95.get(n - 1, 1.96) * statistics.stdev(values) / math.sqrt(n)
    return f"median {median:.4f}, mean {mean:.4f} [{mean - half:.4f}, {mean + half:.4f}], n = {n}"


@dataclass(frozen=True)
class Case:
    """What is compared: `changes` of the peer's config, and the shards in a folder."""

    name: str
    folder: Path
    shards: tuple[str, ...]
    changes: dict[str, Any]


def digits(work: Path, *, padded: bool, seconds: float) -> Case:
    """The digits with ballast."""
    from cloud.storage.digits import write_shards

    made = write_shards(work / "digits", 8)
    steps = max(4, int(seconds / 2 / _PADDED_S)) if padded else 1000
    changes = {
        "batch_size": 32,
        "target_batch_size": 32 * steps,
        "forward_s": 0.31 * padded,
        "backward_s": 0.618 * padded,
        "parameters": 1_977_673,
    }
    name = f"padded ({_PADDED_S} s a step of 32)" if padded else "unpadded"
    return Case(name, work / "digits", (*made.train, *made.heldout), changes)


def task(work: Path, dataset: str, seconds: float) -> Case:
    """A built-in task on a generated data set, with one thread, as in a local run."""
    from cloud.datasets.glyphs import glyph_records
    from cloud.datasets.stdlib import TrainTexts, stdlib_records, train_tokenizer
    from cloud.storage.shards import ShardWriter

    folder = work / dataset
    writer = ShardWriter(folder, max_samples=512)
    if dataset == "glyphs":
        records, rate = glyph_records(4096, 64), _GLYPHS_SPS
        settings: dict[str, Any] = {"model": "small-cnn", "classes": 62}
        call = "image_classification"
    else:
        texts = TrainTexts(stdlib_records())
        records, rate = texts, _STDLIB_SPS
        settings, call = {"tokenizer": str(work / "tokenizer.json")}, "causal_lm"
    shards = [shard for record in records for shard in writer.write(record)] + writer.close()
    if dataset == "stdlib":
        (work / "tokenizer.json").write_bytes(train_tokenizer(texts.texts))
    named = {"call": f"experiments.tasks.{call}:build", "with": settings, "sha256": "0" * 64}
    changes = {
        "batch_size": 32,
        "target_batch_size": 32 * max(4, int(seconds / 2 * rate / 32)),
        "emulated": False,
        "forward_s": 0.0,
        "backward_s": 0.0,
        "task": named,
        "threads": 1,
    }
    return Case(dataset, folder, tuple(s.name for s in shards if s.split == "train"), changes)


def compare(work: Path, case: Case, rounds: int, seconds: float) -> None:
    """Print the ratios of throughput and CPU time over interleaved rounds, with loops of about `seconds` each."""
    from tests.experiments.peer_rig import config_of, serve_folder

    speeds, cpus = [], []
    for turn in range(rounds):
        folder = work / f"{case.folder.name}-{case.name[:4]}-{turn}"
        with serve_folder(case.folder) as endpoint:
            shards = tuple(f"s3://bucket/{name}" for name in case.shards)
            changes = {"max_epochs": 3, "sync_work_s": 0.0, "heldout_shards": (), **case.changes}
            config = replace(config_of("a", endpoint, shards), **changes)
            timeout_s = 120 + 20 * seconds
            if turn % 2:  # the other one first: what slows the machine down falls on both
                plain = run_plain(folder / "plain", config)
                peer = run_peer(folder / "peer", config, timeout_s)
            else:
                peer = run_peer(folder / "peer", config, timeout_s)
                plain = run_plain(folder / "plain", config)
        speeds.append(peer.sps / plain.sps)
        cpus.append(peer.cpu_s / plain.cpu_s)
        print(
            f"  turn {turn + 1}: peer {peer.sps:.2f} sps and {peer.cpu_s:.3f} CPU s per 1,000 samples, "
            f"plain {plain.sps:.2f} sps and {plain.cpu_s:.3f}; ratios {speeds[-1]:.4f} and {cpus[-1]:.4f}",
            flush=True,
        )
    print(f"{case.name}: peer / plain, samples per second = {interval(speeds)}")
    print(f"{case.name}: peer / plain, CPU seconds per sample = {interval(cpus)}", flush=True)


def run_peer(folder: Path, config: PeerConfig, timeout_s: float) -> Cost:
    """Measure a peer in a process of its own. Raises AssertionError if it fails or takes longer than `timeout_s`."""
    from tests.experiments.peer_rig import PeerProcess

    peer = PeerProcess(folder, config)
    watch = CpuLog(peer.process.pid)
    try:
        peer.wait_for(lambda status: status["phase"] == "done", timeout_s=timeout_s)
        watch.close()
        peer.leave()
    finally:
        peer.kill()
    return watch.cost(peer_window(folder))


def run_plain(folder: Path, config: PeerConfig) -> Cost:
    """Measure the plain loop in a process of its own. Raises CalledProcessError if it fails."""
    folder.mkdir(parents=True)
    path = folder / "config.json"
    path.write_text(json.dumps(config.to_json()))
    command = [sys.executable, "-m", "benchmarks.one_peer", "--plain", str(path)]
    # a session of its own, as the peer has: the kernel may share the CPU time among sessions
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True) as process:
        watch = CpuLog(process.pid)
        try:
            assert process.stdout is not None
            answer = process.stdout.read()
        except BaseException:
            process.kill()
            raise
    watch.close()
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)
    return watch.cost(Window(**json.loads(answer.splitlines()[-1])))


def main() -> None:
    parser = argparse.ArgumentParser(description="A one-peer run against a plain PyTorch loop")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--seconds", type=float, default=10.0, help="about the length of the measured part of a loop"
    )
    parser.add_argument("--only", choices=_CASES, help="one of the comparisons")
    parser.add_argument("--plain", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.plain is not None:
        os.environ.update(PeerConfig.load(options.plain).environment)
        print(json.dumps(asdict(plain_window(options.plain))))
        return
    with tempfile.TemporaryDirectory(prefix="orch-one-peer-") as text:
        work = Path(text)
        for name in _CASES if options.only is None else (options.only,):
            if name in ("padded", "unpadded"):
                case = digits(work, padded=name == "padded", seconds=options.seconds)
            else:
                case = task(work, name, options.seconds)
            compare(work, case, options.rounds, options.seconds)


if __name__ == "__main__":
    main()
