"""Dollars of strategies, by hand and by their properties."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_up_profile import measurement, profile
from plan_setting import BELGIUM, book, peer, setting

from analysis.pipeline.dollars import cost, least_cheaper_passes
from analysis.pipeline.options import Option, Setting, options_of
from analysis.pipeline.profile_records import Strategy
from cloud.prices.book import load

ONLINE = measurement(Strategy(0), 100_000, 1000)
CACHED = measurement(Strategy(0, cache="disk"), 100_000, 1000, 100_000)
STORED = replace(measurement(Strategy(1, "zlib"), 40_000, 2000, offline_s=0.0034), save_s=0.0002)
PRICES = st.decimals("0", "5", places=3).map(str)
AMOUNTS = st.floats(1, 1e7)


def options() -> tuple[Option, ...]:
    return options_of(profile(ONLINE, CACHED, STORED))


def test_all_online_by_hand():
    """1M samples at 50/s: 20,000 s of $0.36 an hour, 100 GB read at $0.01, 100 GB kept for 20,000 s of 730 h."""
    found = cost(options()[0], setting(), 1)
    assert found.training.sum("vm") == Decimal("2")
    assert found.training.sum("data") == Decimal("1")
    kept = found.training.sum("storage")
    assert kept is not None
    assert float(kept) == pytest.approx(100 * 0.0073 * 20_000 / (730 * 3600))
    assert found.one_off_usd == 0
    assert found.usd is not None
    assert found.usd == pytest.approx(3 + kept, abs=Decimal("1e-20"))
    assert found.usd_per_1m == pytest.approx(found.usd, abs=Decimal("1e-20"))


def test_a_cache_reads_once():
    found = cost(options()[1], setting(), 30)
    assert found.training.sum("data") == Decimal("1")
    assert cost(options()[0], setting(), 30).training.sum("data") == Decimal("30")
    assert found.part_usd_per_1m("data") == Decimal(1) / 30


def test_stored_by_hand():
    """Offline: 3,600 s of a VM, 100 GB read, 40 GB sent to the store at $0.1. Then 40 GB a pass; 140 GB are kept."""
    found = cost(options()[2], setting(), 3)
    assert found.offline.sum("vm") == Decimal("0.36")
    assert found.offline.sum("data") == Decimal("1")
    assert found.offline.sum("egress") == Decimal("4")
    assert found.one_off_usd == Decimal("5.36")
    assert found.training.sum("data") == Decimal("1.2")
    kept = found.training.sum("storage")
    assert kept is not None
    assert float(kept) == pytest.approx(140 * 0.0073 * 60_000 / (730 * 3600))


def test_on_this_machine_only_the_reads_are_billed():
    found = cost(options()[2], setting(offline=False), 1)
    assert (found.one_off_usd, found.offline.sum("data")) == (Decimal(1), Decimal(1))


def test_inside_the_store_s_region_bytes_are_free():
    aws = replace(peer(), location="aws/us-west-2/us-west-2a")
    where = replace(setting(aws, store="aws/us-west-2", prices=load("list-2026-11")), samples=1_000_000)
    found = cost(options()[2], where, 30)
    assert found.training.sum("data") == 0
    assert found.offline.sum("data") == found.offline.sum("egress") == 0
    storage = found.training.sum("storage")
    assert storage is not None
    assert storage > 0


def test_an_unknown_price_makes_the_sum_unknown_and_says_why():
    found = cost(options()[0], setting(peer(usd_per_h=None)), 1)
    assert found.usd is None
    assert found.usd_per_1m is None
    assert found.unknown == ("no price for T4:1 spot at gcp/us-central1/us-central1-a (here)",)
    nowhere = cost(options()[0], setting(store="lambda/us-west-1"), 1)
    assert nowhere.unknown == (
        "no price for reading from lambda/us-west-1", "no price for storage at lambda/us-west-1",
    )  # fmt: skip


def test_work_that_was_not_measured_is_unknown():
    unmeasured = replace(STORED, offline_s=None)
    found = cost(options_of(profile(ONLINE, unmeasured))[1], setting(), 1)
    assert found.one_off_usd is None
    assert found.training.sum() is not None


@st.composite
def an_option(draw, cache: bool = True) -> Option:
    split = draw(st.integers(0, 1))
    strategy = Strategy(
        split, "zlib" if split else "none", cache=draw(st.sampled_from(["none", "disk"])) if cache else "none"
    )
    found = measurement(
        strategy, draw(AMOUNTS), draw(st.floats(1, 3000)), 1.0, draw(st.floats(0, 0.1)) if split else None
    )
    return replace(options_of(profile(ONLINE, found))[-1], first_pass=found)


@st.composite
def a_setting(draw) -> Setting:
    count = draw(st.integers(1, 4))
    peers = [
        peer(
            f"p-{n}",
            trainer_sps=draw(st.floats(1, 500)),
            usd_per_h=draw(PRICES),
            location=BELGIUM if n % 2 else peer().location,
        )
        for n in range(count)
    ]
    prices = book(vm=draw(PRICES), read=draw(PRICES), upload=draw(PRICES), kept=draw(PRICES), minimum_s="60")
    return setting(*peers, samples=draw(st.integers(1, 10**6)), prices=prices)


@given(an_option(), a_setting(), st.integers(1, 60))
def test_no_part_is_negative_and_the_parts_add_up(option, where, passes):
    found = cost(option, where, passes)
    parts = [found.part_usd_per_1m(kind) for kind in ("vm", "data", "storage", "offline")]
    assert all(part is not None and part >= 0 for part in parts)
    assert found.usd_per_1m is not None
    assert float(found.usd_per_1m) == pytest.approx(float(sum(p for p in parts if p is not None)))


@given(
    an_option(), a_setting(), st.integers(1, 60), PRICES, PRICES, st.sampled_from(["read", "upload", "kept"])
)
def test_a_higher_price_never_costs_less(option, where, passes, one, other, which):
    cheap, dear = sorted((Decimal(one), Decimal(other)))
    sums = [cost(option, replace(where, book=book(**{which: str(usd)})), passes).usd for usd in (cheap, dear)]
    assert sums[0] is not None
    assert sums[1] is not None
    assert sums[0] <= sums[1]


@given(an_option(), a_setting(), st.integers(1, 60), PRICES, PRICES)
def test_a_dearer_vm_never_costs_less(option, where, passes, one, other):
    cheap, dear = sorted((Decimal(one), Decimal(other)))
    first = where.peers[0]
    sums = [
        cost(option, replace(where, peers=(replace(first, usd_per_h=usd), *where.peers[1:])), passes).usd
        for usd in (cheap, dear)
    ]
    assert sums[0] is not None
    assert sums[1] is not None
    assert sums[0] <= sums[1]


@given(an_option(), a_setting(), st.integers(1, 60))
def test_peers_add_up(option, where, passes):
    """Each peer's VM costs what it would alone for the same time, and together they read every byte once a pass."""
    found = cost(option, where, passes)
    by_peer = {one.slot: Decimal(0) for one in where.peers}
    for line in found.training.lines:
        if line.kind in ("vm", "data"):
            assert line.usd is not None
            by_peer[line.src if line.kind == "vm" else line.dst] += line.usd
    vm, data = found.training.sum("vm"), found.training.sum("data")
    assert vm is not None
    assert data is not None
    assert sum(by_peer.values()) == pytest.approx(vm + data, abs=Decimal("1e-20"))
    price = where.book.vm(peer().location, "T4:1", True)
    assert price is not None
    billed = price.billed_seconds(found.run.seconds)
    assert float(vm) == pytest.approx(float(sum(one.usd_per_h or 0 for one in where.peers) * billed / 3600))
    read = sum(line.quantity or 0 for line in found.training.lines if line.kind == "data")
    if option.measured.strategy.cache == "none":
        assert read == pytest.approx(
            option.measured.wire_bytes * where.samples * passes, abs=len(where.peers)
        )
    else:
        assert read <= option.measured.wire_bytes * where.samples * (1 + 1e-9) + len(where.peers)


