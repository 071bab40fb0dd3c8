"""Advice: proposals with the predictor's intervals, goals that cannot be met, machines in one place, what is left out."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from functools import cache
from itertools import product
from typing import Any

import pytest

from analysis.planning.advice import AdviceError, LeftOut, advise, proposed_spec, usd_of, why
from analysis.planning.advice_words import account_lines, unmet_line
from analysis.planning.peer_space import PeerSpace
from analysis.planning.prediction import predict
from analysis.planning.search import Goals
from cloud.prices.book import PriceBook, load
from experiments.parse import load as load_spec
from experiments.parse.load import from_document, to_document
from experiments.schema.models import ExperimentSpec, Resources

BOOK = load("study-2023-04")
US, EU, AUS = (
    "gcp/us-central1/us-central1-a",
    "gcp/europe-west1/europe-west1-b",
    "gcp/australia-southeast1/australia-southeast1-a",
)


@cache
def spec_of(name: str, *overrides: str) -> ExperimentSpec:
    return load_spec(name, list(overrides), shipped=True)


def spot(*places: str, accelerators: str = "T4:1") -> list[Resources]:
    return [Resources(infra=place, accelerators=accelerators, use_spot=True) for place in places]


def test_proposals_are_the_pareto_set_of_the_predictor():
    spec = spec_of("geo-b2")
    advice = advise({"": spec}, spot(US, EU), [2, 3], Goals(), BOOK)
    # All seven combinations, one after the other, through `predict`.
    points: dict[tuple[int, int], tuple[float, float]] = {}
    for us, eu in product(range(4), repeat=2):
        if us + eu in (2, 3):
            text = [f"peers.us.count={us}", f"peers.eu.count={eu}"]
            changed = load_spec("geo-b2", text, shipped=True) if us and eu else None
            if changed is None:
                one = spec.peers[0] if us else spec.peers[1]
                changed = spec.model_copy(update={"peers": (one.model_copy(update={"count": us or eu}),)})
            p = predict(changed, BOOK)
            assert p.sps
            points[us, eu] = (p.sps.value, usd_of(changed, p, BOOK)[1].value)
    assert len(points) == 7
    best = {
        round(sps, 6)
        for sps, usd in points.values()
        if not any((s, u) != (sps, usd) and s >= sps and u <= usd for s, u in points.values())
    }
    assert {round(p.sps.value, 6) for p in advice.proposals} == best
    assert advice.requested == advice.account.combinations == 7
    for proposal in advice.proposals:
        again = predict(proposal.spec, BOOK)
        assert proposal.prediction == again  # the same seed, the same intervals
        assert proposal.usd_per_1m.low <= proposal.usd_per_1m.value <= proposal.usd_per_1m.high
        assert proposal.time_s.value == pytest.approx(advice.samples / proposal.sps.value)
        assert proposal.time_s.low < proposal.time_s.value < proposal.time_s.high
    assert advice.samples == 3 * 32768


def test_dollars_by_hand():
    spec = spec_of("geo-b2")
    p = predict(spec, BOOK)
    per_h, per_1m = usd_of(spec, p, BOOK)
    assert p.sps
    assert p.egress_usd_per_epoch is not None
    egress = float(p.egress_usd_per_epoch) / 32768
    assert per_1m.value == pytest.approx(2 * 0.18 / 3600 / p.sps.value * 1e6 + egress * 1e6)
    assert per_h.value == pytest.approx(2 * 0.18 + egress * p.sps.value * 3600)
    empty = PriceBook.from_text(BOOK.text.partition("\n")[0] + "\n", "empty")
    with pytest.raises(ValueError, match="empty has no price of T4:1 in gcp/us-central1"):
        usd_of(spec, p, empty)


def test_goals_bound_the_proposals():
    goals = Goals(max_usd_per_h=1.5, min_sps=150, max_usd_per_1m=1.6)
    advice = advise({"": spec_of("geo-b8")}, spot(US, EU), range(2, 13), goals, BOOK)
    assert advice.unmet is None
    assert advice.proposals
    for p in advice.proposals:
        assert p.usd_per_h.value <= 1.5
        assert p.sps.value >= 150
        assert p.usd_per_1m.value <= 1.6


def test_a_goal_of_exactly_the_price_is_met():
    advice = advise({"": spec_of("geo-b8")}, spot(US), range(2, 9), Goals(max_usd_per_h=0.72), BOOK)
    assert max(p.peers[0].count for p in advice.proposals) == 4  # four at $0.18


def test_contradictory_goals_are_named_with_the_nearest():
    space = ({"": spec_of("geo-b8")}, spot(US), range(2, 9))
    fast = advise(*space, Goals(min_sps=1000), BOOK)
    assert fast.proposals == ()
    assert fast.unmet is not None
    assert fast.unmet.goals == ("min_sps",)
    assert fast.unmet.nearest.peers[0].count == 8  # the fastest
    assert fast.unmet.excess["min_sps"] == pytest.approx(1000 / fast.unmet.nearest.sps.value - 1)
    both = advise(*space, Goals(max_usd_per_h=0.5, min_sps=200), BOOK)
    assert both.unmet is not None
    assert both.unmet.goals == ("max_usd_per_h", "min_sps")  # each of them can be met alone
    assert advise(*space, Goals(min_sps=200), BOOK).proposals
    assert advise(*space, Goals(max_usd_per_h=0.5), BOOK).proposals


def test_the_sentence_has_the_rule_of_doubling_the_path_and_egress():
    [proposal] = advise(
        {"": spec_of("geo-c8-nlp")}, spot(US, AUS), [4], Goals(min_sps=1), BOOK, most=2
    ).proposals
    assert [p.count for p in proposal.peers] == [2, 2]
    g = proposal.granularity
    assert g is not None
    assert proposal.doubling == pytest.approx((g + 1) / (g / 2 + 1))
    assert proposal.transfer.kind == "path"
    words = why(proposal)
    assert f"twice the peers would give {(g + 1) / (g / 2 + 1):.2f} times" in words
    assert "australia-southeast1" in words
    assert f"egress is {100 * proposal.egress_share:.0f} % of the dollars" in words
    vm_share = 4 * 0.18 / proposal.usd_per_h.value
    assert proposal.egress_share == pytest.approx(1 - vm_share)


def test_machines_in_one_place_are_compared_with_their_sources():
    advice = advise({"": spec_of("geo-c8-nlp")}, spot(US, AUS), [4], Goals(), BOOK, most=2)
    by_name = {each.name: each for each in advice.alternatives}
    a10 = by_name["8xA10 of the paper"]
    assert (a10.sps, a10.usd_per_h, a10.clock) == (1060, Decimal("4.80"), "wall")
    assert a10.better_than == (1,)
    assert a10.meets_goals
    assert all(each.source for each in advice.alternatives)
    alone = by_name[f"one VM with T4:1 in {US}, without a swarm"]
    assert alone.sps == pytest.approx(32 / 0.230)
    assert alone.clock == "predicted"
    assert alone.cheaper_than == (1,)
    assert alone.faster_than == ()
    assert "8xT4 of the paper" not in by_name  # a swarm itself


def test_what_cannot_be_predicted_is_left_out_with_the_reason():
    before = LeftOut("option_invalid", "network_tuning=wan", "does not fit")
    resources = [
        *spot(
            US,
            "gcp/us-west1/us-west1-a",
            "gcp/us-east1/us-east1-b",
            "gcp/southamerica-east1/southamerica-east1-a",
        ),
        *spot(US, accelerators="H100:1"),
        *spot("lambda/us-west-1"),
    ]
    advice = advise({"": spec_of("geo-b2")}, resources, [2], Goals(), BOOK, invalid=[before])
    found = {(each.code, each.what) for each in advice.left_out}
    assert ("option_invalid", "network_tuning=wan") in found
    assert ("unpredicted", f"H100:1 in {US}") in found
    assert ("no_place", "T4:1 in gcp/southamerica-east1/southamerica-east1-a") in found
    assert ("no_vm_price", "T4:1 in lambda/us-west-1") in found
    assert ("same_figures", "gcp/us-west1/us-west1-a") in found
    details = {each.what: each.detail for each in advice.left_out}
    assert (
        "orch net check --places gcp/southamerica-east1"
        in details["T4:1 in gcp/southamerica-east1/southamerica-east1-a"]
    )
    assert advice.requested == 2 * 21  # two options, pairs of six kinds
    assert advice.account.combinations == 1


def test_an_option_that_cannot_be_predicted_anywhere_is_left_out_once():
    options = {"": spec_of("geo-b2"), "swarm.batch_size=16": spec_of("geo-b2", "swarm.batch_size=16")}
    advice = advise(options, spot(US, EU), [2], Goals(), BOOK)
    assert [(each.code, each.what) for each in advice.left_out] == [("unpredicted", "swarm.batch_size=16")]
    assert "with 32 samples a step, not with swarm.batch_size 16" in advice.left_out[0].detail
    assert advice.account.combinations == 3


def test_twice_the_peers_with_overlapped_rounds():
    spec = spec_of("geo-c8-nlp", "swarm.overlap=delayed")
    (found,) = advise({"": spec}, spot(US), [2], Goals(), BOOK).proposals
    calc_s, comm_s = found.prediction.calc_s, found.prediction.comm_s
    assert calc_s is not None
    assert comm_s is not None
    assert (
        calc_s.value > 2 * comm_s.value
    )  # calculation is what takes long, and it halves; the VM's own work does not
    work_s = 3.804
    assert found.doubling is None, "the paper's rule is of rounds that calculation waits for"
    assert found.more_peers is not None
    assert found.more_peers.twice is not None
    factor = found.more_peers.twice.factor
    assert factor == pytest.approx((calc_s.value + work_s) / (calc_s.value / 2 + work_s))
    assert f"by prediction {factor:.2f} times" in why(found)


def test_options_of_all_keys_compete():
    changes = [
        "network_tuning=wan",
        "swarm.averaging=hierarchical",
        "swarm.overlap=delayed",
        "swarm.compression=powersgd:4",
    ]
    options = {change: spec_of("geo-c8-nlp", *([change] if change else [])) for change in ("", *changes)}
    advice = advise(options, spot(US, EU, AUS), [4, 6], Goals(), BOOK, most=2, rows=100)
    assert advice.left_out == ()
    assert advice.account.complete
    every = [
        (p.sps.value, p.usd_per_1m.value)
        for change, spec in options.items()
        for p in advise({change: spec}, spot(US, EU, AUS), [4, 6], Goals(), BOOK, most=2, rows=100).proposals
    ]
    best = {
        one
        for one in every
        if not any(other != one and other[0] >= one[0] and other[1] <= one[1] for other in every)
    }
    assert {(p.sps.value, p.usd_per_1m.value) for p in advice.proposals} == best
    assert {p.option for p in advice.proposals} >= {"swarm.compression=powersgd:4", "swarm.overlap=delayed"}
    for proposal in advice.proposals:
        assert proposal.prediction == predict(proposal.spec, BOOK)


def test_a_pair_that_was_not_measured_names_both_places_and_the_command():
    west = "gcp/us-west1/us-west1-a"
    rows = BOOK.text.splitlines()
    rows.append("gcp,vm,us-west1,*,T4:1/n1-standard-8/spot,h,0,0.20,60,1,2023-04-01,test")
    advice = advise(
        {"": spec_of("geo-b2")}, spot(US, west), [2, 3], Goals(), PriceBook.from_text("\n".join(rows), "b")
    )
    [pair] = [each for each in advice.left_out if each.code == "no_path"]
    assert US in pair.detail
    assert west in pair.detail
    assert f"orch net check --places {US},{west}" in pair.detail
    assert advice.account.unfit == 3  # one of each, two with one, one with two


def test_nothing_predictable_is_an_error_with_the_reason():
    with pytest.raises(AdviceError, match="no step time of ConvNextLarge on H100:1: add a row"):
        advise({"": spec_of("geo-b2")}, spot(US, accelerators="H100:1"), [2], Goals(), BOOK)
    with pytest.raises(AdviceError, match="no combination of 3 to 4 peers"):
        advise({"": spec_of("geo-b2")}, spot(US), [3, 4], Goals(), BOOK, most=2)


def test_rows_are_spread_from_the_fastest_to_the_cheapest():
    space = ({"": spec_of("geo-b8")}, spot(US), range(2, 9), Goals(), BOOK)
    every, some, one = (advise(*space, rows=rows) for rows in (50, 3, 1))
    assert len(every.proposals) == 7
    assert every.more == 0
    assert [p.peers[0].count for p in some.proposals] == [8, 5, 2]
    assert some.more == 4
    assert one.proposals[0].peers[0].count == 2


def test_machines_of_ones_own_are_as_many_as_the_experiment_has():
    spec = load_spec("geo-e-a", matrix=["geo-e-a-2"], shipped=True)
    own = [one for group in spec.peers for one in group.alternatives]
    advice = advise({"": spec}, own, [2, 3, 4], Goals(), BOOK)
    assert advice.proposals
    for p in advice.proposals:
        assert sum(each.count for each in p.peers if each.location.startswith("onprem")) <= 1


@pytest.mark.parametrize("accelerators", ["T4:1", "A10:1"])
def test_a_proposal_is_a_valid_experiment(accelerators: str):
    spec = spec_of("geo-c8")
    rows = BOOK.text.splitlines()
    rows.append("gcp,vm,*,*,A10:1/none/spot,h,0,0.40,60,1,2023-04-01,test")
    places = spot(US, "gcp/us-central1/us-central1-b", EU, accelerators=accelerators)
    advice = advise({"": spec}, places, [6], Goals(), PriceBook.from_text("\n".join(rows), "b"), most=2)
    [proposal] = advice.proposals
    again = from_document(to_document(proposal.spec))
    assert again == proposal.spec
    assert again.name == "geo-c8-a1"
    assert [group.name for group in again.peers] == ["us", "us-2", "eu"]
    assert again.peer_count == 6
    assert (again.swarm, again.data, again.measure) == (spec.swarm, spec.data, spec.measure)


def test_long_names_stay_valid():
    spec = spec_of("geo-b2").model_copy(update={"name": "x" * 40})
    advice = advise({"": spec}, spot(US), [2], Goals(), BOOK)
    assert from_document(to_document(advice.proposals[0].spec)).name == "x" * 36 + "-a1"
    assert proposed_spec(spec, [], 12).name.endswith("-a12")


@pytest.mark.parametrize(
    "goals", [Goals(), Goals(max_usd_per_h=0.5, min_sps=200), Goals(min_sps=10_000, max_usd_per_1m=0.01)]
)
def test_five_million_combinations_take_no_more_figures_than_the_limit(
    goals: Goals, monkeypatch: pytest.MonkeyPatch
):
    """With goals that contradict each other a second search, without them, finds the nearest combination."""
    calls = 0

    def counted(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            nonlocal calls
            calls += 1
            return function(*arguments)

        return call

    for name in ("figures", "bound"):
        monkeypatch.setattr(PeerSpace, name, counted(getattr(PeerSpace, name)))
    rows = [*BOOK.text.splitlines(), "gcp,vm,*,*,A10:1/none/spot,h,0,0.40,60,1,2023-04-01,test"]
    book = PriceBook.from_text("\n".join(rows), "b")
    places = [
        one
        for accelerators in ("T4:1", "A10:1")
        for one in spot(
            US,
            "gcp/us-central1/us-central1-b",
            EU,
            "gcp/asia-east1/asia-east1-a",
            AUS,
            accelerators=accelerators,
        )
    ]
    limit, sizes = 500, range(2, 17)
    advice = advise({"": spec_of("geo-c8")}, places, sizes, goals, book, limit=limit, rows=1)
    account = advice.account
    assert account.combinations > 5_000_000
    searches = 1 if advice.unmet is None else 2
    doublings = 16 * len(advice.shown)  # of what is shown
    assert calls <= searches * limit + doublings
    assert not account.complete
    assert set(account.not_searched) <= set(sizes)
    left = sum(account.not_searched.values())
    assert account.combinations == account.evaluated + account.ruled_out + account.unfit + left
    assert account_lines(advice)[1].startswith("Not searched, because of --limit: ")
    for n, count in account.not_searched.items():
        assert f"{count} of {n} peers" in account_lines(advice)[1]
    assert advice.shown
    if goals == Goals():
        assert unmet_line(advice) == ""
    else:
        assert unmet_line(advice).startswith("No combination that was searched meets ")
