"""The controller keeps where each slot is in its data, and passes it on to the slot's next peer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from cloud.provider import Observed
from metrics.store.database import RunStore
from orchestrator.controller.data_positions import DataPositions, last_position, positions_by_epoch
from orchestrator.core.state import Slot


def seen(vm: str, position: Any) -> Observed:
    status = {"phase": "training", "data_position": position}
    return Observed(vm, "running", "gcp/us-central1", "10.0.0.1", 1.0, 2.0, None, "", None, status)


def at(samples: int) -> dict[str, Any]:
    return {"pass": 0, "done": [], "shard": 1, "samples": samples}


def test_the_last_position_of_a_slots_own_vm_is_kept(tmp_path: Path) -> None:
    before = [Slot("a", vm="r-a-0"), Slot("b", vm="r-b-0")]
    after = [Slot("a", ending="r-a-0", vm="r-a-1"), Slot("b", ending="r-b-0")]
    with RunStore.open_writer(tmp_path / "run.db") as store:
        assert last_position(store, "a") is None
        positions = DataPositions(store)
        positions.write([seen("r-a-0", at(3)), seen("r-b-0", at(5)), seen("r-c-0", at(9))], before)
        positions.write(
            [seen("r-a-0", at(4)), seen("r-b-0", at(6))], after
        )  # a's VM was replaced; b's is ending
        assert (last_position(store, "a"), last_position(store, "b")) == (at(3), at(6))
        DataPositions(store).write(
            [seen("r-a-1", None), seen("r-b-0", {"pass": -1})], after
        )  # a new controller
        assert store.meta("data_positions") == {"a": at(3), "b": at(6)}
        DataPositions(store).write([seen("r-a-1", at(8))], after)
        assert last_position(store, "a") == at(8)


def reports(vm: str, since: int, epochs: dict[int, int], stored: tuple[int, ...] = ()) -> Observed:
    status = {
        "phase": "training",
        "epoch": max(epochs),
        "epoch_positions": {"since": since, "at": [[n, at(samples)] for n, samples in epochs.items()]},
        "checkpoints": {"stored": [{"epoch": epoch} for epoch in stored], "restored": None},
    }
    return Observed(vm, "running", "gcp/us-central1", "10.0.0.1", 1.0, 2.0, None, "", None, status)


def test_positions_by_epoch_survive_a_loss_and_those_of_lost_work_do_not(tmp_path: Path) -> None:
    first, second = [Slot("a", vm="r-a-0")], [Slot("a", ending="r-a-0", vm="r-a-1")]
    with RunStore.open_writer(tmp_path / "run.db") as store:
        assert positions_by_epoch(store, "a") is None
        DataPositions(store).write([reports("r-a-0", 0, {0: 0, 1: 10})], first)
        DataPositions(store).write([reports("r-a-0", 0, {1: 10, 2: 20, 3: 30})], first)
        known = {"since": 0, "at": [[0, at(0)], [1, at(10)], [2, at(20)], [3, at(30)]]}
        assert positions_by_epoch(store, "a") == known
        again = DataPositions(store)
        broken = reports("r-a-1", 2, {2: 20})
        broken.status["epoch_positions"]["at"][0][1]["samples"] = -1
        again.write([reports("r-a-0", 0, {4: 40}), broken, seen("r-x-0", at(3))], second)
        assert positions_by_epoch(store, "a") == known
        again.write([reports("r-a-1", 2, {2: 20, 3: 35})], second)
        DataPositions(store).write([reports("r-a-1", 2, {3: 35, 4: 45})], second)
        after = [[0, at(0)], [1, at(10)], [2, at(20)], [3, at(35)], [4, at(45)]]
        assert positions_by_epoch(store, "a") == {"since": 2, "at": after}


def test_the_epoch_of_a_stored_checkpoint_is_kept(tmp_path: Path) -> None:
    slots = [Slot("a", vm="r-a-0"), Slot("b", vm="r-b-0")]
    with RunStore.open_writer(tmp_path / "run.db") as store:
        positions = DataPositions(store)
        for epoch in range(300):
            stored = (33,) if 33 <= epoch < 60 else (2**40,)  # an epoch that it has not reached is none
            told = {epoch: epoch}
            positions.write([reports("r-a-0", 0, told, stored), reports("r-b-0", 0, told)], slots)
        for slot in "ab":
            kept = positions_by_epoch(store, slot)
            assert kept is not None
            epochs = [entry[0] for entry in kept["at"]]
            assert 33 in epochs
            assert not {31, 35} & set(epochs)
            assert epochs[-32:] == list(range(268, 300))
