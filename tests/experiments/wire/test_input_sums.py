"""Sums of a peer's trace on their way to the controller."""

from __future__ import annotations

import json
from typing import Any

import pytest

from experiments.wire.input_sums import from_json, to_json
from metrics.records import InputBatchRecord, InputOpRecord, InputTraceRecord

ROWS = [
    InputOpRecord("a", 0, "decode", 3, 0.1, None, 2**40),
    InputOpRecord("a", 7, "crop", 3, 1.0, 0.1 + 0.2, None),
    InputBatchRecord("a", 1, 10, 320, 4.0, 1.0, 0.5, -0.25, 1, 0),
    InputBatchRecord("a", 1, 10, None, None, None, None, None, None, None),
    InputTraceRecord("a", 2, 0, 7),
]


@pytest.mark.parametrize("row", ROWS)
def test_a_sum_arrives_as_it_was_sent(row: Any):
    assert from_json("a", json.loads(json.dumps(to_json(row)))) == row


def test_a_vm_speaks_for_itself_only():
    assert from_json("b", to_json(ROWS[4])) == InputTraceRecord("b", 2, 0, 7)


@pytest.mark.parametrize(
    "entry",
    [
        None, 7, "input_ops", [], [[]], ["events", 1], ["input_traces", 1, 2], ["input_traces", 1, 2, -1],
        ["input_traces", 1, 2, True], ["input_traces", 1, 2, 2**63], ["input_traces", 1, 2, None],
        ["input_ops", 1, "", 3, 0.1, None, None], ["input_ops", 1, "x" * 3000, 3, 0.1, None, None],
        ["input_ops", 1, "op", 3, float("nan"), None, None], ["input_ops", -1, "op", 3, 0.1, None, None],
    ],
)  # fmt: skip
def test_anything_else_is_none(entry: Any):
    assert from_json("a", entry) is None
