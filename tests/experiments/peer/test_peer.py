"""The course of a peer and the order of its shutdown, with fake components."""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from cloud.storage.counter import ByteCounter
from cloud.storage.errors import StoreUnreachableError
from cloud.storage.samples import Cursor
from experiments.peer import peer as module
from experiments.peer.optimizer.single_peer import PlainOptimizer
from experiments.peer.peer import Peer
from experiments.peer.reporting.coverage_log import CoverageLog
from experiments.peer.status import Status
from experiments.peer.swarm.members import Member
from experiments.peer.swarm.start_weights import StartWeightsError
from experiments.peer.training.loader import Span
from experiments.peer.training.step_timer import Padding
from experiments.pipeline.errors import BadSampleError
from metrics.records import EpochRecord, IngressRecord


@dataclass
class Parts:
    """A fake for all components of a peer, which records the calls in order."""

    calls: list[str] = field(default_factory=list)
    began: str = "ready"
    finished: bool = True
    requested: bool = False
    urgent: bool = False
    code: int = 0
    local_epoch: int = 3
    last_epoch: int | None = None  # ordered
    soft_left_s: float = math.inf
    heldout: Any = field(default_factory=lambda: SimpleNamespace(batches=lambda: iter(["batch"]), samples=2))
    fails: Exception | None = None  # what the evaluation raises
    start_weights: str = ""
    members: tuple[Member, ...] = (Member("r-b-0", "b", "ready", 0, "/ip4/10.0.0.2/tcp/1/p2p/QmB"),)
    public_only: tuple[str, ...] = ()
    sizes: dict[str, int] = field(default_factory=dict[str, int])
    common: bool = False  # whether the running statistics are those that all peers have

    def note(self, name: str) -> Any:
        return lambda *args, **_: self.calls.append(" ".join([name, *map(str, args)]))

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return self.note(name)

    def wait_for_start(self, expected: int, timeout_s: float, stop: threading.Event) -> str:
        if self.began == "stopped":
            self.requested = True
            stop.set()
        return self.began

    @contextmanager
    def common_statistics(self) -> Iterator[None]:
        self.common = True
        yield
        self.common = False

    def evaluate(self, batches: Any) -> dict[str, float]:
        assert self.common
        assert list(batches) == ["batch"]
        if self.fails is not None:
            raise self.fails
        return {"accuracy": 0.5, "loss": 1.25}

    def parameters(self) -> list[torch.nn.Parameter]:
        return [torch.nn.Parameter(torch.ones(2))]


@pytest.fixture
def parts(monkeypatch: pytest.MonkeyPatch) -> Parts:
    made = Parts()

    class Trained:
        padding = Padding(lambda: 0.0, lambda _: None)

        def __init__(self, *_: Any, **__: Any) -> None: ...

        def run(self) -> bool:
            made.calls.append("trained")
            return made.finished

    monkeypatch.setattr(module, "Trainer", Trained)
    monkeypatch.setattr(module, "_SERVE_S", 0.0)
    return made


def peer_of(parts: Parts, folder: Path) -> Peer:
    stack = ExitStack()
    for name in ("first started", "last started"):
        stack.callback(parts.note(f"end {name}"))
    config = SimpleNamespace(
        vm="r-a-0", slot="a", seed=7, shards=(), expected_peers=2, barrier_timeout_s=9.0,
        data_position=None, epoch_positions=None,
    )  # fmt: skip
    part = cast(Any, parts)
    return Peer(
        config=cast(Any, config), folder=folder, status=Status(folder / "status.json"), parts=stack,
        stop=threading.Event(), departure=part, policy=part, orders=part,
        clock=cast(Any, SimpleNamespace(now_s=lambda: 7.0)), losses=part,
        traffic=cast(Any, SimpleNamespace(
            counting_s=1.0, sent=dict, model_bytes=dict, published=parts.note("counted"),
            locate=lambda maddrs, _: parts.calls.append(f"located {list(maddrs)}"), write_final=parts.note("egress"),
        )),
        publisher=part,
        membership=cast(Any, SimpleNamespace(
            start=parts.note("announced"), wait_for_start=parts.wait_for_start, members=parts.members,
            wait_for_internal_connections=lambda *_: None, internal={}, announce=parts.note("announce"),
            public_only=parts.public_only, others_training_at=lambda *_: 0,
        )),
        optimizer=part, task=part,
        batches=cast(Any, SimpleNamespace(
            start=parts.note("reading"), start_at=parts.note("data from"), trace=None,
            share_among=lambda slot, slots, _: parts.calls.append(f"{slot} of {','.join(slots)}"),
        )),
        heldout=parts.heldout, start_weights=parts.start_weights, counter=ByteCounter(), steps=part,
        coverage=CoverageLog(folder / "coverage.csv", "r-a-0", ["s3://b/1.tar"], lambda: parts.sizes),
    )  # fmt: skip


