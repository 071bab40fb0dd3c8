"""A slot's position in its data: what a peer reports is what its replacement starts from."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloud.storage.samples import Cursor
from cloud.vm_report import status_of
from experiments.peer.training.data_position import cursor_at, position_of
from experiments.wire.data_position import MAX_RUNS, DataPosition

SHARDS = tuple(f"s3://b/train-{n:03}.tar" for n in range(12))


@given(
    st.integers(0, 9),
    st.sets(st.sampled_from(SHARDS)),
    st.sampled_from(["", *SHARDS]),
    st.integers(0, 5000),
    st.permutations(SHARDS),
)
def test_a_reported_position_is_the_cursor(
    pass_number: int, done: set[str], shard: str, samples: int, listed: list[str]
) -> None:
    at = Cursor(pass_number, tuple(done), shard, samples if shard else 0)
    document = position_of(at, listed).to_json()
    reported = status_of(json.dumps({"data_position": document}))["data_position"]
    found = cursor_at(reported, SHARDS)
    assert (found.epoch, set(found.done), found.shard, found.samples) == (at.epoch, done, shard, at.samples)


def test_shards_of_another_experiment_are_left_out() -> None:
    at = Cursor(1, (SHARDS[0], "s3://other/0.tar"), "s3://other/1.tar", 7)
    assert position_of(at, SHARDS) == DataPosition(1, ((0, 0),), None, 0)


def test_a_position_with_too_many_runs_is_not_reported() -> None:
    done = tuple((2 * n, 2 * n) for n in range(MAX_RUNS + 1))
    assert DataPosition(0, done, None, 0).to_json() is None
    assert DataPosition(0, done[1:], None, 0).to_json() is not None


GOOD = {"pass": 0, "done": [0, 3, 5, 5], "shard": 4, "samples": 17}


@pytest.mark.parametrize(
    "change",
    [
        {"pass": -1}, {"pass": True}, {"pass": 1.0}, {"done": [0]}, {"done": [3, 0]}, {"done": [0, 3, 4, 5]},
        {"done": "0"}, {"done": [0, 3, 2, 5]}, {"shard": -1}, {"shard": "4"}, {"samples": None}, {"samples": 2**60},
        {"more": 1},
    ],
)  # fmt: skip
def test_an_invalid_position_is_none(change: dict[str, Any]) -> None:
    assert DataPosition.from_json(GOOD) is not None
    assert DataPosition.from_json({**GOOD, **change}) is None
    with pytest.raises(ValueError, match="is not a position in the data"):
        cursor_at({**GOOD, **change}, SHARDS)


@pytest.mark.parametrize("change", [{"shard": 12}, {"done": [0, 12], "shard": None}])
def test_a_position_in_a_shard_that_does_not_exist_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="shard 13 of 12"):
        cursor_at({**GOOD, **change}, SHARDS)
