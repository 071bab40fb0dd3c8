"""LotusMap's method: how many runs, and how counters are split."""

import math
from collections import Counter
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis.pipeline.lotus_map import error, runs, seen, split
from analysis.pipeline.native_function import NativeFunction
from analysis.pipeline.op_functions import Joined

_MOVE = NativeFunction("memmove", "libc.so.6")
_JPEG = NativeFunction("jpeg", "libjpeg.so")
_PYTHON = NativeFunction("eval", "python")


def test_runs_of_a_function_of_660_us_at_10_ms():
    # (1 - 0.066)^20 = 0.2552, (1 - 0.066)^21 = 0.2384
    assert runs(660e3, 10e6, 0.75) == 21


@pytest.mark.parametrize(("f", "s", "n"), [(1, 2, 2), (1, 1, 1), (3, 1, 1), (1, 4, 5)])
def test_runs_by_hand(f, s, n):
    assert runs(f, s, 0.75) == n


@given(st.integers(1, 10**4), st.integers(1, 10**4), st.sampled_from([0.5, 0.75, 0.9, 0.99]))
def test_runs_are_the_fewest(f, s, confidence):
    n = runs(f, s, confidence)
    share = min(1.0, f / s)
    assert seen(share, n) >= confidence
    assert n == 1 or seen(share, n - 1) < confidence
    if f < s and n < 200:  # the same with exact numbers, apart from the last digit of a float
        missed = 1 - Fraction(f, s)
        assert 1 - missed**n >= Fraction(confidence) - Fraction(1, 10**12)
        assert n == 1 or 1 - missed ** (n - 1) < Fraction(confidence) + Fraction(1, 10**12)


@pytest.mark.parametrize("wrong", [(0, 1, 0.75), (1, 0, 0.75), (1, 1, 0.0), (1, 2, 1.0), (math.nan, 1, 0.5)])
def test_runs_refuse_what_has_no_answer(wrong):
    with pytest.raises(ValueError, match="not in their ranges"):
        runs(*wrong)


def test_a_shared_function_is_split_by_time():
    found = split(
        {_MOVE: 100, _JPEG: 50, _PYTHON: 7},
        {"decode": {_MOVE, _JPEG}, "crop": {_MOVE}},
        {"decode": 3, "crop": 1},
    )
    assert found == {None: {_PYTHON: 7}, "decode": {_MOVE: 75, _JPEG: 50}, "crop": {_MOVE: 25}}


_FUNCTIONS = st.sampled_from([_MOVE, _JPEG, _PYTHON])


@given(
    st.dictionaries(_FUNCTIONS, st.integers(0, 10**6)),
    st.dictionaries(st.sampled_from(["decode", "crop", "flip"]), st.sets(_FUNCTIONS)),
    st.lists(st.integers(0, 10**9), min_size=3, max_size=3),
)
def test_the_split_keeps_each_counter(counters, functions, times):
    found = split(counters, functions, dict(zip(["decode", "crop", "flip"], times, strict=True)))
    for function, counter in counters.items():
        assert sum(part.get(function, 0) for part in found.values()) == pytest.approx(counter)


def test_error_is_the_share_attributed_otherwise():
    joined = Joined(
        {"decode": Counter({_MOVE: 60, _JPEG: 20}), "crop": Counter({_MOVE: 10})}, Counter({_PYTHON: 10})
    )
    found = {None: {_JPEG: 20}, "decode": {_MOVE: 50}, "crop": {_MOVE: 20, _PYTHON: 10}}
    # 20 to none instead of decode, 10 to crop instead of decode, 10 to crop instead of none
    assert error(joined, found) == pytest.approx(0.4)
    assert error(joined, {None: joined.between, **joined.ops}) == 0
    assert error(Joined(), {None: {}}) is None
