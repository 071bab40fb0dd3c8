"""Dollars on a ladder of tiers: exact, monotone, continuous, additive, never negative; VM seconds as billed."""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloud.prices.book import Ladder, PriceBook, exact, load, tiered_usd
from cloud.prices.rows import COLUMNS

IOWA = "gcp/us-central1/us-central1-a"
PETABYTE = 10**15
BYTES = st.integers(0, PETABYTE)
STARTS = st.lists(st.decimals(Decimal("0.001"), 10**6, places=3), max_size=5, unique=True)
USD = st.decimals(0, 2, places=7)


def _book(*rows: tuple[object, ...]) -> PriceBook:
    lines = [",".join(COLUMNS), *(",".join(str(cell) for cell in row) for row in rows)]
    return PriceBook.from_text("\n".join(lines) + "\n", "mine.csv")


@st.composite
def ladders(draw: st.DrawFn) -> Ladder:
    """What a book with up to six random tiers, in random order, gives."""
    unit = draw(st.sampled_from(("GB", "GiB")))
    starts = draw(st.permutations([Decimal(0), *draw(STARTS)]))
    rows = [
        ("gcp", "egress", "*", "*", "internet", unit, start, f"{draw(USD):f}", "", "", "2026-01-01", "here")
        for start in starts
    ]
    ladder = _book(*rows).ladder(IOWA, "internet")
    assert ladder is not None
    return ladder


def _by_hand(ladder: Ladder, upto: int) -> Fraction:
    """The bill of the first `upto` bytes, tier by tier, in fractions."""
    total = Fraction(0)
    starts = [Fraction(tier.tier_start) * ladder.unit_bytes for tier in ladder.tiers]
    for tier, start, end in zip(ladder.tiers, starts, [*starts[1:], None], strict=True):
        inside = max(Fraction(0), (Fraction(upto) if end is None else min(Fraction(upto), end)) - start)
        total += inside / ladder.unit_bytes * Fraction(tier.usd)
    return total


@given(ladders(), BYTES, BYTES)
def test_exact_to_the_last_digit(ladder, amount, already):
    wanted = _by_hand(ladder, already + amount) - _by_hand(ladder, already)
    assert Fraction(tiered_usd(ladder, amount, already)) == wanted


@given(ladders(), BYTES, BYTES, BYTES)
def test_additive_over_splits_and_never_negative(ladder, a, b, already):
    whole = tiered_usd(ladder, a + b, already)
    with exact():
        assert whole == tiered_usd(ladder, a, already) + tiered_usd(ladder, b, already + a)
    assert whole >= 0
    assert tiered_usd(ladder, 0, already) == 0


@given(ladders(), BYTES, st.integers(0, 10**9))
def test_monotone(ladder, amount, more):
    assert tiered_usd(ladder, amount + more) >= tiered_usd(ladder, amount)


@given(ladders())
def test_continuous_where_tiers_meet(ladder):
    dearest = max(tier.usd for tier in ladder.tiers)
    for tier in ladder.tiers:
        edge = int(tier.tier_start * ladder.unit_bytes)
        below, above = tiered_usd(ladder, max(0, edge - 1)), tiered_usd(ladder, edge + 1)
        with exact():
            assert above - below <= 2 * dearest / ladder.unit_bytes


def test_a_petabyte_in_gibibytes():
    ladder = load("list-2026-11").ladder(IOWA, "internet")
    assert ladder is not None
    assert [tier.usd for tier in ladder.tiers] == [Decimal("0.12"), Decimal("0.11"), Decimal("0.08")]
    first = Fraction(1024) * Fraction("0.12") + Fraction(9216) * Fraction("0.11")
    rest = (Fraction(PETABYTE, 2**30) - 10240) * Fraction("0.08")
    assert Fraction(tiered_usd(ladder, PETABYTE)) == first + rest


@pytest.mark.parametrize(("amount", "already"), [(-1, 0), (1, -1)])
def test_negative_bytes_are_refused(amount, already):
    ladder = load("list-2026-11").ladder(IOWA, "internet")
    assert ladder is not None
    with pytest.raises(ValueError, match="number of bytes is negative"):
        tiered_usd(ladder, amount, already)


def test_traffic_of_one_kind_shares_a_ladder():
    book = load("list-2026-11")
    oregon, belgium = "gcp/us-west1/us-west1-a", "gcp/europe-west1/europe-west1-b"
    to_the_internet = book.ladder(IOWA, "internet")
    assert to_the_internet is not None
    # Between clouds is billed as what it is to the provider, the internet, so it fills the same tiers.
    between = book.ladder(oregon, "aws/us-west-2/us-west-2a")
    assert between is not None
    assert between.key == to_the_internet.key
    other = book.ladder(belgium, "internet")
    assert other is not None
    assert other.key != to_the_internet.key


def test_region_ladder_takes_precedence_over_continent():
    book = load("list-2026-11")
    ohio, virginia, oregon = (
        "aws/us-east-2/us-east-2a",
        "aws/us-east-1/us-east-1a",
        "aws/us-west-2/us-west-2a",
    )
    assert book.egress(ohio, virginia, 10**9) == Decimal("0.01")
    assert book.egress(ohio, oregon, 10**9) == Decimal("0.02")
    assert book.egress("aws/ap-northeast-1/ap-northeast-1a", oregon, 10**9) == Decimal("0.09")


def test_storage():
    book = load("list-2026-11")
    assert book.storage_ladder("lambda/us-west-1") is None
    google = book.storage_ladder("gcp/us-central1")
    assert google is not None
    assert tiered_usd(google, 2**30) == Decimal("0.02")
    ladder = book.storage_ladder("b2/us-west-004")
    assert ladder is not None
    assert tiered_usd(ladder, 10**12) == 6


@pytest.mark.parametrize(
    ("minimum", "increment", "seconds", "billed"),
    [
        ("60", "1", 0.25, 60),
        ("60", "1", 60.001, 61),
        ("60", "1", 3600, 3600),
        ("", "60", 61.0, 120),
        ("", "60", 120, 120),
        ("", "", 1.5, 2),
        ("300", "1", 90.0, 300),
        ("60", "1", -5.0, 60),
    ],
)
def test_seconds_are_billed_in_the_provider_s_steps(minimum, increment, seconds, billed):
    row = ("gcp", "vm", "*", "*", "T4:1/x/spot", "h", 0, "0.18", minimum, increment, "2026-01-01", "here")
    price = _book(row).vm(IOWA, "T4", True)
    assert price is not None
    assert price.billed_seconds(seconds) == billed


@given(st.floats(0, 10**7), st.floats(0, 10**5), st.integers(1, 3600), st.integers(0, 3600))
def test_more_seconds_never_cost_less(seconds, more, increment, minimum):
    row = ("gcp", "vm", "*", "*", "T4:1/x/spot", "h", 0, 1, minimum, increment, "2026-01-01", "here")
    price = _book(row).vm(IOWA, "T4", True)
    assert price is not None
    billed = price.billed_seconds(seconds)
    assert minimum <= billed <= price.billed_seconds(seconds + more)
    assert Decimal(repr(seconds)) <= billed
