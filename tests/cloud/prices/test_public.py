"""Bytes to a public address of the sender's own zone: clouds bill them as if they went to another zone."""

from __future__ import annotations

from decimal import Decimal

import pytest

from cloud.prices.book import PriceBook, book_names, load
from cloud.prices.classes import INTERNET, egress_class, is_internal

IOWA, IOWA_B = "gcp/us-central1/us-central1-a", "gcp/us-central1/us-central1-b"
OREGON = "aws/us-west-2/us-west-2a"
HEADER = "provider,product,from,to,item,unit,tier_start,usd,minimum_s,valid_from,source"


def test_only_inside_a_zone_the_address_matters():
    assert egress_class(IOWA, IOWA, public=True) == "same_zone_public"
    for dst in (IOWA_B, OREGON, "gcp/europe-west1/europe-west1-b", INTERNET, "b2/us-west-1"):
        assert egress_class(IOWA, dst, public=True) == egress_class(IOWA, dst)


@pytest.mark.parametrize(
    ("place", "unit", "usd"), [(IOWA, 2**30, "0.01"), (OREGON, 10**9, "0.02"), ("azure/eastus", 10**9, "0")]
)
def test_the_list_prices(place: str, unit: int, usd: str):
    """0.01 in each direction on AWS, where both ends are the run's; 0.01 for what is sent on Google."""
    book = load("list-2026-11")
    assert book.egress(place, place, unit, public=True) == Decimal(usd)
    if place.count("/") == 2:
        assert book.egress(place, place, unit) == 0


@pytest.mark.parametrize("name", book_names())
@pytest.mark.parametrize("place", [IOWA, OREGON, "lambda/us-west-1"])
def test_public_price_is_known_and_never_cheaper_than_internal(name: str, place: str):
    book = load(name)
    public, internal = (book.egress(place, place, 10**9, public=public) for public in (True, False))
    assert public is not None
    assert internal is not None
    assert public >= internal


def test_book_without_public_price_uses_inter_zone_price():
    rows = [
        "gcp,egress,*,*,inter_zone,GB,0,0.07,,2023-04-01,here",
        "gcp,egress,*,*,same_zone,GB,0,0,,2023-04-01,here",
    ]
    book = PriceBook.from_text("\n".join((HEADER, *rows)) + "\n", "mine.csv")
    assert book.egress(IOWA, IOWA, 10**9, public=True) == Decimal("0.07")
    own = rows[0].replace("inter_zone", "same_zone_public").replace("0.07", "0.05")
    book = PriceBook.from_text("\n".join((HEADER, *rows, own)) + "\n", "mine.csv")
    assert book.egress(IOWA, IOWA, 10**9, public=True) == Decimal("0.05")
    none = PriceBook.from_text("\n".join((HEADER, rows[1])) + "\n", "mine.csv")
    assert none.egress(IOWA, IOWA, 10**9, public=True) is None


@pytest.mark.parametrize(
    ("address", "internal"),
    [
        ("10.0.0.1", True), ("172.31.5.6", True), ("192.168.0.1", True), ("100.64.0.9", True), ("fd00::1", True),
        ("172.32.0.1", False), ("203.0.113.7", False), ("198.18.2.2", False), ("2001:db8::1", False),
        ("169.254.169.254", False), ("worker-1", False), ("", False),
    ],
)  # fmt: skip
def test_which_addresses_are_internal(address: str, internal: bool):
    assert is_internal(address) is internal
