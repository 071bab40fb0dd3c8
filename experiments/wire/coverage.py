"""Which samples a peer used, as rows of its coverage.csv and, the newest ones, of its status.json."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from metrics.records import COVERAGE_END, COVERAGE_SIZE, COVERAGE_USED, CoverageRecord

IN_STATUS = 50  # rows in a status.json; earlier ones are in coverage.csv
MAX_ROWS = 200_000  # of a VM; a peer writes one or two every 5 s
MAX_PASS = 1_000_000
MAX_SAMPLES = 2**31  # of a shard
_KINDS = {COVERAGE_USED, COVERAGE_SIZE, COVERAGE_END}


def to_json(row: CoverageRecord) -> list[Any]:
    """Return a row without its VM, as in a status.json."""
    return [row.number, row.what, row.pass_number, row.shard, row.first, row.end]


def from_json(vm: str, entry: Any, shards: int) -> CoverageRecord | None:
    """Parse what `to_json` returned for a run of `shards` shards; None if it is anything else."""
    if not isinstance(entry, Sequence) or isinstance(entry, str) or len(entry) != 6:
        return None
    number, what, pass_number, shard, first, end = entry
    if any(type(value) is not int for value in (number, pass_number, shard, first, end)):
        return None
    row = CoverageRecord(vm, number, what, pass_number, shard, first, end)
    return row if is_plausible(row, shards) else None


def is_plausible(row: CoverageRecord, shards: int) -> bool:
    """Whether a peer of a run of `shards` shards could have written this row."""
    if not (
        isinstance(row.what, str)
        and row.what in _KINDS
        and 0 <= row.number < MAX_ROWS
        and 0 <= row.pass_number < MAX_PASS
        and 0 <= row.shard < shards
        and 0 <= row.first <= row.end <= MAX_SAMPLES
    ):
        return False
    if row.what == COVERAGE_USED:
        return row.first < row.end
    if row.what == COVERAGE_SIZE:
        return row.pass_number == 0 and row.first == 0 < row.end
    return row.pass_number == row.shard == row.first == row.end == 0
