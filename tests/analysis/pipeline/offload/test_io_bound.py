"""Stage 1's verdict: by hand, and against its definition."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_up_offload import between

from analysis.pipeline.offload.io_bound import IoBound, exactly, io_bound
from metrics.stats import Estimate


@pytest.mark.parametrize(
    ("fetch", "preprocess", "trainer", "found"),
    [
        (between(9, 11), between(12, 14), between(20, 30), IoBound.YES),
        (between(9, 11), between(11, 14), between(20, 30), IoBound.OVERLAP),  # they touch
        (between(9, 11), between(12, 14), between(10, 30), IoBound.OVERLAP),
        (between(9, 11), between(12, 14), between(4, 6), IoBound.TRAINER),
        (between(9, 11), between(1, 2), between(4, 6), IoBound.PREPROCESSING),
        (between(9, 11), between(7, 8), None, IoBound.PREPROCESSING),
        (between(9, 11), between(12, 14), None, IoBound.UNKNOWN),
        (between(9, 11), between(10, 14), None, IoBound.OVERLAP),
        (Estimate(10, None, None, 1), between(12, 14), exactly(50), IoBound.OVERLAP),
        (between(9, 11), exactly(12), exactly(float("inf")), IoBound.YES),
        (exactly(10), exactly(10), exactly(10), IoBound.OVERLAP),
    ],
)
def test_by_hand(fetch: Estimate, preprocess: Estimate, trainer: Estimate | None, found: IoBound):
    assert io_bound(fetch, preprocess, trainer) is found


@st.composite
def rates(draw: st.DrawFn) -> Estimate:
    low, high = sorted((draw(st.integers(1, 9)), draw(st.integers(1, 9))))
    return between(low, high)


@given(rates(), rates(), rates())
def test_it_is_io_bound_if_and_only_if_the_interval_of_fetching_is_below_the_others(
    fetch: Estimate, preprocess: Estimate, trainer: Estimate
):
    assert fetch.high is not None
    assert preprocess.low is not None
    assert trainer.low is not None
    below = fetch.high < min(preprocess.low, trainer.low)
    assert (io_bound(fetch, preprocess, trainer) is IoBound.YES) == below
    assert io_bound(fetch, preprocess, None) is not IoBound.YES
