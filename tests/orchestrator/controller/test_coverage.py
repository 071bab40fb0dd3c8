"""The controller stores which samples peers used, and hostile reports cannot fill its store."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cloud.provider import Observed
from experiments.wire.coverage import IN_STATUS, MAX_ROWS
from metrics.records import CoverageRecord
from metrics.store.database import RunStore
from orchestrator.controller.coverage import Coverage
from orchestrator.controller.finish import read_coverage

HEADER = "vm,number,what,pass_number,shard,first,end\n"


def seen(vm: str, coverage: Any) -> Observed:
    status = {"phase": "training", "coverage": coverage}
    return Observed(vm, "running", "gcp/us-central1", "10.0.0.1", 1.0, 2.0, None, "", None, status)


def row(number: int) -> list[Any]:
    return [number, "used", 0, 1, number, number + 1]


def stored(store: RunStore) -> list[tuple[str, int]]:
    return [(one.vm, one.number) for one in store.records("coverage")]


def test_each_row_is_stored_once_also_by_the_next_controller(tmp_path: Path) -> None:
    with RunStore.open_writer(tmp_path / "run.db") as store:
        store.set_meta("training_shards", 2)
        coverage = Coverage(store)
        coverage.write([seen("r-a-0", [row(0), row(1)]), seen("r-b-0", [row(0)])])
        coverage.write([seen("r-a-0", [row(0), row(1), row(2)]), seen("r-b-0", None)])
        Coverage(store).write([seen("r-a-0", [row(2), row(3)])])
        assert stored(store) == [("r-a-0", 0), ("r-a-0", 1), ("r-b-0", 0), ("r-a-0", 2), ("r-a-0", 3)]


def test_a_run_of_before_these_reports_stores_none(tmp_path: Path) -> None:
    with RunStore.open_writer(tmp_path / "run.db") as store:
        Coverage(store).write([seen("r-a-0", [row(0)])])
        assert stored(store) == []


@pytest.mark.parametrize(
    "hostile", [7, "x", {}, [None], [[]], [[MAX_ROWS, "used", 0, 0, 0, 1]], [[0, "used", 0, 2, 0, 1]]]
)
def test_an_invalid_report_changes_nothing_and_hides_no_other(tmp_path: Path, hostile: Any) -> None:
    with RunStore.open_writer(tmp_path / "run.db") as store:
        store.set_meta("training_shards", 2)
        Coverage(store).write([seen("r-a-0", hostile), seen("r-b-0", [row(0)])])
        assert stored(store) == [("r-b-0", 0)]


def test_only_the_newest_rows_of_a_status_are_read(tmp_path: Path) -> None:
    with RunStore.open_writer(tmp_path / "run.db") as store:
        store.set_meta("training_shards", 2)
        Coverage(store).write([seen("r-a-0", [row(number) for number in range(1400)])])
        assert len(stored(store)) == IN_STATUS


def test_the_file_of_the_end_fills_what_was_missed(tmp_path: Path) -> None:
    path = tmp_path / "coverage.csv"
    path.write_text(HEADER + "".join(f"x,{n},used,0,1,{n},{n + 1}\n" for n in range(3)) + "x,3,end,0,")
    with RunStore.open_writer(tmp_path / "run.db") as store:
        store.set_meta("training_shards", 2)
        Coverage(store).write([seen("r-a-0", [row(2)])])
        store.append("coverage", read_coverage(path, "r-a-0", shards=2))
        assert sorted(store.records("coverage"), key=lambda one: one.number) == [
            CoverageRecord("r-a-0", n, "used", 0, 1, n, n + 1) for n in range(3)
        ]


@pytest.mark.parametrize("line", ["x,0,used,0,2,0,1", "x,0,used,0,0,1,1", "x,a,used,0,0,0,1", "x,0,,0,0,0,1"])
def test_an_invalid_file_is_refused(tmp_path: Path, line: str) -> None:
    path = tmp_path / "coverage.csv"
    path.write_text(f"{HEADER}{line}\n")
    with pytest.raises(ValueError, match=r"coverage\.csv"):
        list(read_coverage(path, "r-a-0", shards=2))