@settings(deadline=None, max_examples=40)
@given(an_option(), a_setting())
def test_break_even_agrees_with_the_costs_around_it(option, where):
    baseline = options_of(profile(ONLINE))[0]
    passes = least_cheaper_passes(option, baseline, where, most=2000)

    def cheaper(number: int) -> bool:
        usd, other = cost(option, where, number).usd, cost(baseline, where, number).usd
        assert usd is not None
        assert other is not None
        return usd < other

    if passes is None:
        assert not any(cheaper(number) for number in (1, 2, 5, 16, 2000))
    else:
        assert cheaper(passes)
        assert passes == 1 or not cheaper(passes - 1)
        if passes <= 16:
            assert not any(cheaper(number) for number in range(1, passes))


def test_break_even_by_hand():
    """Stored: $5.36 once, and a pass $0.6 less for reading and $0.0022 more for keeping 40 GB: from pass 9 on."""
    online, cached, stored = options()
    assert least_cheaper_passes(stored, online, setting()) == 9
    assert least_cheaper_passes(cached, online, setting()) == 2
    assert least_cheaper_passes(online, online, setting()) is None
    assert least_cheaper_passes(stored, online, setting(prices=book(upload="100"))) == 6694
    assert least_cheaper_passes(stored, online, setting(prices=book(read="0"))) is None
    assert least_cheaper_passes(stored, online, setting(peer(usd_per_h=None))) is None


@given(a_setting(), st.integers(1, 30))
def test_a_faster_input_never_costs_more(where, passes):
    slow, fast = (options_of(profile(measurement(Strategy(0), 1e5, sps)))[0] for sps in (20, 40))
    a, b = cost(slow, where, passes).usd, cost(fast, where, passes).usd
    assert a is not None
    assert b is not None
    assert b <= a + Decimal("1e-7")  # bytes are whole: one more for each peer
