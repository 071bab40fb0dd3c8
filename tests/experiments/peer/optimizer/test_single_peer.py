"""A plain loop: the same steps as torch alone, with progress reports and without averaging."""

from __future__ import annotations

import contextlib
import itertools
import math
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pandas as pd
import pytest
import torch
from peer_rig import PeerProcess, config_of, serve_folder

from cloud.storage.counter import ByteCounter
from cloud.storage.digits import write_shards
from cloud.storage.samples import Cursor
from experiments.learning_rate import RateSchedule
from experiments.peer.optimizer.single_peer import PlainOptimizer
from experiments.peer.optimizer.update_rule import UpdateRule
from experiments.peer.training.loader import Loaded
from experiments.peer.training.loop import Hooks, Trainer
from metrics.epochs.granularity import calculation, communication, granularity
from metrics.epochs.throughput import swarm_epochs
from metrics.records import EpochRecord

BATCH, TARGET = 4, 12


class FakeTracker:
    """A tracker that records its reports."""

    def __init__(self) -> None:
        self.progress: list[tuple[int, int]] = []
        self.performance_ema = SimpleNamespace(reset_timer=lambda: None)
        self.ended = 0

    def report_local_progress(self, local_epoch: int, samples_accumulated: int) -> None:
        self.progress.append((local_epoch, samples_accumulated))

    @contextlib.contextmanager
    def pause_updates(self) -> Iterator[None]:
        yield

    def update_epoch(self, new_epoch: int) -> int:
        self.progress.append((new_epoch, 0))
        return new_epoch

    def hold(self, held: bool) -> None:
        pass

    def shutdown(self, timeout: float | None = None) -> None:
        self.ended += 1


def batch(number: int) -> torch.Tensor:
    return torch.full((BATCH,), float(number + 1))


