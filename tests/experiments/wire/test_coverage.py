"""Reports of used samples come from VMs, which may be broken or hostile."""

from __future__ import annotations

import json
from typing import Any

import pytest

from cloud.vm_report import status_of
from experiments.wire.coverage import MAX_PASS, MAX_ROWS, MAX_SAMPLES, from_json, to_json
from metrics.records import CoverageRecord

GOOD = [3, "used", 1, 4, 10, 20]


@pytest.mark.parametrize("entry", [GOOD, [0, "size", 0, 4, 0, 9], [9, "end", 0, 0, 0, 0]])
def test_a_row_survives_a_status(entry: list[Any]) -> None:
    reported = status_of(json.dumps({"coverage": [entry]}))["coverage"][0]
    row = from_json("r-a-0", reported, 5)
    assert row == CoverageRecord("r-a-0", *entry)
    assert row is not None
    assert to_json(row) == entry


@pytest.mark.parametrize(
    "entry",
    [
        None, 7, "123456", {}, [], GOOD[:5], [*GOOD, 1], [True, *GOOD[1:]], [-1, *GOOD[1:]], [MAX_ROWS, *GOOD[1:]],
        [3, ["used"], *GOOD[2:]], [3, "gone", *GOOD[2:]], [3, None, *GOOD[2:]], [3, "used", MAX_PASS, 4, 10, 20],
        [3, "used", 1, 5, 10, 20], [3, "used", 1, -1, 10, 20], [3, "used", 1, 4, 20, 20], [3, "used", 1, 4, 21, 20],
        [3, "used", 1, 4, 0, MAX_SAMPLES + 1], [3, "used", 1, 4, 1.0, 20], [3, "used", 1, 4, "1", 20],
        [3, "size", 0, 4, 0, 0], [3, "size", 1, 4, 0, 9], [3, "end", 0, 0, 0, 1],
    ],
)  # fmt: skip
def test_an_invalid_row_is_none(entry: Any) -> None:
    assert from_json("r-a-0", GOOD, 5) is not None
    assert from_json("r-a-0", entry, 5) is None
