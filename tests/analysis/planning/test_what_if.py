"""Changes of an experiment: how they are read, and their predictions beside the experiment as it is."""

from __future__ import annotations

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis.planning.places import in_order
from analysis.planning.plan import plan_of
from analysis.planning.prediction import predict
from analysis.planning.what_if import ChangeError, compared, override_of
from cloud.prices.book import PriceBook, load
from experiments.parse import load as load_spec
from experiments.schema.models import Replace, Resources
from experiments.schema.slots import Slot

BOOK = load("study-2023-04")


@pytest.mark.parametrize(
    ("change", "override"),
    [
        ("+2 eu", "peers.eu.count=4"),
        (" -1  us ", "peers.us.count=1"),
        ("tuning=wan", "network_tuning=wan"),
        ("compression = none", "swarm.compression=none"),
        ("prices=list-2026-11", "prices=list-2026-11"),
        ("swarm.target_batch_size=8192", "swarm.target_batch_size=8192"),
    ],
)
def test_changes_are_arguments_of_set(change: str, override: str):
    assert override_of(change, load_spec("geo-c8", shipped=True)) == override


def test_a_group_is_found_by_its_continent():
    spec = load_spec("geo-b2", shipped=True)
    named = [
        g.model_copy(update={"name": name}) for g, name in zip(spec.peers, ("iowa", "belgium"), strict=True)
    ]
    spec = spec.model_copy(update={"peers": tuple(named)})
    assert override_of("+2 eu", spec) == "peers.belgium.count=3"
    assert override_of("+1 iowa", spec) == "peers.iowa.count=2"
    both = spec.model_copy(update={"peers": (named[0], named[0].model_copy(update={"name": "iowa-2"}))})
    with pytest.raises(ChangeError, match="several groups are in us; the groups of geo-b2 are iowa, iowa-2"):
        override_of("+2 us", both)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ("+1 mars", "no group is called mars; the groups of geo-c8 are us, eu, asia, aus"),
        ("-2 us", "leaves no peer of the 2 in group us"),
        ("more", "'more' is not a change"),
        ("=3", "'=3' is not a change"),
    ],
)
def test_changes_that_cannot_be_read(change: str, sentence: str):
    with pytest.raises(ChangeError, match=sentence):
        override_of(change, load_spec("geo-c8", shipped=True))


def test_each_is_predicted_with_its_own_prices():
    spec = load_spec("geo-b2", shipped=True)
    more = load_spec("geo-b2", ["peers.eu.count=2"], shipped=True)
    newer = load("list-2026-11")
    empty = PriceBook.from_text(BOOK.text.partition("\n")[0] + "\n", "empty")
    odd = load_spec("geo-b2", ["swarm.batch_size=16"], shipped=True)
    found = compared(
        {"": (spec, BOOK), "+1 eu": (more, BOOK), "new": (spec, newer), "no": (spec, empty), "x": (odd, BOOK)}
    )
    as_is, bigger, dearer, unpriced, unknown = found
    assert as_is.prediction == predict(spec, BOOK)
    assert bigger.prediction.sps is not None
    assert as_is.prediction.sps is not None
    assert bigger.prediction.sps.value > as_is.prediction.sps.value
    assert as_is.usd_per_h is not None
    assert dearer.usd_per_h is not None
    assert dearer.prediction.sps == as_is.prediction.sps
    assert dearer.usd_per_h.value != as_is.usd_per_h.value
    assert unpriced.usd_per_h is None
    assert unpriced.prediction.sps == as_is.prediction.sps
    assert "empty has no price of T4:1 in gcp/us-central1/us-central1-a" in unpriced.unknown
    assert unknown.prediction.sps is None
    assert unknown.usd_per_1m is None
    assert "not with swarm.batch_size 16" in unknown.unknown[0]


@pytest.mark.parametrize("policy", ["next_place", "cheapest_place"])
def test_places_are_those_of_the_plan(policy: str):
    """The first place of the file is dearer: only `cheapest_place` begins with the other one."""
    places = (
        '[{infra: gcp/europe-west1/europe-west1-b, accelerators: "T4:1", use_spot: false}, '
        '{infra: gcp/us-central1/us-central1-a, accelerators: "T4:1", use_spot: true}]'
    )
    change = f"peers.us.any_of={places}"
    spec = load_spec(
        "geo-b2", ["peers.us.resources=null", change, f"peers.us.replace.policy={policy}"], shipped=True
    )
    plan = plan_of(spec, BOOK, None)
    (as_is,) = compared({"": (spec, BOOK)})
    assert plan.prediction.sps is not None
    assert as_is.prediction == plan.prediction
    assert as_is.usd_per_h is not None
    assert as_is.usd_per_h == plan.predicted_cost.usd_per_h
    assert as_is.usd_per_1m == plan.predicted_cost.usd_per_1m_samples
    cheapest = plan.peers[0].first.location == "gcp/us-central1/us-central1-a"
    assert cheapest is (policy == "cheapest_place")


@given(st.lists(st.one_of(st.none(), st.sampled_from(["0", "0.1", "0.2", "3"])), min_size=1, max_size=4))
def test_the_cheapest_places_come_first_and_equal_ones_in_the_files_order(prices: list[str | None]):
    by_zone = {
        f"gcp/us-central1/us-central1-{zone}": price for zone, price in zip("abcf", prices, strict=False)
    }
    places = tuple(Resources(infra=zone, accelerators="T4:1", use_spot=True) for zone in by_zone)

    def usd_per_h(place: Resources) -> Decimal | None:
        price = by_zone[place.infra]
        return None if price is None else Decimal(price)

    slot = Slot("us-0", "us", places, Replace(policy="cheapest_place"))
    found = in_order(slot, usd_per_h)
    assert sorted(found, key=places.index) == list(places)
    ranks = [(usd is None, usd or 0, places.index(place)) for place in found for usd in (usd_per_h(place),)]
    assert ranks == sorted(ranks)
    assert in_order(Slot("us-0", "us", places, Replace(policy="next_place")), usd_per_h) == places
