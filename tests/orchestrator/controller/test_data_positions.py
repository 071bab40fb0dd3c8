"""The controller keeps where each slot is in its data, and passes it on to the slot's next peer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from cloud.provider import Observed
from metrics.store.database import RunStore
from orchestrator.controller.data_positions import DataPositions, last_position
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
