"""The ledger's lines: shared tiers, months, storage, the controller; properties, and a naive second computation."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st
from synthetic_runs import egress, epoch, vm

from cloud.prices.book import PriceBook, load
from metrics.cost.bill import ledger
from metrics.cost.ledger import (
    CONTROLLER,
    KINDS,
    MONTH_S,
    Ledger,
    Terms,
    billed_seconds,
    by_month,
    data_lines,
    egress_lines,
    month_of,
    storage_lines,
    vm_lines,
)
from metrics.epochs.scaling import Scales
from metrics.epochs.throughput import swarm_epochs
from metrics.traffic import Flow, Traffic, flows

PLACES = {
    "us": "gcp/us-central1/us-central1-a",
    "us2": "gcp/us-central1/us-central1-b",
    "eu": "gcp/europe-west1/europe-west1-b",
    "asia": "gcp/asia-east1/asia-east1-a",
    "aus": "gcp/australia-southeast1/australia-southeast1-b",
}
CONTINENT = {"us": "US", "us2": "US", "eu": "EU", "asia": "ASIA", "aus": "AUS"}
HEADER = "provider,product,from,to,item,unit,tier_start,usd,minimum_s,increment_s,valid_from,source"
BLOCK = 2**28  # a quarter of a GiB: all tiers and amounts of the naive computation are whole blocks


def _row(item, start, usd, src="*", dst="*", unit="GiB", product="egress", provider="gcp"):
    return f"{provider},{product},{src},{dst},{item},{unit},{start},{usd},,,2023-04-01,made up"


def _book(*rows):
    return PriceBook.from_text("\n".join((HEADER, *rows)) + "\n", "made-up.csv")


TIERED = _book(
    _row("inter_zone", 0, "0.01"),
    _row("inter_continent", 0, "0.12"),
    _row("inter_continent", 3, "0.11"),
    _row("inter_continent", 10, "0.08"),
    _row("inter_continent", 0, "0.07", src="EU", dst="US"),
    _row("inter_continent", 2, "0.05", src="EU", dst="US"),
    _row("oceania", 0, "0.19"),
    _row("oceania", 5, "0.15"),
    _row("internet", 0, "0.12"),
    _row("internet", 4, "0.085"),
    _row("*", 0, "0.01", unit="GB", product="store_egress", provider="b2"),
    _row("*", 2, "0.005", unit="GB", product="store_egress", provider="b2"),
    _row("*", 0, "0.006", unit="GB-month", product="storage", provider="b2"),
)


def _terms(book=TIERED, **other):
    values = {
        "scales": Scales(),
        "raw_target": None,
        "book": book,
        "addresses": {name: name for name in PLACES},
        "locations": PLACES,
        "bytes_per_sample": None,
        "store_location": "b2/us-west-004",
    }
    return Terms(**{**values, **other})


def _sent(src, dst, count):
    terms = _terms()
    (flow,) = flows([egress(src, 1, dst, "comm", 1.0, 0)], terms.addresses, terms.locations)
    return Traffic(src, dst, flow.src_location, flow.dst_location, flow.kind, count)


def _total(lines):
    return Ledger(tuple(lines)).sum()


pairs = st.tuples(st.sampled_from(sorted(PLACES)), st.sampled_from(sorted(PLACES))).filter(
    lambda p: p[0] != p[1]
)
links = st.lists(st.tuples(pairs, st.integers(0, 40)), max_size=14)


def _naive(links):
    """Dollars by link, block by block: each is one quarter of a GiB, priced by where its ladder stands."""
    steps = {
        "inter_zone": [(0, Fraction("0.01"))],
        "inter_continent": [(0, Fraction("0.12")), (12, Fraction("0.11")), (40, Fraction("0.08"))],
        "eu_to_us": [(0, Fraction("0.07")), (8, Fraction("0.05"))],
        "oceania": [(0, Fraction("0.19")), (20, Fraction("0.15"))],
    }
    climbed = dict.fromkeys(steps, 0)
    found = {}
    for (src, dst), blocks in sorted((pair, n) for pair, n in links):
        a, b = CONTINENT[src], CONTINENT[dst]
        if a == b:
            name = "inter_zone"
        elif "AUS" in (a, b):
            name = "oceania"
        else:
            name = "eu_to_us" if (a, b) == ("EU", "US") else "inter_continent"
        for _ in range(blocks):
            price = [usd for begin, usd in steps[name] if begin <= climbed[name]][-1]
            climbed[name] += 1
            found[src, dst] = found.get((src, dst), 0) + price / 4
    return found


@given(links)
def test_each_link_costs_what_a_block_by_block_count_gives(links):
    bill = Ledger(tuple(egress_lines([_sent(*pair, n * BLOCK) for pair, n in links], _terms())))
    assert {k: Fraction(usd) for k, usd in bill.by_link().items() if usd} == _naive(links)
    assert Fraction(bill.sum()) == sum(_naive(links).values())


@given(links, st.randoms(use_true_random=False), st.data())
def test_egress_is_order_free_and_additive_over_splits_in_time(links, random, data):
    whole = egress_lines([_sent(*pair, n * BLOCK) for pair, n in links], _terms())
    cut = [(pair, n, data.draw(st.integers(0, n))) for pair, n in links]
    parts = [_sent(*pair, k * BLOCK) for pair, n, first in cut for k in (first, n - first)]
    random.shuffle(parts)
    assert egress_lines(parts, _terms()) == whole


@given(links, pairs, st.integers(0, 10**18))
def test_egress_is_monotone_in_bytes_and_never_negative(links, pair, more):
    rows = [_sent(*p, n * BLOCK) for p, n in links]
    before, after = (
        _total(egress_lines(rows, _terms())),
        _total(egress_lines([*rows, _sent(*pair, more)], _terms())),
    )
    assert 0 <= before <= after
    assert all(line.usd >= 0 and line.quantity >= 0 for line in egress_lines(rows, _terms()))


@pytest.mark.parametrize("edge", [3 * 2**30, 10 * 2**30])
def test_egress_is_continuous_where_tiers_meet(edge):
    below, at, above = (_total(egress_lines([_sent("us", "eu", edge + d)], _terms())) for d in (-1, 0, 1))
    assert 0 < above - at <= at - below <= Decimal("0.12") / 2**30


def test_link_in_two_tiers_has_one_line_per_tier():
    first, second, third = egress_lines(
        [_sent("asia", "us", 2 * 2**30), _sent("us", "eu", 2 * 2**30)], _terms()
    )
    assert (first.src, first.tier, first.usd) == ("asia", "0 GiB", Decimal("0.24"))
    assert (second.src, second.quantity, second.tier, second.usd) == ("us", 2**30, "0 GiB", Decimal("0.12"))
    assert (third.src, third.quantity, third.tier, third.usd) == ("us", 2**30, "3 GiB", Decimal("0.11"))


def test_tiers_restart_each_month():
    at = {
        1: datetime(2026, 10, 31, 23, 59, tzinfo=UTC).timestamp(),
        2: datetime(2026, 11, 1, tzinfo=UTC).timestamp(),
    }
    records = [epoch(v, k, at[k] - 12, 10, 2) for v in ("us", "eu") for k in (1, 2)]
    sent = [egress(v, k, w, "comm", 2, 2 * 2**30) for v, w in (("us", "eu"), ("eu", "us")) for k in (1, 2)]
    vms = [vm(v, location=PLACES[v], requested_s=at[1] - 60, ended_s=at[2]) for v in ("us", "eu")]
    terms = _terms()
    raw = swarm_epochs(records, 0)
    bill = ledger(vms, 0, raw, raw, flows(sent, terms.addresses, PLACES), {}, terms)
    lines = [(line.month, line.src, line.tier) for line in bill.lines if line.kind == "egress"]
    assert lines == [(m, s, "0 GiB") for m in ("2026-10", "2026-11") for s in ("eu", "us")]
    together = ledger(
        vms, 0, raw, raw, flows([replace(r, epoch=1) for r in sent], terms.addresses, PLACES), {}, terms
    )
    assert together.sum("egress") < bill.sum("egress")


def test_flows_of_an_epoch_without_an_end_count_with_the_one_before():
    flow = Flow("a", "b", None, None, "unknown", 0, "leaving", 1.0, 1)
    day = datetime(2026, 5, 5, tzinfo=UTC).timestamp()
    found = by_month([flow, replace(flow, epoch=9)], {3: day}, began_s=day - 31 * 86400)
    assert {month: [f.epoch for f in part] for month, part in found.items()} == {
        "2026-04": [0],
        "2026-05": [9],
    }
    assert month_of(-5.0) == month_of(1e15) == ""


@given(st.integers(10**15, 10**18), st.sampled_from(["us", "eu", "asia"]))
def test_petabytes_are_exact_to_the_last_digit(count, src):
    found = _total(egress_lines([_sent(src, "aus", count)], _terms()))
    first = 5 * 2**30
    assert Fraction(found) == (first * Fraction("0.19") + (count - first) * Fraction("0.15")) / 2**30
    half = [_sent(src, "aus", count // 2), _sent("us2" if src == "us" else "us", "aus", count - count // 2)]
    assert _total(egress_lines(half, _terms())) == found


def test_10_to_the_15_bytes_to_the_cent():
    study = _terms(load("study-2023-04"))
    usd = _total(egress_lines([_sent("us", "eu", 10**15)], study))
    assert usd.quantize(Decimal("0.01")) == Decimal("74505.81")  # 10^15 / 2^30 x 0.08 = 74505.8059...
    assert _total(data_lines({"a": 1e15}, study)) == 10_000


@given(links, st.sampled_from(["place", "price", "book"]))
def test_one_unknown_line_makes_the_sum_unknown_and_the_rest_stays(links, lack):
    rows = [_sent(*pair, n * BLOCK) for pair, n in links]
    if lack == "book":
        rows, terms = [*rows, _sent("us", "eu", 1)], _terms(book=None)
    elif lack == "place":
        rows, terms = [*rows, Traffic("us", "x", PLACES["us"], None, "unknown", 1)], _terms()
    else:
        rows, terms = (
            [*rows, Traffic("us", "y", PLACES["us"], "aws/us-west-2", "between_clouds", 1)],
            _terms(
                _book(
                    _row("inter_zone", 0, "0.01"),
                    _row("inter_continent", 0, "0.1"),
                    _row("oceania", 0, "0.2"),
                )
            ),
        )
    bill = Ledger(tuple(egress_lines(rows, terms)))
    assert bill.sum() is None
    assert bill.unknown
    assert bill.sum("vm") == 0
    known = [line for line in bill.lines if line.usd is not None]
    assert {(line.src, line.dst) for line in known} == (
        set() if lack == "book" else {pair for pair, _ in links}
    )


def test_reads_of_all_vms_share_the_store_s_tiers():
    lines = data_lines({"us": 1.5e9, "eu": 1.5e9}, _terms(), "2026-11")
    assert [(line.dst, line.tier, line.quantity, line.usd) for line in lines] == [
        ("eu", "0 GB", 1_500_000_000, Decimal("0.015")),
        ("us", "0 GB", 500_000_000, Decimal("0.005")),
        ("us", "2 GB", 1_000_000_000, Decimal("0.005")),
    ]
    assert {line.month for line in lines} == {"2026-11"}


@given(st.integers(0, 10**15), st.floats(0, 1e8), st.floats(0, 1e7))
def test_storage_grows_with_bytes_and_time(kept, seconds, more):
    (line,) = storage_lines(seconds, _terms(dataset_bytes=kept))
    (later,) = storage_lines(seconds + more, _terms(dataset_bytes=kept))
    (larger,) = storage_lines(seconds, _terms(dataset_bytes=kept + 10**6))
    assert 0 <= line.usd <= min(later.usd, larger.usd)


def test_storage_of_a_month_and_when_it_is_unknown_or_absent():
    (line,) = storage_lines(MONTH_S, _terms(dataset_bytes=150 * 10**9))
    assert (line.kind, line.usd, line.quantity) == ("storage", Decimal("0.9"), 150 * 10**9)
    assert storage_lines(MONTH_S, _terms()) == []
    for terms, why in (
        (_terms(dataset_bytes=1, book=None), "no price book"),
        (_terms(dataset_bytes=1, store_location=None), "unknown store"),
        (_terms(dataset_bytes=1, store_location="s3/x"), "no price for storage at s3/x"),
    ):
        (line,) = storage_lines(1.0, terms)
        assert (line.usd, line.price) == (None, why)


def test_whole_bill_includes_storage_and_the_controller_s_vm():
    vms = [vm("us", ended_s=3600.0), vm("c", slot=CONTROLLER, usd_per_h=Decimal("0.05"), ended_s=7200.0)]
    bill = ledger(vms, 0, [], [], [], {}, _terms(dataset_bytes=10**9))
    assert [line.kind for line in bill.lines] == ["vm", "controller", "storage"]
    assert bill.sum("controller") == Decimal("0.1")
    assert bill.sum("vm") == Decimal("0.18")
    assert bill.sum("storage") == Decimal("0.006") * 7200 / MONTH_S
    assert sum(Fraction(bill.sum(kind)) for kind in KINDS) == Fraction(bill.sum())


@given(st.floats(0, 1e7), st.floats(0, 1e5))
def test_vm_dollars_grow_with_seconds_and_are_never_negative(seconds, more):
    rows = [
        vm("us", ended_s=seconds),
        vm("us", ended_s=seconds + more),
        vm("us", requested_s=9.0, ended_s=0.0),
    ]
    short, longer, backwards = vm_lines(rows, 0, {}, _terms())
    assert 0 <= short.usd <= longer.usd
    assert backwards.usd == 0


@given(st.integers(0, 10**6), st.integers(1, 600), st.integers(0, 900), st.integers(0, 999))
def test_seconds_are_rounded_as_the_book_says(seconds, increment, minimum, milli):
    price = f"gcp,vm,*,*,T4:1/n1-standard-8/spot,h,0,0.18,{minimum},{increment},2023-04-01,made up"
    used = seconds + milli / 1000
    row = vm("us", ended_s=used)
    naive = 0
    while naive < used:
        naive += increment
        if used - naive > 10 * increment:
            naive += (int(used - naive) // increment - 5) * increment
    assert billed_seconds(row, 0, [], _terms(_book(price))) == max(naive, minimum)
    assert billed_seconds(row, 0, [], _terms(book=None)) == Decimal(repr(used))


@pytest.mark.parametrize("kind", ["store", "checkpoint"])
def test_what_goes_to_a_store_of_the_vms_region_is_free_and_to_another_vm_there_is_not(kind: str) -> None:
    book, here, store = load("list-2026-11"), "gcp/us-central1/us-central1-a", "gcp/us-central1"
    rows = [
        Traffic("a", "store", here, store, kind, 10**9),
        Traffic("a", "b", here, "gcp/us-central1/us-central1-b", "inter_zone", 10**9),
    ]
    usd = {line.dst: line.usd for line in egress_lines(rows, _terms(book))}
    assert usd["store"] == 0
    assert usd["b"] is not None
    assert usd["b"] > 0
