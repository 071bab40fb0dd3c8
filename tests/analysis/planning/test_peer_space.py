"""Figures of numbers of peers by place: those of `predict`, bounds that hold, equal places, and the real predictor searched."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal
from functools import cache
from itertools import combinations_with_replacement

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from analysis.planning import prediction
from analysis.planning.peer_space import Kind, PeerSpace
from analysis.planning.prediction import inputs_of, predict
from analysis.planning.search import Figures, Goals, pareto
from cloud.prices.book import PriceBook, load
from experiments.catalog import step_time
from experiments.parse import load as load_spec
from experiments.schema.models import ExperimentSpec, PeerGroup, Resources

PLACES = (
    "gcp/us-central1/us-central1-a",
    "gcp/us-central1/us-central1-b",
    "gcp/europe-west1/europe-west1-b",
    "gcp/asia-east1/asia-east1-a",
    "gcp/australia-southeast1/australia-southeast1-a",
)
MODELS = ("geo-c8", "geo-c8-nlp")
ACCELERATORS = ("T4:1", "A10:1")
BOOK = load("study-2023-04")
USD = {"T4:1": Decimal("0.18"), "A10:1": Decimal("0.60")}


OPTIONS = (
    (),
    ("swarm.compression=none",),
    ("swarm.compression=uniform8bit",),
    ("swarm.compression=powersgd:4",),
    ("network_tuning=wan",),
    ("swarm.overlap=delayed",),
    ("swarm.averaging=hierarchical",),
    ("network_tuning=wan", "swarm.averaging=hierarchical", "swarm.overlap=delayed"),
    ("swarm.averaging=hierarchical", "swarm.target_batch_size=2048", "swarm.overlap=delayed"),
)


@cache
def space(
    name: str,
    places: tuple[str, ...] = PLACES,
    options: tuple[str, ...] = (),
    rented: bool = False,
) -> PeerSpace:
    spec = load_spec(name, list(options), shipped=True)
    inputs, _ = inputs_of(spec)
    kinds: list[Kind] = []
    for place in places:
        for accelerator in ACCELERATORS:
            step = step_time(spec.trains, accelerator)
            assert step is not None
            rate = step.batch_size / step.step_s
            kinds.append(
                Kind(place, accelerator, True, rate, step.sync_work_s, USD[accelerator], step_s=step.step_s)
            )
    return PeerSpace(kinds, inputs, BOOK, rented=rented)


def spec_with(
    name: str, made: PeerSpace, counts: tuple[int, ...], options: tuple[str, ...]
) -> ExperimentSpec:
    groups = tuple(
        PeerGroup(
            name=f"g{k}",
            count=count,
            resources=Resources(
                infra=made.all[k].location, accelerators=made.all[k].accelerators, use_spot=True
            ),
        )
        for k, count in enumerate(counts)
        if count
    )
    spec = load_spec(name, list(options), shipped=True)
    return spec.model_copy(update={"peers": groups})


COUNTS = st.lists(st.integers(0, 2 * len(PLACES) - 1), min_size=2, max_size=8).map(
    lambda chosen: tuple(chosen.count(k) for k in range(2 * len(PLACES)))
)


@settings(max_examples=120, deadline=None)
@given(st.sampled_from(MODELS), COUNTS, st.sampled_from(OPTIONS), st.booleans())
def test_figures_are_those_of_the_predictor(
    name: str, counts: tuple[int, ...], options: tuple[str, ...], rented: bool
):
    made = space(name, options=options, rented=rented)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(prediction, "_DRAWS", 20)  # the values do not depend on the draws
        patch.setattr(prediction, "_SAMPLED", 20)
        p = predict(spec_with(name, made, counts, options), BOOK, rented=rented)
    found = made.figures(counts)
    assert p.sps
    assert p.epoch_s
    assert p.egress_usd_per_epoch is not None
    assert found.sps == pytest.approx(p.sps.value, rel=1e-12)
    vms = sum(count * float(kind.usd_per_h) for count, kind in zip(counts, made.all, strict=True))
    per_h = vms + float(p.egress_usd_per_epoch) / p.epoch_s.value * 3600
    assert found.usd_per_h == pytest.approx(per_h, rel=1e-12)
    assert found.usd_per_1m == pytest.approx(per_h / 3600 / p.sps.value * 1e6, rel=1e-12)


@settings(max_examples=600, deadline=None)
@given(st.sampled_from(MODELS), COUNTS, st.sampled_from(OPTIONS), st.booleans(), st.data())
def test_no_completion_surpasses_its_bound(
    name: str, counts: tuple[int, ...], options: tuple[str, ...], rented: bool, data: st.DataObject
):
    made = space(name, options=options, rented=rented)
    used = [k for k, count in enumerate(counts) if count]
    assume(len(used) > 1)
    kind = data.draw(st.integers(used[0] + 1, used[-1]))
    begun = tuple(count if k < kind else 0 for k, count in enumerate(counts))
    best = made.bound(begun, kind, sum(counts))
    assert best is not None
    found = made.figures(counts)
    assert found.sps <= best.sps
    assert found.usd_per_h >= best.usd_per_h
    assert found.usd_per_1m >= best.usd_per_1m


@settings(max_examples=30, deadline=None)
@given(
    st.sampled_from(MODELS),
    st.sampled_from(OPTIONS),
    st.sets(st.sampled_from(PLACES), min_size=1, max_size=3),
    st.integers(2, 5),
    st.builds(
        Goals,
        st.one_of(st.none(), st.floats(0.3, 5)),
        st.one_of(st.none(), st.floats(30, 500)),
        st.one_of(st.none(), st.floats(0.5, 10)),
    ),
)
def test_the_search_with_the_real_predictor_is_equal_to_brute_force(
    name: str, options: tuple[str, ...], places: set[str], peers: int, goals: Goals
):
    made = space(name, tuple(sorted(places)), options)
    every: list[Figures] = []
    for n in range(2, peers + 1):
        for chosen in combinations_with_replacement(range(made.kinds), n):
            every.append(made.figures(tuple(chosen.count(k) for k in range(made.kinds))))
    some = {(f.sps, f.usd_per_1m) for f in every if goals.met(f)}
    best = {p for p in some if not any(q != p and q[0] >= p[0] and q[1] <= p[1] for q in some)}
    result = pareto([made], range(2, peers + 1), goals)
    assert {(f.figures.sps, f.figures.usd_per_1m) for f in result.front} == best


@pytest.mark.parametrize("goals", [Goals(), Goals(min_sps=300, max_usd_per_h=4)])
def test_five_million_combinations_are_searched_completely_within_the_limit(goals: Goals):
    result = pareto([space("geo-c8")], range(2, 17), goals)
    assert result.account.combinations > 5_000_000
    assert result.account.complete
    assert result.front


def test_pairs_that_were_not_measured_do_not_fit():
    # Two regions of one place of the network: no figures. Two zones of one region: those inside the place.
    made = space("geo-c8", ("gcp/us-central1/us-central1-a", "gcp/us-west1/us-west1-a", PLACES[1]))
    assert not made.fits(0, 2)
    assert made.fits(0, 4)
    assert made.unfit[0, 2].code == "no_path"
    assert "gcp/us-west1/us-west1-a" in made.unfit[0, 2].detail


def test_pairs_whose_traffic_has_no_price_do_not_fit():
    rows = [line for line in BOOK.text.splitlines() if ",oceania," not in line]
    book = PriceBook.from_text("\n".join(rows) + "\n", "without")
    full = space("geo-c8")
    made = PeerSpace(full.all, inputs_of(load_spec("geo-c8", shipped=True))[0], book, rented=False)
    aus, us = 8, 0
    assert not made.fits(aus, us)
    assert made.unfit[us, aus].code == "no_egress_price"
    assert made.fits(aus, aus)


def test_places_with_the_same_figures_are_found():
    # us-west1 and us-central1 are one place of the network, at one price; they cannot train together.
    central, west, eu = "gcp/us-central1/us-central1-a", "gcp/us-west1/us-west1-a", PLACES[2]
    made = space("geo-c8", (central, west, eu))
    assert made.equal_places() == {west: central}
    assert made.figures((2, 1, 0, 0, 2, 0)) == made.figures((0, 0, 2, 1, 2, 0))
    dearer = [replace(k, usd_per_h=k.usd_per_h * 2) if i == 2 else k for i, k in enumerate(made.all)]
    inputs, _ = inputs_of(load_spec("geo-c8", shipped=True))
    assert PeerSpace(dearer, inputs, BOOK, rented=False).equal_places() == {}
    assert space("geo-c8").equal_places() == {}  # two zones of one region can train together
