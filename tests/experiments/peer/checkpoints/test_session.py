"""A peer's checkpoints against a store: what is written, by whom, what a peer begins with, and what goes wrong."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from checkpoint_rig import KEYS, RUN, TO, equal_bits, manifest, plain_files, saved, trained
from moto import mock_aws

from cloud.storage.client import make_client
from cloud.storage.errors import StoreFullError
from experiments.checkpoints import download as download_module
from experiments.checkpoints.layout import run_prefix
from experiments.checkpoints.store import CheckpointStore
from experiments.checkpoints.upload import upload
from experiments.peer.checkpoints import writer as writer_module
from experiments.peer.checkpoints.report import CheckpointReport
from experiments.peer.checkpoints.restore import RestoreError, Restorer
from experiments.peer.checkpoints.schedule import Checkpointing, Start
from experiments.peer.checkpoints.session import Checkpoints
from experiments.peer.checkpoints.writer import CheckpointWriter, Trained
from experiments.peer.status import Status

PREFIX = run_prefix(TO, RUN)
SHA = "f" * 64


@pytest.fixture
def bucket() -> Iterator[None]:
    with mock_aws():
        make_client(**KEYS).create_bucket(Bucket="bucket")
        yield
        store.cache_clear()


@dataclass
class FakePeer:
    """Optimizer and membership of a peer, and its checkpoints."""

    folder: Path
    slot: str = "a"
    every_epochs: int | None = 2
    every_s: float | None = None
    start: Start | None = None
    others: frozenset[str] = frozenset()  # slots that train
    train: bool = False  # whether others train when this peer comes
    seed: int = 0
    now_s: float = 0.0
    calls: list[Any] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self.task, self.chosen, extra = trained("adam", 2, self.seed)
        self.extra = torch.nn.ParameterList(extra.values())
        self.optimizer: Any = SimpleNamespace(local_epoch=0, lineage="cafe", start_at=self._start_at)
        membership: Any = SimpleNamespace(
            slots_in=lambda *phases: self.others,
            others_train=lambda: self.train,
            starts_at=lambda epoch: self.calls.append(("announced", epoch)),
        )
        config: Any = SimpleNamespace(
            run_id=RUN, vm=f"{RUN}-{self.slot}-1", slot=self.slot, target_batch_size=64, task={"sha256": SHA},
            optimizer={"name": "adam", "lr": 0.01}, schedule={},
        )  # fmt: skip
        settings = Checkpointing(PREFIX, 2, ("a", "b"), self.every_epochs, self.every_s, self.start)
        report = CheckpointReport(Status(self.folder / "status.json"))
        self.trained = Trained(self.task, lambda: self.chosen, self.extra)
        self.writer = CheckpointWriter(
            store(), self.trained, self.folder / "checkpoint", 2, report, unix_s=lambda: 1000.0 + self.now_s
        )
        self.restorer = Restorer(
            store, PREFIX, self.start, self.folder / "restored", report.warn, task_sha256=SHA
        )
        self.checkpoints = Checkpoints(
            config, settings, self.optimizer, membership, self.trained, report, self.writer, self.restorer,
            ran="small", unix_s=lambda: 1000.0 + self.now_s,
        )  # fmt: skip

    def _start_at(self, epoch: int, lineage: str) -> None:
        self.calls.append(("start", epoch, lineage))
        self.optimizer.local_epoch = epoch

    def ended(self, epoch: int) -> None:
        """An epoch ends, and what it stores is stored."""
        self.optimizer.local_epoch = epoch
        self.checkpoints.epoch_ended(epoch)
        self.writer.wait(lambda: False)

    @property
    def status(self) -> dict[str, Any]:
        return json.loads((self.folder / "status.json").read_text())


@cache
def store(prefix: str = PREFIX) -> CheckpointStore:
    """A store, whose client takes a while to make."""
    return CheckpointStore(prefix, KEYS)


def names() -> list[str]:
    return [one.name for one in store().list() if one.problem is None]


def test_epochs_that_are_due_are_stored_and_old_ones_deleted(bucket: None, tmp_path: Path) -> None:
    peer = FakePeer(tmp_path)
    for epoch in range(1, 8):
        peer.ended(epoch)
    assert names() == ["epoch-00000006-run-1-a-1", "epoch-00000004-run-1-a-1"]
    newest = store().newest()
    assert newest is not None
    assert (newest.samples, newest.slot, newest.task_sha256, newest.parent) == (6 * 64, "a", SHA, None)
    shown = peer.status["checkpoints"]
    assert [entry["epoch"] for entry in shown["stored"]] == [2, 4, 6]
    assert shown["stored"][-1]["bytes"] == newest.size_bytes == shown["stored"][-1]["sent_bytes"]
    assert shown["error"] is None
    assert not (tmp_path / "checkpoint").exists()


def test_one_peer_writes_and_the_next_one_when_it_is_gone(bucket: None, tmp_path: Path) -> None:
    first = FakePeer(tmp_path / "a", every_epochs=None, every_s=60.0)
    peer = FakePeer(tmp_path / "b", slot="b", others=frozenset({"a"}), every_epochs=None, every_s=60.0)
    first.now_s = peer.now_s = 70.0
    first.ended(1)
    peer.ended(1)
    assert names() == ["epoch-00000001-run-1-a-1"]
    peer.others, peer.now_s = frozenset({"c"}), 100.0
    peer.ended(2)
    assert names() == ["epoch-00000001-run-1-a-1"], "it is 30 s old"
    peer.now_s = 130.0
    peer.ended(3)
    assert names() == ["epoch-00000003-run-1-b-1", "epoch-00000001-run-1-a-1"]


@pytest.mark.parametrize("every", [{"every_s": 600.0, "every_epochs": None}, {"every_epochs": 6}])
def test_a_writer_that_is_replaced_more_often_than_one_is_due(
    every: dict[str, Any], bucket: None, tmp_path: Path
) -> None:
    """Slot a writes. Each of its peers joins after an epoch and is lost after five; b trains throughout."""
    b = FakePeer(tmp_path / "b", slot="b", others=frozenset({"a"}), **every)
    stored: list[int] = []
    for life in range(4):
        a = FakePeer(tmp_path / f"a{life}", others=frozenset({"b"}), train=life > 0, **every)
        a.now_s = 500.0 * life
        a.checkpoints.begin("joined" if life else "ready")
        for epoch in range(5 * life + 1, 5 * life + 6):
            a.now_s = b.now_s = 100.0 * epoch
            a.ended(epoch)
            b.ended(epoch)
            newest = store().newest()
            stored += [newest.epoch] if newest is not None and newest.epoch not in stored else []
    assert stored == [6, 12, 18]


def test_the_store_is_not_read_by_the_trainers_thread(
    bucket: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    peer, go_on, readers = FakePeer(tmp_path), threading.Event(), list[threading.Thread]()

    def slowly() -> None:
        readers.append(threading.current_thread())
        assert go_on.wait(10)

    monkeypatch.setattr(peer.writer._store, "newest", slowly)
    peer.checkpoints.begin("joined")
    for epoch in (7, 8, 9):
        peer.checkpoints.epoch_ended(epoch)
    go_on.set()
    peer.writer.wait(lambda: False)
    assert [thread.name for thread in readers] == ["checkpoint"]
    assert names() == ["epoch-00000007-run-1-a-1"]
    assert peer.status["warnings"] == []


def test_the_last_epoch_is_stored_once(bucket: None, tmp_path: Path) -> None:
    peer = FakePeer(tmp_path)
    peer.ended(2)
    peer.optimizer.local_epoch = 3
    peer.checkpoints.training_ended()
    peer.checkpoints.wait_for_last(threading.Event())
    assert names() == ["epoch-00000003-run-1-a-1", "epoch-00000002-run-1-a-1"]
    peer.ended(4)
    peer.checkpoints.training_ended()
    assert not peer.writer.busy, "it was due"
    other = FakePeer(tmp_path / "b", slot="b", others=frozenset({"a"}))
    other.optimizer.local_epoch = 5
    other.checkpoints.training_ended()
    other.checkpoints.wait_for_last(threading.Event())
    assert names()[0] == "epoch-00000004-run-1-a-1"


def test_a_peer_that_is_done_stores_the_last_one_if_the_writer_is_lost(bucket: None, tmp_path: Path) -> None:
    b = FakePeer(tmp_path / "b", slot="b", others=frozenset({"a"}))
    b.optimizer.local_epoch = 3
    b.checkpoints.training_ended()
    b.checkpoints.wait_for_last(threading.Event())
    assert b.checkpoints.serve(), "a still stores it"
    b.others = frozenset()
    assert b.checkpoints.serve()
    b.writer.wait(lambda: False)
    assert names() == ["epoch-00000003-run-1-b-1"]
    assert not b.checkpoints.serve()
    late = FakePeer(tmp_path / "c")
    late.optimizer.local_epoch = 3
    assert late.checkpoints.serve()
    late.writer.wait(lambda: False)
    assert not late.checkpoints.serve()
    assert names() == ["epoch-00000003-run-1-b-1"], "it is there"


def test_a_peer_that_is_done_does_not_try_for_ever(
    bucket: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    peer = FakePeer(tmp_path)
    peer.optimizer.local_epoch = 3

    def full(*_: Any, **__: Any) -> Any:
        raise StoreFullError("no space")

    monkeypatch.setattr(writer_module, "upload", full)
    tried: list[bool] = []
    for _ in range(4):
        tried.append(peer.checkpoints.serve())
        peer.writer.wait(lambda: False)
    assert tried == [True, True, False, False]
    assert names() == []


def test_a_failed_upload_is_told_and_training_goes_on(
    bucket: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    peer = FakePeer(tmp_path)

    def full(*_: Any, **__: Any) -> Any:
        raise StoreFullError("no space for s3://bucket/x (507); free some and retry")

    with monkeypatch.context() as patch:
        patch.setattr(writer_module, "upload", full)
        peer.ended(2)
    told = "no space for s3://bucket/x (507); free some and retry"
    assert peer.status["checkpoints"]["error"] == told
    failed = {"count": 1, "epoch": 2, "error": told}
    assert peer.status["checkpoints"]["failed"] == failed
    assert peer.status["warnings"] == [f"the checkpoint of epoch 2 was not stored: {told}"]
    peer.optimizer.local_epoch = 3
    peer.checkpoints.training_ended()
    peer.checkpoints.wait_for_last(threading.Event())
    assert names() == ["epoch-00000003-run-1-a-1"]
    assert (peer.status["checkpoints"]["error"], peer.status["checkpoints"]["failed"]) == (None, failed)


def test_what_is_still_being_stored_makes_the_next_one_wait(
    bucket: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    peer, go_on = FakePeer(tmp_path), threading.Event()

    def slowly(*args: Any) -> Any:
        assert go_on.wait(10)
        return upload(*args)

    monkeypatch.setattr(writer_module, "upload", slowly)
    peer.checkpoints.epoch_ended(2)
    with torch.no_grad():
        before = peer.task.model[1].weight.clone()
        peer.task.model[1].weight.zero_()  # training goes on
    peer.checkpoints.epoch_ended(4)
    assert peer.status["warnings"] == [
        "no checkpoint of epoch 4 was made, because the last one was still being stored; make them less often "
        "(checkpoint.every_epochs, every_s)"
    ]
    go_on.set()
    peer.writer.wait(lambda: False)
    assert names() == ["epoch-00000002-run-1-a-1"]
    successor = FakePeer(tmp_path / "next", seed=1)
    successor.checkpoints.prepare()
    successor.checkpoints.begin("ready")
    assert equal_bits(successor.task.model[1].weight, before)


def test_a_peer_begins_with_the_newest_when_nobody_trains(bucket: None, tmp_path: Path) -> None:
    first = FakePeer(tmp_path / "a")
    for epoch in (2, 4):
        first.ended(epoch)
    peer = FakePeer(tmp_path / "b", slot="b", seed=1)
    peer.checkpoints.prepare()
    assert peer.calls == [("announced", 4)]
    peer.checkpoints.begin("ready")
    assert peer.calls[1:] == [("announced", 4), ("start", 4, "cafe")]
    assert (peer.checkpoints.restored_epoch, first.checkpoints.restored_epoch) == (4, None)
    for own, theirs in zip(peer.task.model.parameters(), first.task.model.parameters(), strict=True):
        assert equal_bits(own, theirs)
        assert equal_bits(peer.chosen.state[own]["exp_avg"], first.chosen.state[theirs]["exp_avg"])
    assert equal_bits(peer.extra[0], first.extra[0])
    shown = peer.status["checkpoints"]["restored"]
    assert (shown["name"], shown["prefix"], shown["epoch"]) == ("epoch-00000004-run-1-a-1", PREFIX, 4)
    assert list((tmp_path / "b" / "restored").iterdir()) == []
    peer.ended(6)
    newest = store().newest()
    assert newest is not None
    assert (newest.epoch, newest.parent, newest.samples) == (6, "epoch-00000004-run-1-a-1", 6 * 64)


def test_a_peer_that_joins_takes_over_from_the_others(bucket: None, tmp_path: Path) -> None:
    FakePeer(tmp_path / "a").ended(2)
    peer = FakePeer(tmp_path / "b", slot="b", train=True)
    peer.checkpoints.prepare()
    peer.checkpoints.begin("joined")
    assert peer.calls == []
    assert peer.checkpoints.restored_epoch is None
    lost = FakePeer(tmp_path / "c", slot="b", train=True)
    lost.checkpoints.prepare()
    lost.checkpoints.begin("timeout")
    assert lost.calls[-1] == ("start", 2, "cafe"), "they were lost while it waited"


def test_nothing_stored_begins_from_nothing(bucket: None, tmp_path: Path) -> None:
    peer = FakePeer(tmp_path)
    peer.checkpoints.prepare()
    peer.checkpoints.begin("ready")
    assert peer.calls == []
    assert not (peer.folder / "restored").exists()


def spoil(name: str) -> None:
    """Change a byte of a stored model."""
    url = store().url_of(name, "model/model.safetensors")
    client = store().client()
    body = client.get_object(Bucket=url.bucket, Key=url.key)["Body"].read()
    client.put_object(Bucket=url.bucket, Key=url.key, Body=body[:-1] + bytes([body[-1] ^ 1]))


def test_an_older_one_replaces_a_corrupt_one_and_no_good_one_is_an_error(
    bucket: None, tmp_path: Path
) -> None:
    first = FakePeer(tmp_path / "a")
    for epoch in (2, 4):
        first.ended(epoch)
    spoil("epoch-00000004-run-1-a-1")
    peer = FakePeer(tmp_path / "b", slot="b")
    peer.checkpoints.prepare()
    assert peer.calls == [("announced", 2)]
    (warning,) = peer.status["warnings"]
    assert warning.startswith(
        f"a checkpoint was passed over: {PREFIX}/epoch-00000004-run-1-a-1/model/model.safetensors"
    )
    assert "SHA-256" in warning
    spoil("epoch-00000002-run-1-a-1")
    with pytest.raises(
        RestoreError, match=r"none of the checkpoints .*epoch-00000004-.*; s3:.*epoch-00000002-"
    ):
        FakePeer(tmp_path / "c", slot="b").checkpoints.prepare()


def test_a_checkpoint_that_lost_a_file_is_a_problem_and_an_unfinished_upload_is_none(
    bucket: None, tmp_path: Path
) -> None:
    def lose(name: str, file: str) -> None:
        url = store().url_of(name, file)
        store().client().delete_object(Bucket=url.bucket, Key=url.key)

    first = FakePeer(tmp_path / "a")
    for epoch in (2, 4):
        first.ended(epoch)
    lose("epoch-00000004-run-1-a-1", "state/optimizer.safetensors")
    peer = FakePeer(tmp_path / "b", slot="b")
    peer.checkpoints.prepare()
    assert peer.calls == [("announced", 2)]
    (warning,) = peer.status["warnings"]
    assert "epoch-00000004-run-1-a-1 lacks its file state/optimizer.safetensors" in warning
    lose("epoch-00000002-run-1-a-1", "model/model.safetensors")
    with pytest.raises(RestoreError, match=r"lacks its file state/.*lacks its file model/"):
        FakePeer(tmp_path / "c").checkpoints.prepare()
    for name in ("epoch-00000002-run-1-a-1", "epoch-00000004-run-1-a-1"):
        lose(name, "manifest.json")
    nothing = FakePeer(tmp_path / "d")
    nothing.checkpoints.prepare()
    assert nothing.calls == []


def test_a_download_that_retention_overtakes_begins_again_with_the_newest(
    bucket: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, fetch_file, fetched = FakePeer(tmp_path / "a"), download_module._fetch, list[str]()
    first.ended(2)

    def slowly(source: Any, name: str, *rest: Any) -> bool:
        fetched.append(name[:14])
        if len(fetched) == 2:
            for epoch in (4, 6):  # the swarm goes on, and keeps two
                first.ended(epoch)
        return fetch_file(source, name, *rest)

    monkeypatch.setattr(download_module, "_fetch", slowly)
    peer = FakePeer(tmp_path / "b", slot="b")
    peer.checkpoints.prepare()
    assert fetched[1:3] == ["epoch-00000002", "epoch-00000006"]
    assert peer.calls == [("announced", 6)]
    assert not (peer.folder / "status.json").exists(), "nothing was wrong"


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("state.json", '{"format":1,"optimizer":"Adam","groups":[{}],"numbers":{},"about":{}}'),
        ("optimizer.safetensors", "junk"),
    ],
)
def test_an_older_one_replaces_one_that_cannot_be_loaded(
    bucket: None, tmp_path: Path, file: str, content: str
) -> None:
    first = FakePeer(tmp_path / "a")
    first.ended(2)
    saved(tmp_path / "made")
    (tmp_path / "made" / "state" / file).write_text(content)
    upload(store(), tmp_path / "made", manifest(4))
    peer = FakePeer(tmp_path / "b", slot="b")
    peer.checkpoints.prepare()
    peer.checkpoints.begin("ready")
    assert peer.calls[-1] == ("start", 2, "cafe")
    (warning,) = peer.status["warnings"]
    assert "epoch-00000004-run-1-a-1 cannot be loaded" in warning
    assert peer.status["checkpoints"]["restored"]["epoch"] == 2
    store().delete(["epoch-00000002-run-1-a-1"])
    last = FakePeer(tmp_path / "c")
    last.checkpoints.prepare()
    with pytest.raises(RestoreError, match="can be used: epoch-00000004-run-1-a-1 cannot be loaded"):
        last.checkpoints.begin("ready")


def test_retention_keeps_what_is_stored_after_a_greater_epoch_was_passed_over(
    bucket: None, tmp_path: Path
) -> None:
    first = FakePeer(tmp_path / "a")
    for epoch in (2, 8):
        first.ended(epoch)
    spoil("epoch-00000008-run-1-a-1")
    peer = FakePeer(tmp_path / "b", slot="b", now_s=10.0)
    peer.writer._keep = 1
    peer.checkpoints.prepare()
    peer.checkpoints.begin("ready")
    peer.ended(4)
    assert names() == ["epoch-00000008-run-1-a-1", "epoch-00000004-run-1-b-1"]
    successor = FakePeer(tmp_path / "c")
    successor.checkpoints.prepare()
    assert successor.calls == [("announced", 4)]


def test_a_run_starts_from_the_checkpoint_of_another(bucket: None, tmp_path: Path) -> None:
    other = run_prefix(TO, "run-0")
    kept = plain_files(tmp_path / "kept", 1)
    upload(store(other), kept, manifest(7, "run-0-a-1", run_id="run-0", samples=100))
    start = Start(other, "epoch-00000007-run-0-a-1")
    peer = FakePeer(tmp_path / "a", start=start)
    peer.checkpoints.prepare()
    assert peer.calls == [("announced", 7)]
    with pytest.raises(RestoreError, match="epoch-00000007-run-0-a-1 cannot be loaded"):
        peer.checkpoints.begin("ready")
    missing = FakePeer(tmp_path / "b", start=Start(other, "epoch-00000009-x"))
    with pytest.raises(
        RestoreError, match=r"cannot start from the checkpoint it was given.*epoch-00000009-x"
    ):
        missing.checkpoints.prepare()
    FakePeer(tmp_path / "c").ended(8)
    own = FakePeer(tmp_path / "d", start=start)
    own.checkpoints.prepare()
    assert own.calls == [("announced", 8)], "the run's own one is newer"


def test_a_stopped_peer_stops_storing(bucket: None, tmp_path: Path) -> None:
    peer = FakePeer(tmp_path)
    peer.writer._stopped.set()
    peer.ended(2)
    peer.checkpoints.close()
    assert names() == []
    assert not (peer.folder / "status.json").exists(), "nothing to tell"
