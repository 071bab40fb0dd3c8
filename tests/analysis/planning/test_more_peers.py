"""Doublings of an experiment by the predictor: equal to predicting it, in the plan and in advice."""

from __future__ import annotations

from decimal import Decimal
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analysis.planning.advice import advise
from analysis.planning.more_peers import grown, more_peers, most_peers
from analysis.planning.places import first_places
from analysis.planning.plan import plan_of
from analysis.planning.prediction import predict
from analysis.planning.search import Goals
from cloud.prices.book import load
from experiments.parse import load as load_spec
from experiments.parse.load import from_document, to_document
from experiments.schema.models import ExperimentSpec, Resources
from metrics.more_peers import LEAST_GAIN, by_rule, doubled

BOOK = load("study-2023-04")
US, AUS = "gcp/us-central1/us-central1-a", "gcp/australia-southeast1/australia-southeast1-a"


@cache
def spec_of(name: str, *overrides: str) -> ExperimentSpec:
    return load_spec(name, list(overrides), shipped=True)


@pytest.mark.parametrize("name", ["geo-a2", "geo-b2", "geo-c8", "geo-c8-nlp"])
def test_a_doubling_is_the_prediction_of_twice_the_peers(name: str):
    spec = spec_of(name)
    found = plan_of(spec, BOOK, None).more_peers
    assert found is not None
    counts = {group.name: group.count for group in spec.peers}
    twice = load_spec(name, [f"peers.{g}.count={2 * n}" for g, n in counts.items()], shipped=True)
    one, two = plan_of(spec, BOOK, None), plan_of(twice, BOOK, None)
    assert one.prediction.sps
    assert two.prediction.sps
    assert found.peers == spec.peer_count
    assert found.twice
    assert found.twice.factor == pytest.approx(two.prediction.sps.value / one.prediction.sps.value)
    dollars = [plan.predicted_cost.usd_per_1m_samples for plan in (one, two)]
    assert dollars[0]
    assert dollars[1]
    assert found.twice.usd_factor == pytest.approx(dollars[1].value / dollars[0].value)
    assert one.prediction.granularity
    assert found.factor == pytest.approx(doubled(one.prediction.granularity.value))


@settings(max_examples=6, deadline=None)
@given(st.lists(st.integers(1, 8), min_size=1, max_size=4), st.sampled_from(["geo-c8", "geo-c8-nlp"]))
def test_it_stops_at_the_first_doubling_that_gives_too_little(counts: list[int], name: str):
    spec = spec_of(name)
    groups = tuple(
        group.model_copy(update={"count": count}) for group, count in zip(spec.peers, counts, strict=False)
    )
    spec = spec.model_copy(update={"peers": groups})
    if spec.peer_count < 2:
        return
    places = first_places(spec, lambda place: None)
    p = predict(spec, BOOK)
    found = more_peers(spec, p, BOOK, rented=False, places=places, vm_usd_per_h=Decimal("1.44"))
    assert found is not None
    assert found.peers == spec.peer_count
    if found.twice is not None:
        assert found.twice.usd_factor is not None
        assert found.twice.usd_factor > 1  # a doubling makes a sample dearer, whatever it gives

    def pays(times: int) -> bool:
        before, after = (predict(grown(spec, n), BOOK).sps for n in (times, 2 * times))
        assert before
        assert after
        return after.value / before.value >= 1 + LEAST_GAIN

    if found.stops_at is None:
        assert pays(most_peers(spec) // (2 * found.peers))
        return
    times, rest = divmod(found.stops_at, found.peers)
    assert rest == 0
    assert not pays(times)
    assert times == 1 or pays(times - 1)


def test_proposals_have_the_doublings_of_their_plans():
    places = [Resources(infra=at, accelerators="T4:1", use_spot=True) for at in (US, AUS)]
    advice = advise({"": spec_of("geo-c8-nlp")}, places, range(2, 7), Goals(), BOOK, most=4)
    assert len(advice.proposals) > 2
    for proposal in advice.proposals:
        planned = plan_of(from_document(to_document(proposal.spec)), BOOK, None).more_peers
        assert planned is not None
        assert proposal.more_peers is not None
        assert proposal.more_peers.stops_at == planned.stops_at
        one, other = proposal.more_peers.twice, planned.twice
        assert one
        assert other
        assert one.factor == pytest.approx(other.factor, rel=1e-9)
        assert one.usd_factor == pytest.approx(other.usd_factor, rel=1e-9)


@pytest.mark.parametrize("name", ["geo-b2", "geo-c8-nlp"])
def test_a_route_without_a_price_leaves_the_samples_per_s(name: str):
    """Without prices the search has no figures, and each doubling is predicted."""
    empty = type(BOOK).from_text(BOOK.text.splitlines()[0] + "\n", "empty.csv")
    found, priced = (plan_of(spec_of(name), book, None).more_peers for book in (empty, BOOK))
    assert found
    assert priced
    assert found.stops_at == priced.stops_at
    assert found.twice
    assert priced.twice
    assert found.twice.factor == pytest.approx(priced.twice.factor, rel=1e-9)
    assert found.twice.usd_factor is None


def test_machines_of_ones_own_are_by_the_rule():
    """Two of them in one place have no measured network."""
    spec = load_spec("geo-e-a", matrix=["geo-e-a-2"], shipped=True)
    plan = plan_of(spec, BOOK, None)
    assert plan.prediction.granularity
    assert plan.more_peers
    assert plan.more_peers == by_rule(plan.prediction.granularity.value, spec.peer_count, 64)


@pytest.mark.parametrize("name", ["geo-a2", "geo-c8", "geo-c8-nlp"])
def test_a_plan_predicts_once(name: str, monkeypatch: pytest.MonkeyPatch):
    """With all prices the figures of more peers are the search's."""

    def slow(*_: object, **__: object) -> None:
        raise AssertionError("a doubling was predicted")

    monkeypatch.setattr("analysis.planning.more_peers.predict", slow)
    found = plan_of(spec_of(name), BOOK, None).more_peers
    assert found
    assert found.by == "prediction"
    assert found.stops_at


def test_each_peer_needs_a_batch():
    assert most_peers(spec_of("geo-b2")) == 64
    small = spec_of("geo-b2").swarm.model_copy(update={"target_batch_size": 512, "batch_size": 128})
    spec = spec_of("geo-b2").model_copy(update={"swarm": small})
    assert most_peers(spec) == 4


def test_what_is_not_predicted_has_none():
    plan = plan_of(spec_of("geo-b2", "emulation.accelerators=host"), BOOK, None)
    assert plan.more_peers is None
    assert plan.as_dict()["prediction"]["more_peers"] is None


def test_a_plan_and_its_json_say_it_in_the_same_words():
    document = plan_of(spec_of("geo-c8"), BOOK, None).as_dict()["prediction"]["more_peers"]
    assert document["peers"] == 8
    assert document["by"] == "prediction"
    assert document["predicted_factor"] == pytest.approx(1.6537, rel=1e-3)
    assert document["text"].startswith(
        "granularity 5.52: twice the peers would give 1.73 times the samples/s"
    )
    assert f"more stop paying at {document['stops_at']} peers" in document["text"]
