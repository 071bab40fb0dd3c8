"""PRESTO's score, by hand and against a direct calculation."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_up_profile import measurement, profile

from analysis.pipeline.presto_score import Weights, scaled, scores
from analysis.pipeline.profile_records import Measurement, Strategy

NUMBERS = st.floats(0, 1e6)


def _measured(offline_s: float | None, stored: float, sps: float) -> Measurement:
    return replace(measurement(Strategy(1), stored, sps, offline_s=offline_s), save_s=0.0)


def test_by_hand():
    """Offline 0, 4, 2 s (0, 1, 0.5), stored 100, 300, 200 bytes (0, 1, 0.5), T4 10, 50, 20 (0, 1, 0.25)."""
    three = [_measured(0, 100, 10), _measured(4, 300, 50), _measured(2, 200, 20)]
    assert scores(three, Weights(1, 1, 1)) == [2.0, 1.0, 1.25]
    assert scores(three, Weights(0, 0, 1)) == [0.0, 1.0, 0.25]
    assert scores(three, Weights(2, 0.5, 4)) == [2.5, 4.0, 2.25]


def test_all_equal_are_scaled_to_0():
    assert scores([_measured(1, 5, 7)] * 2, Weights(1, 2, 4)) == [3.0, 3.0]
    assert scaled([]) == []
    assert scaled([None, 3.0]) == [None, 0.0]


def test_nothing_offline_is_0_seconds_and_unmeasured_is_unknown():
    online = measurement(Strategy(0), 100, 10)
    assert scores([online, _measured(4, 100, 10), _measured(None, 100, 10)], Weights(1, 0, 0)) == [1, 0, None]


@given(
    st.lists(st.tuples(NUMBERS, NUMBERS, st.floats(0.1, 1e6)), min_size=1, max_size=12),
    st.tuples(st.floats(0, 9), st.floats(0, 9), st.floats(0.1, 9)),
)
def test_against_a_direct_calculation(rows, weights):
    found = scores([_measured(*row) for row in rows], Weights(*weights))
    for row, score in zip(rows, found, strict=True):
        expected = 0.0
        for n, weight in enumerate(weights):
            column = [other[n] for other in rows]
            width = max(column) - min(column)
            place = (row[n] - min(column)) / width if width > 0 else 0.0
            expected += weight * (place if n == 2 else 1 - place)
        assert score == pytest.approx(expected)
        assert score is not None
        assert -1e-9 <= score <= sum(weights) + 1e-9


def test_a_strategy_that_is_best_in_all_three_has_the_highest_score():
    found = scores(list(profile().measurements), Weights(1, 1, 1))
    best = replace(_measured(0, 1, 10_000), strategy=Strategy(0))
    again = scores([*profile().measurements, best], Weights(1, 1, 1))
    assert len(found) == len(again) - 1
    assert max(s for s in again if s is not None) == again[-1] == 3


@pytest.mark.parametrize("text", ["", "1,2", "1,2,3,4", "1,a,2", "-1,1,1", "0,0,0", "nan,1,1", "inf,1,1"])
def test_bad_weights(text):
    with pytest.raises(ValueError, match="weights"):
        Weights.parse(text)


def test_parse():
    assert Weights.parse("1,0.5, 2") == Weights(1, 0.5, 2)
