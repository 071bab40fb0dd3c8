"""A slot's positions in its data by epoch: bounded, the same after JSON, and without those of lost work."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloud.vm_report import status_of
from experiments.wire.data_position import DataPosition
from experiments.wire.epoch_positions import (
    IN_STATUS,
    IN_STATUS_VALUES,
    MAX_EPOCHS,
    MAX_VALUES,
    EpochPositions,
)


def at(samples: int, runs: int = 0) -> DataPosition:
    return DataPosition(0, tuple((2 * n, 2 * n) for n in range(runs)), None, samples)


def positions(epochs: dict[int, int], since: int = 0) -> EpochPositions:
    return EpochPositions(since, {epoch: at(samples) for epoch, samples in epochs.items()})


EPOCHS = st.dictionaries(st.integers(0, 3000), st.builds(at, st.integers(0, 99), st.integers(0, 60)))


@given(EPOCHS, st.integers(0, 99))
def test_what_is_reported_is_what_is_read(epochs: dict[int, DataPosition], since: int) -> None:
    reported = EpochPositions(since, epochs).newest(IN_STATUS, IN_STATUS_VALUES)
    status = status_of(json.dumps({"epoch_positions": reported.to_json()}))
    assert EpochPositions.from_json(status["epoch_positions"]) == reported
    assert list(reported.at) == sorted(epochs)[len(epochs) - len(reported.at) :]


@given(EPOCHS, st.sets(st.integers(0, 3000)))
def test_what_is_kept_is_bounded_and_has_the_newest(epochs: dict[int, DataPosition], keep: set[int]) -> None:
    kept = EpochPositions(0, epochs).thinned(keep)
    assert EpochPositions.from_json(json.loads(json.dumps(kept.to_json()))) == kept
    assert len(kept.at) <= MAX_EPOCHS
    if epochs:
        assert max(kept.at) == max(epochs)
    assert kept.at.items() <= epochs.items()


def test_thinning_every_epoch_keeps_checkpoints_and_something_near_every_epoch() -> None:
    known = EpochPositions(0)
    for epoch in range(2001):
        known = EpochPositions(0, {**known.at, epoch: at(epoch)}).thinned({777})
    assert len(known.at) < 160
    assert known.upto(777) == at(777)
    for epoch in range(2001):
        found = known.upto(epoch)
        assert found is not None
        assert 0 <= epoch - found.samples <= (2000 - epoch) / 16
    assert all(n in known.at for n in range(1969, 2001))


def test_values_are_bounded_by_leaving_out_the_oldest() -> None:
    known = EpochPositions(0, {epoch: at(epoch, 1500) for epoch in range(4)})
    assert list(known.thinned(set()).at) == [2, 3]
    assert list(known.newest(IN_STATUS, IN_STATUS_VALUES).at) == []
    assert 2 * (7 + 2 * 1500) <= MAX_VALUES < 3 * (7 + 2 * 1500)


def test_an_epoch_that_is_not_known_has_the_position_of_the_one_before() -> None:
    known = positions({4: 40, 8: 80})
    assert [known.upto(epoch) for epoch in (3, 4, 7, 8, 99)] == [None, at(40), at(40), at(80), at(80)]


def test_epochs_of_lost_work_are_replaced() -> None:
    lost = positions({8: 80, 9: 90, 10: 100, 11: 110})
    restored = positions({8: 80, 9: 95}, since=8)
    assert lost.followed_by(restored, same_peer=False) == positions({8: 80, 9: 95}, since=8)
    late = positions({40: 400, 41: 410}, since=8)  # its first epochs were not seen
    assert lost.followed_by(late, same_peer=False) == positions({8: 80, 40: 400, 41: 410}, since=8)
    assert restored.followed_by(late, same_peer=True).at.keys() == {8, 9, 40, 41}


def test_a_peer_that_joins_in_the_middle_of_an_epoch_does_not_change_the_end_of_the_last_one() -> None:
    joined = positions({8: 85, 9: 99}, since=8)
    after = positions({7: 70, 8: 80}).followed_by(joined, same_peer=False)
    assert after == positions({7: 70, 8: 80, 9: 99}, since=8)
    assert after.followed_by(joined, same_peer=True) == after


GOOD: dict[str, Any] = {"since": 3, "at": [[3, at(1).to_json()], [4, at(2).to_json()]]}


@pytest.mark.parametrize(
    "bad",
    [
        None, [], {"since": 3}, {**GOOD, "more": 1}, {**GOOD, "since": -1}, {**GOOD, "since": True},
        {**GOOD, "since": 2**31}, {**GOOD, "at": {}}, {**GOOD, "at": [[3]]}, {**GOOD, "at": GOOD["at"][::-1]},
        {**GOOD, "at": [GOOD["at"][0]] * 2}, {**GOOD, "at": [["3", at(1).to_json()]]},
        {**GOOD, "at": [[3, {"pass": -1}]]}, {**GOOD, "at": [[n, at(1).to_json()] for n in range(MAX_EPOCHS + 1)]},
        {**GOOD, "at": [[n, at(1, 1500).to_json()] for n in range(3)]},
    ],
)  # fmt: skip
def test_anything_else_is_none(bad: Any) -> None:
    assert EpochPositions.from_json(GOOD) is not None
    assert EpochPositions.from_json(bad) is None
