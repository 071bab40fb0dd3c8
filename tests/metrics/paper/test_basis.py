"""The study's own cost figures, to the cent, from its inputs and from its logs; the assumptions one by one."""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloud.prices.book import load
from metrics.paper.basis import (
    EGRESS_KINDS,
    PAPER_GB,
    gb_per_h,
    kind_of,
    pairs,
    split,
    usd_per_gb,
    usd_per_million,
    vm_usd_per_h,
)

BOOK = load("study-2023-04")
US, EU, ASIA, AUS = "gcp/us-central1", "gcp/europe-west1", "gcp/asia-east1", "gcp/australia-southeast1"
C8 = [place for place in (US, EU, ASIA, AUS) for _ in range(2)]
AWS, AZURE = "aws/us-west-2", "azure/southcentralus"


def _cents(amount, like):
    return amount.quantize(Decimal(like))


def _shares(places, own, book=BOOK):
    shared = pairs(places, own)
    return [(kind_of(a, b), Fraction(1, len(shared)), usd_per_gb(book, a, b)) for a, b in shared]


@pytest.mark.parametrize(
    ("per_h", "sps", "usd"),
    [
        ("6.30", "413", "4.237"),  # DGX-2 spot, CV and NLP
        ("6.30", "1811", "0.966"),
        ("0.180", "80.8", "0.619"),  # one T4 as published
        ("0.180", "208.8", "0.239"),
        ("0.180", "36.8", "1.36"),  # and by wall clock
        ("0.180", "139.2", "0.36"),
        ("4.80", "621", "2.147"),  # 8xA10
        ("4.80", "1060", "1.258"),
        ("0.72", "207", "0.966"),  # 4xT4 DDP
    ],
)
def test_dollars_a_million_of_the_baselines(per_h, sps, usd):
    assert _cents(usd_per_million(Decimal(per_h), Decimal(sps)), usd) == Decimal(usd)


@pytest.mark.parametrize(("internal", "sps", "usd"), [("0.029", "262", "1.773"), ("0.191", "575", "1.434")])
def test_internal_egress_of_eight_t4_is_that_of_the_paper(internal, sps, usd):
    # $0.029 and $0.191 an hour at $0.01 a "GB" are 2.9 and 19.1 "GB"
    shares = [("inside", Fraction(1), Decimal("0.01"))]
    cost = vm_usd_per_h(Decimal("0.180"), Decimal(internal) * 100, shares)
    assert _cents(cost.usd_per_million(8, Decimal(sps)), usd) == Decimal(usd)


def test_a_vm_of_c8_as_published_and_with_the_split_that_the_logs_show():
    rates = (Decimal("0.1825"), Decimal("62.7432"))
    cost = vm_usd_per_h(*rates, _shares(C8, US), Decimal("4.1508"))
    assert _cents(cost.usd_per_h, "0.001") == Decimal("4.804")
    assert _cents(cost.egress_usd_per_h - cost.inside, "0.001") == Decimal("4.329")
    assert (cost.vm, cost.loading) == (Decimal("0.1825"), Decimal("0.041508"))
    assert cost.inside == Decimal("62.7432") * Decimal("0.01") * 8 / 20
    assert cost.between == Decimal("62.7432") * Decimal("0.08") * 6 / 20
    assert cost.oceania == Decimal("62.7432") * Decimal("0.15") * 6 / 20
    measured = [("inside", 1, "0.01"), ("between", 3, "0.08"), ("oceania", 3, "0.15")]
    true = [(kind, Fraction(n, 7), Decimal(price)) for kind, n, price in measured]
    assert _cents(vm_usd_per_h(*rates, true, Decimal("4.1508")).usd_per_h, "0.01") == Decimal("6.50")


def test_cost_of_a_gc_vm_in_the_paper_s_d_runs():
    for other in (AWS, AZURE):
        cost = vm_usd_per_h(
            Decimal("0.180"), Decimal("8.6570"), _shares([US, US, other, other], US), Decimal("14.3691")
        )
        assert _cents(cost.usd_per_h, "0.0001") == Decimal("0.4103")
        assert cost.clouds == 2 * cost.inside


def test_split_counts_vm_pairs_inside_regions_and_region_pairs_between():
    assert split(pairs(C8, AUS)) == {
        "inside": Fraction(8, 20),
        "between": Fraction(6, 20),
        "oceania": Fraction(6, 20),
    }
    assert split(pairs([US, EU, ASIA, AUS], US)) == {"between": Fraction(1, 2), "oceania": Fraction(1, 2)}
    assert split(pairs([US] * 2 + [EU] * 2 + [ASIA] * 2, EU)) == dict.fromkeys(
        ("inside", "between"), Fraction(1, 2)
    )
    assert split(pairs([US] * 8, US)) == {"inside": Fraction(1)}
    assert split(pairs([US, US, AWS, AWS], AWS)) == {"inside": Fraction(1, 3), "clouds": Fraction(2, 3)}
    assert split(pairs([US, "gcp/us-west1"], US)) == {"regions": Fraction(1)}
    assert pairs([US], US) == []


def test_unknown_place_makes_the_hourly_cost_unknown():
    places = [US, "unknown"]
    assert split(pairs(places, US)) == {None: Fraction(1)}
    shares = [("inside", Fraction(1), usd_per_gb(BOOK, US, "unknown"))]
    cost = vm_usd_per_h(Decimal("0.18"), Decimal(1), shares)
    assert (cost.usd_per_h, cost.egress_usd_per_h, cost.usd_per_million(2, 10.0)) == (None, None, None)
    assert cost.vm == Decimal("0.18")
    assert vm_usd_per_h(None).usd_per_h is None
    assert vm_usd_per_h(Decimal(1), loading_gb_per_h=None).usd_per_h is None


def test_gb_of_the_paper():
    assert PAPER_GB == 8 * 1024 * 10**6 // 8  # Mbit / 8 / 1024
    assert gb_per_h(PAPER_GB, 1800.0) == 2
    for function in (lambda: gb_per_h(1, 0), lambda: usd_per_million(Decimal(1), 0.0)):
        with pytest.raises(ValueError, match="must be positive"):
            function()


@given(st.lists(st.sampled_from([US, EU, ASIA, AUS, AWS, AZURE]), min_size=2, max_size=12))
def test_every_byte_has_a_destination(places):
    for own in places:
        shares = split(pairs(places, own))
        assert sum(shares.values()) == 1
        assert set(shares) <= set(EGRESS_KINDS)
