"""Compare one Hivemind peer with a plain PyTorch loop: same data, same model, same padding.

Runs both alternately (peer, plain, peer, plain, ...), each in its own process, and prints the ratio of
their throughputs by wall clock with n and a 95 % t interval: of the digits, padded and unpadded, and of the built-in tasks
on the data sets glyphs and stdlib. The peer's throughput is that of its training loop after the warm-up epoch (steps.csv).
The plain loop runs `forward, backward, every N steps optimizer.step` over the same stream of batches.

    python -m benchmarks.one_peer --rounds 3
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

_CASES = ("padded", "unpadded", "glyphs", "stdlib")
_PADDED_S = 0.928
_GLYPHS_SPS, _STDLIB_SPS = 700.0, 60.0  # about, on one core: they only decide how long an epoch lasts
_T95 = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 6: 2.447, 7: 2.365, 8: 2.306, 9: 2.262}


def plain_rate(config_path: Path) -> float:
    """Measure samples per second of the plain loop, after a warm-up epoch of the target batch size."""
    import torch

    from experiments.peer.config import PeerConfig
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
    began = time.perf_counter()
    for epoch in range(config.max_epochs):
        if epoch == 1:
            began = time.perf_counter()
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
    rate = (config.max_epochs - 1) * steps * config.batch_size / (time.perf_counter() - began)
    batches.close()
    return rate


def peer_rate(folder: Path) -> float:
    """Compute samples per second of the peer by wall clock, after its warm-up epoch."""
    steps = pd.read_csv(folder / "steps.csv")
    steps = steps[steps["epoch"] >= 1]
    return float(steps["samples"].sum() / steps["wall_s"].sum())


def interval(values: list[float]) -> str:
    """Format mean, 95 % t interval and n: "mean [low, high], n = N"."""
    mean, n = statistics.fmean(values), len(values)
    if n < 2:
        return f"{mean:.4f}, n = 1"
    half = _T95.get(n - 1, 1.96) * statistics.stdev(values) / math.sqrt(n)
    return f"{mean:.4f} [{mean - half:.4f}, {mean + half:.4f}], n = {n}"


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
    """Print the ratio of the throughputs over interleaved rounds, with loops of about `seconds` each."""
    from tests.experiments.peer_rig import PeerProcess, config_of, serve_folder

    ratios, peers, plains = [], [], []
    for turn in range(rounds):
        folder = work / f"{case.folder.name}-{case.name[:4]}-{turn}"
        with serve_folder(case.folder) as endpoint:
            shards = tuple(f"s3://bucket/{name}" for name in case.shards)
            config = config_of("a", endpoint, shards, **{"max_epochs": 3, "sync_work_s": 0.0, **case.changes})
            peer = PeerProcess(folder, config)
            try:
                peer.wait_for(lambda status: status["phase"] == "done", timeout_s=120 + 8 * seconds)
                peer.leave()
            finally:
                peer.kill()
            command = [sys.executable, "-m", "benchmarks.one_peer", "--plain", str(folder / "config.json")]
            answer = subprocess.run(command, capture_output=True, text=True, check=True)
        peers.append(peer_rate(folder))
        plains.append(float(json.loads(answer.stdout.splitlines()[-1])))
        ratios.append(peers[-1] / plains[-1])
        print(
            f"  turn {turn + 1}: peer {peers[-1]:.2f} sps, plain {plains[-1]:.2f} sps, ratio {ratios[-1]:.4f}"
        )
    print(f"{case.name}: peer / plain = {interval(ratios)}")


def main() -> None:
    parser = argparse.ArgumentParser(description="A one-peer run against a plain PyTorch loop")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--seconds", type=float, default=15.0, help="about the length of the measured part of a loop"
    )
    parser.add_argument("--only", choices=_CASES, help="one of the comparisons")
    parser.add_argument("--plain", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.plain is not None:
        import os

        from experiments.peer.config import PeerConfig

        os.environ.update(PeerConfig.load(options.plain).environment)
        print(json.dumps(plain_rate(options.plain)))
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
