"""Evaluation during training: whose turn it is, a copy that training cannot change, and what becomes of failures."""

from __future__ import annotations

import io
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from PIL import Image  # noqa: E402 - after torch is known to exist
from storage_fakes import make_tar  # noqa: E402

from cloud.storage.errors import CorruptShardError, StoreUnreachableError  # noqa: E402
from experiments.peer.training.bad_samples import BadSamples  # noqa: E402
from experiments.peer.training.decoding import Workers  # noqa: E402
from experiments.peer.training.loader import HeldOut  # noqa: E402
from experiments.peer.training.periodic_evaluation import (  # noqa: E402
    PeriodicEvaluation,
    build_copy,
    copy_weights,
    evaluating_slot,
)
from experiments.peer.training.task import TaskRunner, build_runner  # noqa: E402
from experiments.tasks.protocol import TaskError  # noqa: E402
from tests.experiments.peer_rig import config_of  # noqa: E402

TASK = {"call": "small_task:build", "with": {}, "sha256": "0" * 64}


def digit(number: int) -> bytes:
    file = io.BytesIO()
    Image.new("L", (8, 8), 25 * number).save(file, "png")
    return file.getvalue()


SHARD = make_tar({f"{n}": {"png": digit(n), "cls": f"{n}".encode()} for n in range(10)})


class Gate:
    """Opens the held-out shard once it is allowed to, or raises."""

    def __init__(self) -> None:
        self.asked, self.allowed = threading.Event(), threading.Event()
        self.error: Exception | None = None

    def open(self, _url: str) -> io.BytesIO:
        self.asked.set()
        assert self.allowed.wait(10)
        if self.error is not None:
            raise self.error
        return io.BytesIO(SHARD)


class Rig:
    """A trained task and its periodic evaluation."""

    def __init__(self, **changes: Any) -> None:
        config = config_of("a", "", (), **{"task": TASK, "emulated": False, **changes})
        self.gate = Gate()
        self.trained = build_runner(config)
        self.published: list[tuple[int, Mapping[str, float], int]] = []
        self.warnings: list[str] = []
        self.told = threading.Event()
        self.threads = 0  # of torch, in the thread that evaluates
        copy = build_copy(config)
        self.periodic = PeriodicEvaluation(copy, self.heldout(copy), self._publish, self._warn)

    def heldout(self, task: TaskRunner) -> HeldOut:
        count = partial(BadSamples, "fail", print)
        return HeldOut(
            ["s3://b/h.tar"], self.gate.open, task.heldout_pipeline, task.collate, Workers(), count, 4
        )

    def _publish(self, epoch: int, figures: Mapping[str, float], samples: int) -> None:
        self.published.append((epoch, figures, samples))
        self.threads = torch.get_num_threads()
        self.told.set()

    def _warn(self, text: str) -> None:
        self.warnings.append(text)
        self.told.set()

    def evaluate_now(self) -> dict[str, float]:
        return self.trained.evaluate(self.heldout(self.trained).batches())


@pytest.fixture
def make() -> Iterator[Callable[..., Rig]]:
    made: list[Rig] = []

    def rig(**changes: Any) -> Rig:
        made.append(Rig(**changes))
        return made[-1]

    yield rig
    for one in made:
        one.gate.allowed.set()
        one.periodic.stop(10)


def test_each_slot_evaluates_in_turn():
    slots = ("asia-0", "eu-0", "us-0")
    due = {epoch: evaluating_slot(epoch, 2, slots) for epoch in range(1, 9)}
    assert due == {
        1: None, 2: "eu-0", 3: None, 4: "us-0", 5: None, 6: "asia-0", 7: None, 8: "eu-0",
    }  # fmt: skip
    assert evaluating_slot(4, 0, slots) is None
    assert evaluating_slot(4, 2, ()) is None
    assert evaluating_slot(4, 2, ("us-0",)) == "us-0"