def document(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "status.json").read_text())


def test_course_of_a_completed_run(parts: Parts, tmp_path: Path) -> None:
    assert peer_of(parts, tmp_path).run() == 0
    assert [call for call in parts.calls if not call.startswith("train <")] == [
        "announced", "announce training 3", "located ['/ip4/10.0.0.2/tcp/1/p2p/QmB']", "a of a,b", "reading",
        "trained", "close", "evaluation 3 {'accuracy': 0.5, 'loss': 1.25} 2", "flush 5.0", "egress", "announce serving 3",
        "end last started", "end first started",
    ]  # fmt: skip
    found = document(tmp_path)
    assert (found["phase"], found["epoch"], found["join"]["at_s"]) == ("done", 3, 7.0)
    assert found["parameters_sha"]
    assert (tmp_path / "parameters.f32").stat().st_size == 8


def test_a_stop_while_training_leaves_the_round_before_anything_ends(parts: Parts, tmp_path: Path) -> None:
    parts.finished, parts.requested, parts.soft_left_s = False, True, 5.0
    assert peer_of(parts, tmp_path).run() == 0
    at = parts.calls.index("leave_round 3.0")
    assert parts.calls[at - 1 :] == [
        "close", "leave_round 3.0", "evaluation 3 {'accuracy': 0.5, 'loss': 1.25} 2", "end last started", "end first started",
    ]  # fmt: skip
    assert document(tmp_path)["phase"] == "leaving"


def test_urgent_shutdown_skips_the_evaluation_and_keeps_the_exit_code(parts: Parts, tmp_path: Path) -> None:
    parts.finished, parts.requested, parts.urgent, parts.code = False, True, True, 3
    assert peer_of(parts, tmp_path).run() == 3
    assert not [call for call in parts.calls if call.startswith("evaluation")]


def test_an_unreachable_store_costs_the_evaluation_and_wrong_data_the_run(
    parts: Parts, tmp_path: Path
) -> None:
    parts.fails = StoreUnreachableError("no byte came")
    assert peer_of(parts, tmp_path).run() == 0
    assert document(tmp_path)["warnings"] == ["epoch 3 was not evaluated: no byte came"]
    assert not [call for call in parts.calls if call.startswith("evaluation")]
    parts.fails = BadSampleError("s3://b/x.tar", "7", "decode", "it is no image")
    with pytest.raises(BadSampleError):
        peer_of(parts, tmp_path).run()


@pytest.mark.parametrize(("began", "refused"), [("ready", True), ("timeout", True), ("joined", False)])
def test_a_peer_with_other_start_weights_than_the_lowest_slot_does_not_train(
    parts: Parts, tmp_path: Path, began: str, refused: bool
) -> None:
    lowest = Member("r-A-0", "A", "ready", 0, parts.members[0].maddr, 0.0, "0" * 16)
    parts.members, parts.began, parts.start_weights = (lowest, *parts.members), began, "1" * 16
    if not refused:
        assert peer_of(parts, tmp_path).run() == 0
        return
    with pytest.raises(StartWeightsError, match="r-a-0 differ from those of r-A-0"):
        peer_of(parts, tmp_path).run()
    assert "trained" not in parts.calls


