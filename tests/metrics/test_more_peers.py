"""What doubling the peers gives, and where it stops paying: the paper's rule and given figures, over all granularities."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from synthetic_runs import epoch, vm

from metrics.more_peers import LEAST_GAIN, MorePeers, Rate, by_figures, by_rule, doubled, of_run, words
from metrics.run import RunNumbers
from metrics.store.database import RunStore

GRANULARITY = st.floats(1e-3, 1e4)
PEERS = st.integers(1, 64)


def by_hand(calc_s: float, comm_s: float) -> float:
    """Samples/s of twice the peers / now: calculation takes half as long, a round as long as before."""
    return (calc_s + comm_s) / (calc_s / 2 + comm_s)


@given(st.floats(1e-3, 1e3), st.floats(1e-3, 1e3))
def test_the_rule_is_that_of_half_the_calculation(calc_s: float, comm_s: float):
    assert doubled(calc_s / comm_s) == pytest.approx(by_hand(calc_s, comm_s))
    assert 1 < doubled(calc_s / comm_s) < 2


@given(GRANULARITY, GRANULARITY)
def test_more_calculation_gains_more(one: float, other: float):
    low, high = sorted((one, other))
    assert doubled(low) <= doubled(high)


@given(GRANULARITY, PEERS)
def test_by_the_rule_it_stops_at_the_first_multiple_whose_doubling_gives_too_little(g: float, peers: int):
    found = by_rule(g, peers)
    assert found.stops_at is not None
    times, rest = divmod(found.stops_at, peers)
    assert rest == 0
    calc_s = g / times  # of a round of one second
    assert by_hand(calc_s, 1.0) < 1 + LEAST_GAIN + 1e-12
    assert times == 1 or by_hand(g / (times - 1), 1.0) >= 1 + LEAST_GAIN - 1e-12


@given(GRANULARITY, PEERS, st.integers(1, 300))
def test_no_more_peers_than_the_experiment_can_have(g: float, peers: int, most: int):
    found, free = by_rule(g, peers, most), by_rule(g, peers)
    assert free.stops_at is not None
    assert found.stops_at == (free.stops_at if 2 * free.stops_at <= most else None)
    assert found.factor == free.factor


@given(GRANULARITY, PEERS, st.integers(1, 300), st.floats(0.01, 10), st.floats(0, 10))
def test_figures_that_follow_the_rule_stop_where_it_does(
    g: float, peers: int, most: int, vms_usd: float, egress_usd: float
):
    """A round of one second: dollars of VMs are shared by the samples, those of egress grow with the peers."""
    asked: list[int] = []

    def figures(times: int) -> Rate:
        asked.append(times)
        sps = 1 / (g / times + 1)
        return Rate(sps, times * vms_usd / sps + egress_usd * (times * peers - 1))

    found, rule = by_figures(g, peers, most, figures), by_rule(g, peers, most)
    near = any(abs(doubled(g / m) - (1 + LEAST_GAIN)) < 1e-9 for m in range(1, most + 1))
    assert near or found.stops_at == rule.stops_at
    assert found.by == "prediction"
    assert all(times * peers <= most for times in asked)
    assert len(asked) == len(set(asked)) <= 4 * (most.bit_length() + 1)
    assert (found.twice is None) == (2 * peers > most)
    if found.twice is not None:
        assert found.twice.factor == pytest.approx(doubled(g))
        assert found.twice.usd_factor is not None
        assert (
            found.twice.usd_factor > 1
        )  # dollars alone would stop at once: a doubling makes a sample dearer


@given(PEERS, st.integers(1, 300), st.lists(st.floats(0.5, 2), min_size=151, max_size=151))
def test_whatever_the_figures_are_the_answer_is_a_boundary(peers: int, most: int, gains: list[float]):
    """Samples/s of 1 to 300 times the peers, such that a doubling of m times the peers gives gains[m]."""
    sps: dict[int, float] = {}

    def figures(times: int) -> Rate:
        if times not in sps:
            sps[times] = figures(times // 2).sps * gains[times // 2] if times % 2 == 0 else 1.0
        return Rate(sps[times], None)

    def pays(times: int) -> bool:
        return figures(2 * times).sps / figures(times).sps >= 1 + LEAST_GAIN

    found, last = by_figures(1.0, peers, most, figures), most // (2 * peers)
    if found.stops_at is None:
        assert last < 1 or (pays(1) and pays(last))
    else:
        times, rest = divmod(found.stops_at, peers)
        assert rest == 0
        assert times <= last
        assert not pays(times)
        assert times == 1 or pays(times - 1)


def test_a_doubling_that_slows_the_swarm_down_stops_at_once():
    found = by_figures(5.0, 8, 64, lambda times: Rate(10.0 / times, None))
    assert (found.by, found.stops_at, found.twice) == ("prediction", 8, (0.5, None))


def test_free_machines_have_no_factor_of_dollars():
    assert by_figures(5.0, 8, 16, lambda times: Rate(10.0 * times, 0.0)).twice == (2.0, None)


@pytest.mark.parametrize("unknown", [1, 2, 4])
def test_unknown_figures_leave_the_rule(unknown: int):
    def figures(times: int) -> Rate | None:
        return None if times == unknown else Rate(float(times), None)

    assert by_figures(5.0, 8, 64, figures) == by_rule(5.0, 8, 64)
    lost = by_figures(5.0, 8, 64, figures, overlaps=True)
    assert (lost.by, lost.factor, lost.stops_at) == ("unknown", None, None)


def test_the_line():
    # by hand: (g + 1) / (g / 2 + 1) = 1.1 at g = 2 / 9; granularity 4 / 18 = 2 / 9 still gives 10 %
    assert words(by_rule(4.0, 8)) == (
        "granularity 4: twice the peers would give 1.67 times the samples/s by the paper's rule; more stop paying at 152 "
        "peers, where a doubling gives less than 10 % (by the rule, if a round takes no longer)"
    )
    assert by_rule(4.0, 8).stops_at == 8 * 19
    assert words(by_rule(4.0, 8, 15)).endswith("; the experiment can have at most 15 peers")
    assert words(by_rule(4.0, 8, 64)).endswith(
        "; a doubling gives 10 % or more up to 64 peers, the experiment can have at most 64 (by the rule, if a round "
        "takes no longer)"
    )
    predicted = by_figures(4.0, 8, 64, lambda times: Rate(min(times, 3) * 10.0, float(times)))
    assert words(predicted) == (
        "granularity 4: twice the peers would give 1.67 times the samples/s by the paper's rule; by prediction 2.00 times, at "
        "2.00 times the dollars a sample; more stop paying at 24 peers, where a doubling gives less than 10 % (by prediction)"
    )
    hidden = MorePeers(8, 0.5, "unknown", None, None, overlaps=True)
    assert words(hidden) == (
        "granularity 0.5: rounds go on behind calculation, where the paper's rule of doubling does not hold"
    )


def numbers(
    folder: Path, calc_s: float, comm_s: float, meta: dict[str, Any], hidden_s: float = 0
) -> RunNumbers:
    """Two peers, three epochs; `hidden_s`: of a round behind calculation."""
    with RunStore.open_writer(folder / "run.db") as store:
        for key, value in ({"run_id": "r", "warmup_epochs": 0, "target_batch_size": 1024} | meta).items():
            store.set_meta(key, value)
        took = calc_s + comm_s - hidden_s
        rows = [
            epoch(
                name,
                k,
                10 + (k - 1) * took,
                calc_s,
                comm_s,
                samples=512,
                ended_s=10 + k * took,
                optimizer_sync_s=comm_s - hidden_s,
            )
            for name in ("a-0", "b-0")
            for k in (1, 2, 3)
        ]
        store.append("epochs", rows)
        store.append("vms", [vm("a-0", slot="us"), vm("b-0", slot="eu"), vm("c", slot="controller")])
        return RunNumbers.of(store)


def stored(**changes: Any) -> dict[str, Any]:
    more = {"peers": 2, "by": "prediction", "stops_at": 16, "most": 64, **changes}
    return {"plan": {"prediction": {"more_peers": more}}}


def test_a_run_has_its_measured_granularity_and_its_plans_prediction(tmp_path: Path):
    found = of_run(numbers(tmp_path, 8.0, 2.0, stored()))
    assert found is not None
    assert (found.peers, found.granularity, found.by, found.stops_at) == (2, 4.0, "prediction", 16)
    assert found.factor == pytest.approx(5 / 3)


@pytest.mark.parametrize(
    "meta",
    [
        {},
        {"plan": {"prediction": None}},
        {"plan": {"prediction": {"more_peers": "16"}}},
        stored(by="rule"),
        stored(peers=3),
        stored(most=None),
        stored(stops_at="16"),
    ],
)
def test_without_a_prediction_the_rule_decides(meta: dict[str, Any], tmp_path: Path):
    assert of_run(numbers(tmp_path, 8.0, 2.0, meta)) == by_rule(4.0, 2)


def test_a_run_without_rounds_has_none(tmp_path: Path):
    assert of_run(numbers(tmp_path, 8.0, 0.0, stored())) is None


def test_a_run_whose_rounds_overlap_has_its_prediction_only(tmp_path: Path):
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    without = of_run(numbers(tmp_path / "a", 8.0, 2.0, {}, hidden_s=1.5))
    assert without is not None
    assert (without.by, without.factor, without.stops_at) == ("unknown", None, None)
    found = of_run(numbers(tmp_path / "b", 8.0, 2.0, stored(), hidden_s=1.5))
    assert found is not None
    assert (found.by, found.factor, found.stops_at) == ("prediction", None, 16)