@pytest.mark.parametrize("changes", [{}, {"task": None, "emulated": True}])
def test_the_copy_has_the_weights_of_its_epoch_whatever_training_does_meanwhile(make, changes):
    rig = make(**changes)
    rig.gate.allowed.set()
    before = rig.evaluate_now()
    rig.gate.allowed.clear()
    rig.gate.asked.clear()
    assert rig.periodic.begin(4, rig.trained)
    assert rig.gate.asked.wait(10)
    with torch.no_grad():
        for parameter in rig.trained.model.parameters():
            parameter.add_(torch.rand(parameter.shape))
    assert rig.trained.model.training
    assert not rig.periodic.begin(5, rig.trained)  # left out: the other one still runs
    rig.gate.allowed.set()
    assert rig.told.wait(10)
    assert rig.published == [(4, before, 10)]
    assert rig.periodic.evaluated == 4
    assert rig.evaluate_now() != before
    rig.periodic.check()


def test_only_the_evaluation_is_limited_to_one_cpu_thread(make):
    threads = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        rig = make()
        assert rig.periodic.begin(1, rig.trained)
        assert rig.gate.asked.wait(10)
        others: list[int] = []
        later = threading.Thread(target=lambda: others.append(torch.get_num_threads()))
        later.start()
        later.join()
        rig.gate.allowed.set()
        assert rig.told.wait(10)
        assert (torch.get_num_threads(), others, rig.threads) == (3, [3], 1)
    finally:
        torch.set_num_threads(threads)


def test_building_the_copy_leaves_the_random_numbers_of_the_training_alone():
    config = config_of("a", "", (), task=TASK, emulated=False)
    build_runner(config)
    torch.manual_seed(3)
    expected = torch.rand(3)
    torch.manual_seed(3)
    build_copy(config)
    assert torch.equal(torch.rand(3), expected)


def test_the_copy_of_an_emulated_model_has_no_ballast():
    config = config_of("a", "", ())
    assert sum(p.numel() for p in build_runner(config).parameters()) == config.parameters
    assert sum(p.numel() for p in build_copy(config).parameters()) == 4810


def test_a_model_that_is_built_differently_is_refused():
    trained, other = torch.nn.Linear(3, 2), torch.nn.Linear(3, 1)
    with pytest.raises(TaskError, match=r"weight of the model differs; make `build` depend"):
        copy_weights(trained, other)


def test_an_unreachable_store_and_too_little_memory_are_warnings(make):
    rig = make()
    rig.gate.error = StoreUnreachableError("no route")
    rig.gate.allowed.set()
    assert rig.periodic.begin(2, rig.trained)
    assert rig.told.wait(10)
    assert rig.warnings[0].startswith("epoch 2 was not evaluated: ")
    rig.periodic.check()
    rig.told.clear()
    rig.gate.error = MemoryError()
    while not rig.periodic.begin(3, rig.trained):
        time.sleep(0.01)
    assert rig.told.wait(10)
    assert "epoch 3 was not evaluated: task small_task:build: out of memory" in rig.warnings[1]
    rig.periodic.check()
    assert rig.published == []


def await_error(rig: Rig) -> None:
    deadline = time.monotonic() + 10
    while rig.periodic._error is None and time.monotonic() < deadline:
        time.sleep(0.01)


def test_other_errors_end_the_training(make):
    rig = make()
    rig.gate.error = CorruptShardError("s3://b/h.tar", 512, "a broken header")
    rig.gate.allowed.set()
    assert rig.periodic.begin(2, rig.trained)
    await_error(rig)
    with pytest.raises(CorruptShardError):
        rig.periodic.check()

    user = make(task={**TASK, "with": {"figures": {"accuracy": 7.0}}})
    user.gate.allowed.set()
    assert user.periodic.begin(2, user.trained)
    await_error(user)
    with pytest.raises(TaskError, match="an accuracy of 7, which is not between 0 and 1"):
        user.periodic.check()


def test_a_peer_that_ends_publishes_nothing_more(make):
    rig = make()
    assert rig.periodic.begin(2, rig.trained)
    assert rig.gate.asked.wait(10)
    rig.periodic.stop(0)
    rig.gate.allowed.set()
    rig.periodic.stop(10)
    assert (rig.published, rig.warnings, rig.periodic.evaluated) == ([], [], 0)
    assert not rig.periodic.begin(3, rig.trained)
    rig.periodic.check()