def test_a_stop_before_the_start_trains_nothing(parts: Parts, tmp_path: Path) -> None:
    parts.began, parts.local_epoch = "stopped", 0
    assert peer_of(parts, tmp_path).run() == 0
    assert parts.calls == ["announced", "close", "leave_round inf", "end last started", "end first started"]
    assert document(tmp_path)["phase"] == "leaving"


def test_a_start_without_all_peers_is_a_warning(parts: Parts, tmp_path: Path) -> None:
    parts.began, parts.public_only = "timeout", ("QmB",)
    peer_of(parts, tmp_path).run()
    assert document(tmp_path)["warnings"] == [
        "started with 1 of 2 peers after 9 s",
        "1 peers of this network are reachable at their public addresses only",
    ]


def test_all_components_end_although_one_fails(parts: Parts, tmp_path: Path) -> None:
    peer = peer_of(parts, tmp_path)

    def fail() -> None:
        raise ValueError("no")

    peer.parts.callback(fail)
    with pytest.raises(ValueError, match="no"):
        peer.run()
    assert parts.calls[-2:] == ["end last started", "end first started"]


def test_failure_in_training_does_not_end_components(
    parts: Parts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process ends and with it all connections, so the others notice at once."""

    def fail(_: Any) -> bool:
        raise ValueError("no")

    monkeypatch.setattr(module.Trainer, "run", fail)
    monkeypatch.setattr(module, "assemble", lambda *_: peer_of(parts, tmp_path))
    status = Status(tmp_path / "status.json")
    assert module.run(cast(Any, None), tmp_path, tmp_path, status) == 1
    assert not [call for call in parts.calls if call.startswith("end ")]
    assert document(tmp_path)["error"] == f"ValueError: no; {tmp_path / 'peer.log'} has the traceback"


def test_a_status_that_cannot_be_written_is_a_failure(parts: Parts, tmp_path: Path) -> None:
    peer = peer_of(parts, tmp_path)
    peer.status.write_error = OSError("disk full")
    assert peer.run() == 1


def test_the_end_of_an_epoch_adds_up_its_trace(parts: Parts, tmp_path: Path) -> None:
    epoch = cast(EpochRecord, SimpleNamespace(epoch=4, dropped="", comm_s=1.5))
    peer, ended = peer_of(parts, tmp_path), list[EpochRecord]()
    peer.input_sums = cast(Any, SimpleNamespace(epoch_ended=ended.append))
    peer._epoch_ended(epoch, [], cast(IngressRecord, "read"))
    assert ended == [epoch]


def test_an_epoch_is_published_counted_announced_and_reported(parts: Parts, tmp_path: Path) -> None:
    epoch = cast(EpochRecord, SimpleNamespace(epoch=4, dropped="group of 1 of 2", comm_s=1.5))
    peer_of(parts, tmp_path)._epoch_ended(epoch, [], cast(IngressRecord, "read"))
    assert [call.partition(" ")[0] for call in parts.calls] == [
        "epoch", "counted", "announce", "flush", "round_ended",
    ]  # fmt: skip
    found = document(tmp_path)
    assert (found["epoch"], found["warnings"]) == (4, ["epoch 4 lost part of its round: group of 1 of 2"])
    assert found["recorded_warnings"] == [0]
    assert (found["data_position"], found["coverage"]) == (None, [])


def test_the_position_in_the_data_is_reported_with_an_epoch_and_every_few_seconds(
    parts: Parts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read(samples: int) -> None:
        spans = (Span(2, "s3://b/1.tar", samples - 1, samples),)
        peer._used(cast(Any, SimpleNamespace(cursor=Cursor(2, (), "s3://b/1.tar", samples), spans=spans)))

    def reported() -> int:
        return document(tmp_path)["data_position"]["samples"]

    at_s = [100.0]
    monkeypatch.setattr("experiments.peer.peer.time.monotonic", lambda: at_s[0])
    peer = peer_of(parts, tmp_path)
    peer.config = cast(Any, SimpleNamespace(**{**vars(peer.config), "shards": ("s3://b/1.tar",)}))
    peer.steps = cast(Any, SimpleNamespace(write=parts.note("step"), flush=parts.note("flush")))
    epoch = cast(EpochRecord, SimpleNamespace(epoch=4, dropped="", comm_s=1.5))
    read(3)
    peer._epoch_ended(epoch, [], cast(IngressRecord, "read"))
    assert document(tmp_path)["data_position"] == {"pass": 2, "done": [], "shard": 0, "samples": 3}
    read(4)
    peer._stepped(cast(Any, "a step"))
    assert (reported(), document(tmp_path)["coverage"]) == (3, [[0, "used", 2, 0, 2, 3]])  # too soon
    at_s[0] += 5.0
    peer._stepped(cast(Any, "a step"))
    assert (reported(), document(tmp_path)["coverage"]) == (
        4,
        [[0, "used", 2, 0, 2, 3], [1, "used", 2, 0, 3, 4]],
    )


def at(samples: int, shard: int = 0) -> dict[str, Any]:
    return {"pass": 2, "done": [], "shard": shard, "samples": samples}


def test_positions_at_the_ends_of_epochs_are_reported_from_the_first_one_on(
    parts: Parts, tmp_path: Path
) -> None:
    peer = peer_of(parts, tmp_path)
    peer.config = cast(Any, SimpleNamespace(**{**vars(peer.config), "shards": ("s3://b/1.tar",)}))
    peer.steps = cast(Any, SimpleNamespace(flush=parts.note("flush")))
    peer._join(took_over=False)
    begin = {"pass": 0, "done": [], "shard": None, "samples": 0}
    assert document(tmp_path)["epoch_positions"] == {"since": 3, "at": [[3, begin]]}
    for number in range(4, 40):
        epoch = cast(EpochRecord, SimpleNamespace(epoch=number, dropped="", comm_s=1.5))
        if number > 4:  # nothing was used in epoch 4
            cursor = Cursor(2, (), "s3://b/1.tar", number)
            peer._used(cast(Any, SimpleNamespace(cursor=cursor, spans=())))
        peer._epoch_ended(epoch, [], cast(IngressRecord, "read"))
        if number == 5:
            known = [[3, begin], [4, begin], [5, at(5)]]
            assert document(tmp_path)["epoch_positions"] == {"since": 3, "at": known}
    expected = [[number, at(number)] for number in range(8, 40)]
    assert document(tmp_path)["epoch_positions"] == {"since": 3, "at": expected}


@pytest.mark.parametrize(
    ("restored", "positions", "begins", "warned"),
    [
        (6, [[4, at(40)], [6, at(60)], [8, at(80)]], 60, False),
        (4, [[4, at(40)], [6, at(60)], [8, at(80)]], 40, False),  # the newest checkpoint was corrupt
        (5, [[4, at(40)], [6, at(60)]], 40, False),  # repeats rather than skips
        (3, [[4, at(40)]], None, True),
        (6, [[6, at(60, shard=1)]], None, True),  # there is no such shard
        (6, [[6, at(-1)]], None, True),
        (None, [[4, at(40)], [6, at(60)]], None, False),  # joins a living swarm
    ],
)
def test_a_restored_peer_begins_where_its_slot_was_at_the_end_of_that_epoch(
    parts: Parts,
    tmp_path: Path,
    restored: int | None,
    positions: list[Any],
    begins: int | None,
    warned: bool,
) -> None:
    peer = peer_of(parts, tmp_path)
    more = {
        "shards": ("s3://b/1.tar",),
        "data_position": at(99),
        "epoch_positions": {"since": 0, "at": positions},
    }
    peer.config = cast(Any, SimpleNamespace(**{**vars(peer.config), **more}))
    peer.checkpoints = cast(
        Any,
        SimpleNamespace(
            restored_epoch=restored,
            **{name: parts.note(name) for name in ("prepare", "begin", "training_ended", "wait_for_last")},
            serve=lambda: False,
        ),
    )
    assert peer.run() == 0
    told = [call for call in parts.calls if call.startswith("data from")]
    assert told == ([] if begins is None else [f"data from {Cursor(2, (), 's3://b/1.tar', begins)}"])
    if begins is not None:
        assert parts.calls.index("begin ready") < parts.calls.index(told[0]) < parts.calls.index("reading")
        assert document(tmp_path)["epoch_positions"] == {"since": 3, "at": [[3, at(begins)]]}
    warnings = document(tmp_path)["warnings"]
    assert warnings == (
        [
            f"the data goes on where the lost work ended: the position at the end of epoch {restored} is unknown"
        ]
        if warned
        else []
    )


@pytest.mark.parametrize("finished", [True, False])
def test_the_last_report_of_used_samples_is_marked_as_such(
    parts: Parts, tmp_path: Path, finished: bool
) -> None:
    parts.finished, parts.requested, parts.sizes = finished, not finished, {"s3://b/1.tar": 9}
    peer = peer_of(parts, tmp_path)
    peer.config = cast(Any, SimpleNamespace(**{**vars(peer.config), "shards": ("s3://b/1.tar",)}))
    for first, end in ((0, 4), (4, 8)):
        spans = (Span(0, "s3://b/1.tar", first, end),)
        peer._used(cast(Any, SimpleNamespace(cursor=Cursor(0, (), "s3://b/1.tar", end), spans=spans)))
    peer.run()
    position = document(tmp_path)["data_position"]
    assert position == {"pass": 0, "done": [], "shard": 0, "samples": 8}  # a replacement repeats nothing
    rows = [[0, "used", 0, 0, 0, 8], [1, "size", 0, 0, 0, 9], [2, "end", 0, 0, 0, 0]]
    assert document(tmp_path)["coverage"] == rows
    lines = (tmp_path / "coverage.csv").read_text().splitlines()
    assert lines[1:] == [",".join(map(str, ["r-a-0", *row])) for row in rows]


def test_plain_loop_downloads_no_state(parts: Parts, tmp_path: Path) -> None:
    peer = peer_of(parts, tmp_path)
    peer.optimizer = PlainOptimizer(torch.optim.SGD([torch.nn.Parameter(torch.ones(1))]), parts, 8)
    peer._join(took_over=True)
    assert document(tmp_path)["join"]["state_bytes"] == 0


def test_an_evaluation_during_training_is_this_peers_in_its_turn_and_before_the_last_epoch(
    parts: Parts, tmp_path: Path
) -> None:
    peer = peer_of(parts, tmp_path)
    peer.config = cast(Any, SimpleNamespace(slot="a", max_epochs=8, evaluate_every_epochs=2))
    begun: list[int] = []

    def begin(epoch: int, runner: object) -> bool:
        assert runner is parts
        begun.append(epoch)
        return True

    peer.periodic = cast(Any, SimpleNamespace(check=parts.note("checked"), begin=begin))
    for epoch in range(1, 9):
        peer._evaluate_a_copy(epoch)
    assert begun == [4]  # 2 and 6 are b's, and after 8 all evaluate
    assert parts.calls == ["checked"] * 7
    parts.last_epoch = 4
    peer._evaluate_a_copy(4)
    assert begun == [4]


@pytest.mark.parametrize(("evaluated", "published"), [(3, 0), (2, 1)])
def test_an_epoch_that_was_evaluated_during_training_is_not_evaluated_again(
    parts: Parts, tmp_path: Path, evaluated: int, published: int
) -> None:
    peer = peer_of(parts, tmp_path)
    peer.periodic = cast(Any, SimpleNamespace(stop=parts.note("stop"), evaluated=evaluated))
    peer.run()
    assert len([call for call in parts.calls if call.startswith("evaluation 3")]) == published
    assert parts.calls.count("stop 2.0") == 1
