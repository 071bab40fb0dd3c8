"""The reserve of a budget: pace and traffic, computed by hand."""

from dataclasses import replace
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis.planning.reserve import (
    LOCAL_PACE,
    RENTED_PACE,
    egress_ceiling_usd_per_h,
    epoch_egress_usd,
    pace_of,
    unpriced_traffic,
)
from cloud.prices.book import load as load_book
from experiments.catalog import models
from experiments.emulation.scales import resolve_emulation
from experiments.parse.load import load

BOOK = load_book("study-2023-04")
PLACES = [
    "gcp/us-central1/us-central1-a", "gcp/europe-west1/europe-west1-b", "gcp/asia-east1/asia-east1-a",
    "gcp/australia-southeast1/australia-southeast1-a", "aws/us-west-2/us-west-2a", "azure/eastus", "lambda/us-west-1",
]  # fmt: skip


def test_traffic_of_two_peers_in_one_zone_is_their_data_alone():
    spec = load("geo-a2")
    model = models()[spec.model]
    assert model.bytes_per_sample is not None
    read = spec.swarm.target_batch_size * model.bytes_per_sample
    data = BOOK.store_egress(spec.data.location, "gcp/us-central1/us-central1-a", read)
    assert data is not None
    assert epoch_egress_usd(spec, BOOK) == data * Decimal("1.25")


def test_intercontinental_traffic_counts_both_ways_and_one_state():
    spec = load("geo-b2")
    model = models()[spec.model]
    assert model.bytes_per_sample is not None
    iowa, belgium = "gcp/us-central1/us-central1-a", "gcp/europe-west1/europe-west1-b"
    ways = ((iowa, belgium), (belgium, iowa))
    pair = 2 * model.parameters * 2 // 2  # gradients and means, 2 bytes a value, half of them to each
    sent = [BOOK.egress(src, dst, pair) for src, dst in ways]
    state = [BOOK.egress(src, dst, 12 * model.parameters) for src, dst in ways]
    read = spec.swarm.target_batch_size * model.bytes_per_sample
    data = [BOOK.store_egress(spec.data.location, place, read) for place in (iowa, belgium)]
    assert None not in [*sent, *state, *data]
    by_hand = sum(sent) + max(state) + max(data)
    assert epoch_egress_usd(spec, BOOK) == by_hand * Decimal("1.25")


def test_unknown_price_makes_the_traffic_cost_unknown():
    empty = type(BOOK).from_text(BOOK.text.splitlines()[0] + "\n", "empty.csv")
    assert epoch_egress_usd(load("geo-b2"), empty) is None


def test_unknown_sample_size_makes_the_traffic_cost_unknown():
    spec = load("geo-b2", ["model=WhisperSmall", "emulation=null"])
    assert epoch_egress_usd(spec, BOOK) is None
    assert unpriced_traffic(spec, BOOK) == ["samples of WhisperSmall, whose size is unknown"]


@given(
    places=st.lists(st.sampled_from(PLACES), min_size=2, max_size=4),
    store=st.sampled_from(["b2/us-west-1", "aws/us-east-1", "gcp/us-central1"]),
    book=st.sampled_from([BOOK, load_book("list-2026-11")]),
)
def test_traffic_is_unknown_iff_a_route_has_no_price(places, store, book):
    spec = load("geo-b2")
    groups = tuple(
        spec.peers[0].model_copy(
            update={
                "name": f"g{n}",
                "resources": spec.peers[0].alternatives[0].model_copy(update={"infra": place}),
            }
        )
        for n, place in enumerate(places)
    )
    data = spec.data.model_copy(update={"location": store})
    spec = spec.model_copy(update={"peers": groups, "data": data})
    assert (epoch_egress_usd(spec, book) is None) == bool(unpriced_traffic(spec, book))


@pytest.mark.parametrize("pace", [LOCAL_PACE, RENTED_PACE])
def test_reserve_covers_one_epoch_and_traffic_during_shutdown(pace):
    rate = egress_ceiling_usd_per_h(Decimal(3), 2 * pace.all_s, pace)
    assert abs(pace.reserve_usd(Decimal(0), rate) - Decimal("4.5")) < Decimal("1e-9")


def test_shortened_epoch_delays_metering_by_one_epoch():
    spec = load("geo-c8")
    plan = resolve_emulation(spec, 2)
    stretch = plan.study_epoch_s / plan.epoch_s
    assert stretch > 2
    pace = pace_of(plan, False, 600.0)
    assert pace.teardown_s == pytest.approx(LOCAL_PACE.teardown_s * stretch)
    assert pace.metering_period_s == pytest.approx(
        LOCAL_PACE.metering_period_s * stretch + plan.study_epoch_s
    )
    assert pace_of(replace(plan, epoch_s=plan.study_epoch_s), False, 600.0) == LOCAL_PACE
    assert pace_of(None, True, 0.0) == pace_of(plan, True, 0.0) == replace(RENTED_PACE, teardown_s=420.0)


def test_rented_reserve_covers_lease_and_autodown():
    lease_s = load("geo-c8").lease_s
    assert pace_of(None, True, lease_s).teardown_s == lease_s + 420.0


def test_hierarchical_averaging_halves_intercontinental_traffic():
    flat, hierarchical = (load("geo-c8", [f"swarm.averaging={kind}"]) for kind in ("flat", "hierarchical"))
    without = load("geo-c8", ["swarm.target_batch_size=32768"])
    assert epoch_egress_usd(flat, BOOK) == epoch_egress_usd(without, BOOK)
    vector = 2 * models()[flat.model].parameters
    places = [group.alternatives[0].infra for group in flat.peers]
    pairs = [(a, b) for a in places for b in places if a != b]
    assert len(pairs) == 12
    # of each pair of regions: flat 2 x 2 pairs of peers a quarter vector each, else half a vector in all; inside it is free
    flat_usd = sum(4 * BOOK.egress(a, b, vector // 4) for a, b in pairs)
    hierarchical_usd = sum(4 * BOOK.egress(a, b, vector // 8) for a, b in pairs)
    saved = (flat_usd - hierarchical_usd) * Decimal("1.25")
    assert saved > 0
    found = epoch_egress_usd(flat, BOOK) - epoch_egress_usd(hierarchical, BOOK)
    assert abs(found - saved) < Decimal("1e-20")