def test_it_steps_with_the_mean_gradient_of_the_target_batch():
    """Compared with torch's optimizer on each whole target batch."""
    weight, same = (torch.nn.Parameter(torch.ones(1)) for _ in range(2))
    tracker = FakeTracker()
    plain = PlainOptimizer(torch.optim.SGD([weight], lr=0.001, momentum=0.9), tracker, TARGET)
    optimizer = torch.optim.SGD([same], lr=0.001, momentum=0.9)
    for epoch in range(3):
        whole = [batch(3 * epoch + i) for i in range(TARGET // BATCH)]
        for i, part in enumerate(whole):
            (weight * part).square().mean().backward()
            assert plain.local_epoch == epoch
            plain.step(batch_size=BATCH)
            assert plain.take_round().group_size == (1 if i == 2 else 0)
        optimizer.zero_grad()
        (same * torch.cat(whole)).square().mean().backward()
        optimizer.step()
        assert weight.item() == pytest.approx(same.item(), abs=1e-6)
    assert tracker.progress == [(e + (s == 0), s) for e in range(3) for s in (4, 8, 12, 0)]
    assert not plain.round_scheduled
    plain.leave_round(1.0)
    plain.withdraw_progress(1.0)
    assert tracker.ended == 1


def test_an_epoch_of_one_step_is_reported_with_its_samples() -> None:
    """Without, the monitor sees no samples of such a peer, and the controller replaces it as silent."""
    tracker = FakeTracker()
    plain = PlainOptimizer(torch.optim.SGD([torch.nn.Parameter(torch.ones(1))]), tracker, TARGET)
    for _ in range(2):
        plain.step(batch_size=TARGET)
    assert tracker.progress == [(0, TARGET), (1, 0), (1, TARGET), (2, 0)]


def test_a_plain_loop_steps_with_the_clipped_mean_at_the_epochs_rate() -> None:
    weight = torch.nn.Parameter(torch.zeros(4))
    optimizer = torch.optim.SGD([weight], lr=1.0)
    rule = UpdateRule(optimizer, RateSchedule("linear", 4), 1.0)
    plain, moved = PlainOptimizer(optimizer, FakeTracker(), 8, rule.apply), list[float]()
    for _ in range(4):
        before = weight.detach().clone()
        for _ in range(2):
            (3.0 * weight.sum()).backward()  # a mean gradient of length 6
            plain.step(batch_size=4)
        moved.append(float((before - weight.detach()).norm()))
    assert moved == pytest.approx([1.0, 0.75, 0.5, 0.25], rel=1e-5)


def run(
    epochs: list[EpochRecord],
    on_round: Callable[[], None] | None = None,
    weight: torch.nn.Parameter | None = None,
    bad: Sequence[int] = (),
    last_epoch: int | None = None,
) -> bool:
    """Train (weight - 1) ^ 2; the losses of the steps `bad` are not finite."""
    weight = torch.nn.Parameter(torch.zeros(1)) if weight is None else weight
    steps = itertools.count()
    task = SimpleNamespace(
        move=lambda batch: batch, backward=torch.Tensor.backward, wait=lambda: None, ran="toy",
        loss=lambda _: ((weight - 1) * (math.nan if next(steps) in bad else 1) * (weight - 1)).sum(),
        check_loss=lambda loss, _: math.isfinite(loss),
    )  # fmt: skip
    config = SimpleNamespace(
        max_epochs=3, samples_limit=None, vm="r-a-0", coalesce=1, batch_size=BATCH, forward_s=0.002, backward_s=0.004,
        samples_per_step=BATCH,
    )  # fmt: skip
    hooks = Hooks(lambda _: None, lambda e, *_: epochs.append(e), lambda: [], lambda *_: 0, lambda: None)
    batches = SimpleNamespace(next=lambda _: Loaded((torch.zeros(4), torch.zeros(4)), (), Cursor()))
    plain = PlainOptimizer(torch.optim.SGD([weight], lr=0.1), FakeTracker(), TARGET)
    return Trainer(
        cast(Any, config), cast(Any, task), plain, cast(Any, batches), dict, ByteCounter(), hooks, threading.Event(),
        last_epoch=lambda: last_epoch,
    ).run()  # fmt: skip


def test_the_gradient_of_a_loss_that_is_not_finite_is_not_added():
    weight = torch.nn.Parameter(torch.zeros(1))
    assert run([], weight=weight, bad=(0, 4))
    assert 0 < weight.item() < 1


@pytest.mark.parametrize(("ordered", "trained"), [(None, 3), (2, 2), (9, 3), (1, 1)])
def test_training_ends_after_the_ordered_epoch(ordered: int | None, trained: int):
    records: list[EpochRecord] = []
    assert run(records, last_epoch=ordered)
    assert [r.epoch for r in records] == list(range(1, trained + 1))


def test_an_epoch_is_calculation_alone_and_its_communication_is_unknown():
    records: list[EpochRecord] = []
    assert run(records)
    assert [(r.epoch, r.steps, r.samples, r.group_size, r.dropped) for r in records] == [
        (n, 3, 12, 1, "") for n in (1, 2, 3)
    ]
    for record in records:
        assert record.comm_s == record.optimizer_sync_s == 0.0
        assert record.calc_s == pytest.approx(record.ended_s - record.began_s, abs=1e-5)
        assert record.calc_s > 3 * 0.006
    swarm = swarm_epochs(records, 1)
    assert calculation(swarm) is not None
    assert communication(swarm) is None
    assert granularity(swarm) is None


@pytest.mark.processes
@pytest.mark.timeout(300)  # at idle priority too
def test_real_peer_trains_alone_and_leaves_nothing_behind(tmp_path: Path):
    made = write_shards(tmp_path / "shards", 2, samples_per_shard=128)
    with serve_folder(tmp_path / "shards") as endpoint:
        shards = tuple(f"s3://bucket/{name}" for name in (*made.train, *made.heldout))
        config = config_of("a", endpoint, shards, plain=True, forward_s=0.01, backward_s=0.02)
        peer = PeerProcess(tmp_path / "a", config)
        try:
            done = peer.wait_for(lambda status: status["phase"] == "done")
            assert done["epoch"] == 3
            steps = pd.read_csv(peer.folder / "steps.csv")
            assert steps["optimizer_sync_s"].max() == 0.0
            assert steps.groupby("epoch")["samples"].sum().to_list() == [256] * 3
            assert "held out: accuracy" in (peer.folder / "peer.log").read_text()
            began = time.monotonic()
            peer.leave()
            assert time.monotonic() - began < 10.0
            assert peer.process.returncode == 0
        finally:
            peer.kill()
