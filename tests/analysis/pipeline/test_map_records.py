"""Rows of a map, intervals and changes."""

import math
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis.pipeline.map_records import Change, changes, function_rows, wilson
from analysis.pipeline.native_function import NativeFunction

_MOVE = NativeFunction("memmove", "libc.so.6")
_JPEG = NativeFunction("jpeg", "libjpeg.so")


def test_rows_are_ordered_by_count_and_have_intervals_only_of_samples():
    counts = Counter({_MOVE: 1, _JPEG: 3})
    rows = function_rows("decode", counts, sampled=True)
    assert [(row.function, row.count, row.share) for row in rows] == [("jpeg", 3, 0.75), ("memmove", 1, 0.25)]
    assert rows[0].low == pytest.approx(0.3006, abs=1e-4)
    assert rows[0].high == pytest.approx(0.9544, abs=1e-4)
    assert [(row.low, row.high) for row in function_rows("decode", counts, sampled=False)] == [
        (None, None)
    ] * 2
    assert function_rows("decode", Counter(), sampled=True) == []


@given(st.integers(1, 10**6).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_the_interval_holds_the_share(counted):
    low, high = wilson(*counted)
    assert 0 <= low <= counted[0] / counted[1] + 1e-12
    assert counted[0] / counted[1] - 1e-12 <= high <= 1


def test_changes_are_by_call():
    found = changes({"decode": (1000, 10), "crop": (5, 1)}, {"decode": (2060, 20), "flip": (1, 1)})
    assert found == [Change("decode", 100, 103)]
    assert found[0].percent == pytest.approx(3)
    assert Change("label", 0, 1).percent == math.inf
