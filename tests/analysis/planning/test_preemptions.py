"""What preemptions leave of a prediction, by hand and against a simulation in steps."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis.planning.plan import plan_of
from analysis.planning.predicted_cost import cost_of
from analysis.planning.prediction import nominal_sps, predict
from analysis.planning.preemptions import Peer, SpotHistories, left_of, preempted, with_preemptions
from analysis.spot.timeline import Timeline, segments
from cloud.prices.book import load as load_book
from cloud.spot.history import History
from experiments.emulation.scales import resolve_emulation
from experiments.parse.load import load
from experiments.schema.slots import slots

BOOK = load_book("study-2023-04")
US = "gcp/us-central1/us-central1-a"


def history(times: list[float], capacity: list[int], end_s: float) -> History:
    return History("made", "0" * 64, tuple(times), tuple(capacity), end_s)


def count(training: tuple[int, ...]) -> float:
    """Samples/s that grow with the number of peers."""
    return float(len(training))


def left(
    capacity: list[tuple[float, int]],
    end_s: float,
    peers: int,
    restart_s: float,
    at_s: float,
    window_s: float,
):
    line = Timeline(("p",), tuple(t for t, _ in capacity), tuple((c,) for _, c in capacity), end_s)
    return left_of(segments(line), at_s, window_s, [Peer(0, 1.0)] * peers, restart_s, count)


def test_room_for_all_leaves_everything():
    assert left([(0, 2)], 100, 2, 10, 5, 50) == (1.0, 1.0)


def test_a_lost_vm_is_replaced_after_the_restart_and_billed_from_its_request():
    # Two peers; from 20 to 40 s there is room for one. The second trains again from 50 s: 30 of 100 s are lost.
    assert left([(0, 2), (20, 1), (40, 2)], 100, 2, 10, 0, 100) == (pytest.approx(0.85), pytest.approx(0.9))


def test_the_youngest_vm_is_lost_and_peers_on_demand_never():
    line = Timeline(("p",), (0, 10), ((1,), (0,)), 20.0)
    peers = [Peer(None, 3.0), Peer(0, 1.0)]
    assert left_of(segments(line), 0.0, 20.0, peers, 5.0, count) == (0.75, pytest.approx(0.875))


def test_a_window_begins_with_the_capacity_of_its_begin():
    assert left([(0, 1), (50, 0)], 100, 1, 10, 60, 40) == (0.0, 0.0)
    assert left([(0, 0), (50, 1)], 100, 1, 10, 60, 40) == (1.0, 1.0)


@given(
    st.lists(st.tuples(st.integers(1, 20), st.integers(0, 4)), min_size=1, max_size=8),
    st.integers(1, 4),
    st.integers(0, 15),
    st.data(),
)
def test_shares_are_those_of_a_simulation_second_by_second(steps, peers, restart_s, data):
    times, now = [], 0
    for length, _ in steps:
        times.append(now)
        now += length
    begins = data.draw(st.integers(0, now - 1))
    window = data.draw(st.integers(1, now - begins))
    rows = [(float(t), c) for t, (_, c) in zip(times, steps, strict=True)]
    sps, billed = left(rows, float(now), peers, float(restart_s), float(begins), float(window))
    by_second = [c for length, c in steps for _ in range(length)]
    ages: list[int] = []  # seconds since the request, oldest first
    trained = up = 0
    for second in range(begins, begins + window):
        room = min(by_second[second], peers)
        del ages[room:]
        ages += [restart_s if second == begins else 0] * (room - len(ages))
        trained += sum(age >= restart_s for age in ages)
        up += len(ages)
        ages = [age + 1 for age in ages]
    assert sps == pytest.approx(trained / (peers * window))
    assert billed == pytest.approx(up / (peers * window))


def planned(until: str, spot: SpotHistories | None):
    spec = load("geo-b2", [f"measure.epochs={until}"])
    return plan_of(spec, BOOK, resolve_emulation(spec, 2), spot=spot)


def test_histories_without_preemptions_change_no_figure():
    always = history([0.0], [8], 1e7)
    spot = SpotHistories(
        {place.infra: always for slot in slots(load("geo-b2")) for place in slot.places}, 390.0
    )
    with_spot, without = (planned("10", s).as_dict()["prediction"] for s in (spot, None))
    taken = with_spot["preemptions"]
    assert (taken["sps_share"], taken["mean_sps_share"]) == ({"value": 1.0, "low": 1.0, "high": 1.0}, 1.0)
    assert without["preemptions"] is None
    for key in ("sps", "usd_per_h", "usd_per_1m_samples", "time_to_samples_s", "usd_to_samples", "egress"):
        assert with_spot[key] == without[key]


def test_a_shortage_lowers_samples_and_widens_the_interval_as_much_as_it_says():
    spec = load("geo-b2", ["measure.epochs=40"])
    places = [slot.places[0] for slot in slots(spec)]
    p = predict(spec, BOOK)
    # Half of the time, the American peer is away for as long as a window.
    run_s = 1000.0
    half = history([0.0, 1e6], [1, 0], 2e6)
    spot = SpotHistories(
        {place.infra: half if place.infra == US else history([0.0], [1], 2e6) for place in places}, 0.0
    )
    found = preempted(spec, p, spot, places, [Decimal(1)] * 2, run_s)
    assert found is not None
    alone = nominal_sps(spec, [place for place in places if place.infra != US]) / nominal_sps(spec, places)
    assert 0.4 < alone < 0.8
    assert float(np.mean(found.sps)) == pytest.approx((1 + alone) / 2, rel=0.1)
    assert set(np.round(found.billed, 6)) >= {0.5, 1.0}
    shown = replace(p, **with_preemptions(p, found))
    assert p.sps
    assert shown.sps
    assert shown.sps.low == pytest.approx(alone * p.sps.value, rel=0.1)
    assert shown.sps.high == pytest.approx(p.sps.high, rel=0.1)
    shares = [a.share for a in shown.assumptions if a.share is not None and a.share_of == "sps"]
    assert sum(shares) == pytest.approx(1.0)
    [own] = [a for a in shown.assumptions if a.name == "preemptions"]
    assert own.share is not None
    assert own.share > 0.9
    without, cost = cost_of(p, 32768, 10**6, Decimal(2)), cost_of(shown, 32768, 10**6, Decimal(2), found)
    assert without.time_to_samples_s
    assert cost.time_to_samples_s
    assert cost.time_to_samples_s.high == pytest.approx(without.time_to_samples_s.value / alone, rel=0.1)


def test_histories_shorter_than_the_run_are_taken_whole():
    spot = SpotHistories(
        {
            place.infra: history([0.0, 50.0], [1, 0], 100.0)
            for slot in slots(load("geo-b2"))
            for place in slot.places
        },
        0.0,
    )
    taken = planned("1000", spot).as_dict()["prediction"]["preemptions"]
    assert (taken["windows"], taken["window_s"]) == (1, 100.0)
    assert taken["run_s"] > 100.0
    assert taken["sps_share"]["value"] == pytest.approx(0.5)


def test_places_that_never_have_room_leave_time_and_dollars_unknown():
    spot = SpotHistories(
        {place.infra: history([0.0], [0], 1e7) for slot in slots(load("geo-b2")) for place in slot.places},
        0.0,
    )
    shown = planned("10", spot).as_dict()["prediction"]
    assert shown["sps"] == {"value": 0.0, "low": 0.0, "high": 0.0}
    assert (shown["time_to_samples_s"], shown["usd_per_1m_samples"]) == (None, None)
    assert any("no peer trains at all" in why for why in shown["unknown"])


def test_what_is_not_predicted_without_preemptions_is_not_with_them():
    spec = load("glyphs-2", [])
    places = [slot.places[0] for slot in slots(spec)]
    p = predict(spec, BOOK)
    assert p.sps is None
    assert preempted(spec, p, SpotHistories({}, 0.0), places, [None, None], 100.0) is None


@pytest.mark.parametrize(("empty", "known"), [(4, True), (96, True), (100, False), (400, False)])
def test_runs_without_any_training_are_beyond_the_interval_or_leave_it_unknown(empty: int, known: bool):
    spec = load("geo-b2", ["measure.epochs=40"])
    places = [slot.places[0] for slot in slots(spec)]
    p = predict(spec, BOOK)
    spot = SpotHistories({place.infra: history([0.0], [1], 2e6) for place in places}, 0.0)
    found = preempted(spec, p, spot, places, [Decimal(1)] * 2, 1000.0)
    assert found is not None
    left, billed = np.ones(2000), np.ones(2000)
    left[:empty] = billed[:empty] = 0.0
    cost = cost_of(p, 32768, 10**6, Decimal(2), replace(found, sps=left, billed=billed))
    for value in (cost.usd_per_1m_samples, cost.usd_to_samples, cost.time_to_samples_s):
        assert (value is not None) == known
        if value is not None:
            assert 0 < value.low <= value.value <= value.high < np.inf
    assert bool(cost.unknown) != known


def test_a_swarm_of_unknown_speed_is_said_to_have_no_preemptions(monkeypatch: pytest.MonkeyPatch):
    def unknown(*_: object) -> float:
        raise ValueError("no step time")

    monkeypatch.setattr("analysis.planning.preemptions.nominal_sps", unknown)
    spot = SpotHistories(
        {place.infra: history([0.0], [1], 2e6) for slot in slots(load("geo-b2")) for place in slot.places},
        0.0,
    )
    plan = planned("10", spot)
    assert plan.preempted is None
    assert any("assumes no preemptions" in note for note in plan.notes)
