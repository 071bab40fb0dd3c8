"""Join records from status.json, valid or not, give at most one row per VM."""

from __future__ import annotations

import math
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloud.provider import Observed
from metrics.records import JoinRecord
from metrics.store.database import RunStore
from orchestrator.controller.joins import Joins, join_of

VM = "r-a-1"
RECORD = JoinRecord(VM, 1_000_000.5, 12.25, 3_000_000, 4, "r-b-0", 1)


def seen(join: Any, vm: str = VM) -> Observed:
    return Observed(
        vm,
        "running",
        "gcp/us-central1",
        "10.0.0.1",
        1.0,
        2.0,
        None,
        "",
        None,
        {"phase": "training", "join": join},
    )


def test_each_vm_has_one_join_row(tmp_path: Path) -> None:
    other = JoinRecord("r-b-0", 5.0, 0.0, None, 0)
    with RunStore.open_writer(tmp_path / "run.db") as store:
        joins = Joins(store)
        for _ in range(3):
            joins.write([seen(asdict(RECORD)), seen(None, "r-c-0"), seen(asdict(other), "r-b-0")])
        Joins(store).write([seen(asdict(RECORD))])  # after a restart
        assert store.records("joins") == [RECORD, other]


@pytest.mark.parametrize(
    "wrong",
    [
        {"vm": "r-a-0"}, {"at_s": "now"}, {"at_s": math.nan}, {"at_s": math.inf}, {"at_s": -1.0}, {"at_s": True},
        {"state_s": None}, {"state_bytes": 1.5}, {"state_bytes": -1}, {"state_bytes": 2**63}, {"from_epoch": "4"},
        {"more": 1}, {"donor": 1}, {"donor": "x" * 201}, {"resumed": -1}, {"resumed": True}, {"resumed": 2**63},
    ],
)  # fmt: skip
def test_invalid_join_entries_give_no_row(tmp_path: Path, wrong: dict[str, Any]) -> None:
    with RunStore.open_writer(tmp_path / "run.db") as store:
        Joins(store).write([seen({**asdict(RECORD), **wrong})])
        assert store.records("joins") == []


@given(
    st.recursive(
        st.none() | st.integers() | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    )
)
def test_other_values_are_no_join_record(said: Any) -> None:
    assert join_of(VM, said) is None
