"""Means with t intervals against known values and against each other."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metrics.stats import Estimate, mean_interval, ratio_interval, ratio_values, t_quantile


# Two-sided 95 % critical values, NIST/SEMATECH e-Handbook of Statistical Methods, table 1.3.6.7.2.
@pytest.mark.parametrize(
    ("degrees", "t"),
    [(1, 12.706), (2, 4.303), (3, 3.182), (4, 2.776), (5, 2.571), (9, 2.262), (30, 2.042), (100, 1.984)],
)
def test_known_quantiles(degrees, t):
    assert t_quantile(degrees) == pytest.approx(t, abs=5e-4)


@pytest.mark.parametrize(("degrees", "t"), [(1, 63.657), (6, 3.707), (20, 2.845)])
def test_other_confidence(degrees, t):
    assert t_quantile(degrees, 0.99) == pytest.approx(t, abs=5e-4)


def test_tends_to_the_normal_quantile():
    assert t_quantile(20_000) == pytest.approx(1.959964, abs=2e-4)


@pytest.mark.parametrize(("degrees", "confidence"), [(0, 0.95), (3, 0.0), (3, 1.0)])
def test_refuses_what_has_no_quantile(degrees, confidence):
    with pytest.raises(ValueError, match="no t quantile"):
        t_quantile(degrees, confidence)


@given(st.integers(1, 200))
def test_quantiles_fall_with_the_degrees(degrees):
    assert t_quantile(degrees) > t_quantile(degrees + 1) > 1.95


def test_interval_of_two_values():
    # PAPER: the two epochs behind NLP B-2.
    found = mean_interval([177.7, 176.8])
    assert found is not None
    assert found.value == pytest.approx(177.25)
    assert found.high is not None
    assert found.high - found.value == pytest.approx(12.7062 * 0.45, rel=1e-4)
    assert found.n == 2


def test_one_value_has_no_interval_and_none_has_no_mean():
    assert mean_interval([3.0]) == Estimate(3.0, None, None, 1)
    assert mean_interval([]) is None
    assert ratio_interval([], []) is None
    assert ratio_interval([6.0], [2.0]) == Estimate(3.0, None, None, 1)


@given(st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=20), st.floats(-1e3, 1e3))
def test_the_interval_moves_with_the_values(values, shift):
    found, moved = mean_interval(values), mean_interval([v + shift for v in values])
    assert found is not None
    assert moved is not None
    assert found.low is not None
    assert moved.low is not None
    assert found.low <= found.value + 1e-9
    assert moved.low == pytest.approx(found.low + shift, abs=1e-3)


@given(st.lists(st.floats(0.1, 1e3), min_size=2, max_size=20))
def test_a_ratio_of_equal_denominators_is_the_mean(values):
    ratio = ratio_interval([v * 4 for v in values], [4.0] * len(values))
    mean = mean_interval(values)
    assert ratio is not None
    assert mean is not None
    assert ratio.value == pytest.approx(mean.value)
    assert ratio.high == pytest.approx(mean.high, rel=1e-6)


def test_ratio_refuses_what_is_no_ratio():
    with pytest.raises(ValueError, match="not positive"):
        ratio_interval([1.0], [0.0])
    with pytest.raises(ValueError, match="numerators"):
        ratio_interval([1.0], [])


def test_exact_proportion_has_no_width():
    found = ratio_interval([2.0, 4.0, 6.0], [1.0, 2.0, 3.0])
    assert found is not None
    assert found.low == pytest.approx(2.0)
    assert math.isclose(found.high or 0, 2.0)


@given(st.lists(st.tuples(st.floats(0.0, 100), st.floats(0.1, 100)), min_size=2, max_size=9))
def test_the_values_of_a_ratio_have_its_mean_and_interval(pairs):
    ratio = ratio_interval(*map(list, zip(*pairs, strict=True)))
    values = mean_interval(ratio_values(*map(list, zip(*pairs, strict=True))))
    assert values.value == pytest.approx(ratio.value, abs=1e-9)
    assert values.high - values.low == pytest.approx(ratio.high - ratio.low, rel=1e-6, abs=1e-6)
