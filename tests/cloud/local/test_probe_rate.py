"""The rate that a probe makes of what arrived: right for a smooth stream and for one that comes in bursts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloud.local.check.probe import steady_bps


@given(st.floats(0.05, 0.3), st.integers(1, 8), st.floats(0, 1))
def test_rate_of_bursts_does_not_depend_on_the_counting_moment(rtt_s, pieces, phase):
    arrivals = [
        ((k + phase) * rtt_s + piece * 1e-4, 65_520 // pieces)
        for k in range(int(4 / rtt_s))
        for piece in range(pieces)
    ]
    if len(arrivals) > 10:
        expected = 65_520 // pieces * pieces * 8 / rtt_s
        assert steady_bps(arrivals) == pytest.approx(expected, rel=0.04)


def test_slow_start_does_not_count():
    slow = [(0.1 * k, 100) for k in range(10)]
    fast = [(1.0 + 0.01 * k, 1000) for k in range(400)]
    assert steady_bps(slow + fast) == pytest.approx(800_000, rel=0.01)


def test_too_few_arrivals_give_no_rate():
    assert steady_bps([(0.1 * k, 100) for k in range(10)]) == 0.0
    assert steady_bps([(1.0, 100)] * 20) == 0.0
