"""What a person reads has no exponent, a unit that fits, and a threshold instead of a tiny amount."""

from __future__ import annotations

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metrics.readable import few, number, size, usd


@pytest.mark.parametrize(
    ("amount", "text"),
    [
        (None, "unknown"), (0, "$0.00"), (6.853e-05, "< $0.01"), (Decimal("0.00999"), "< $0.01"), (-0.001, "> -$0.01"),
        (0.01, "$0.01"), (Decimal("0.0897"), "$0.0897"), (0.9999, "$1.00"), (1.5, "$1.50"), (-12.345, "-$12.35"),
        (1234.5, "$1,234.50"), (0.5, "$0.50"), (0.54449, "$0.5445"), ("0.18", "$0.18"), ("nan", "unknown"), ("none", "unknown"),
    ],
)  # fmt: skip
def test_dollars(amount: Decimal | float | str | None, text: str):
    assert usd(amount) == text


@pytest.mark.parametrize(
    ("amount_bytes", "text"),
    [
        (None, "unknown"), (0, "0 B"), (12, "12 B"), (200, "0.2 kB"), (16_100, "16.1 kB"), (2.24e9, "2.24 GB"),
        (1.2345e12, "1,234 GB"), (0.25e9, "0.25 GB"),
    ],
)  # fmt: skip
def test_bytes(amount_bytes: float | None, text: str):
    assert size(amount_bytes) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "unknown"),
        (0, "0"),
        (2e-7, "< 0.001"),
        (-2e-7, "> -0.001"),
        (12.3456, "12.35"),
        (123456.7, "123,457"),
        (9999.7, "10,000"),
        (999.94, "999.9"),
    ],
)
def test_numbers(value: float | None, text: str):
    assert number(value) == text


@given(st.floats(min_value=-1e15, max_value=1e15, allow_nan=False))
def test_nothing_has_an_exponent(value: float):
    for text in (number(value), number(value, 3), usd(value), size(abs(value))):
        assert "e" not in text


def test_of_many_reasons_three_are_given():
    assert few(["a", "b", "c"]) == "a; b; c"
    assert few(["a", "b", "c", "d", "e"]) == "a; b; c; and 2 more"
    assert few([]) == ""
