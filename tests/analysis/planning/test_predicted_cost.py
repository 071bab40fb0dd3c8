"""Dollars and time of a prediction: the VMs' hours and the egress of its epochs."""

from __future__ import annotations

from decimal import Decimal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis.planning.plan import Quote, plan_of
from analysis.planning.predicted_cost import cost_of
from analysis.planning.prediction import CHECKPOINTS, Prediction, Simulated, Value, predict
from cloud.prices.book import PriceBook
from cloud.prices.book import load as load_book
from experiments.emulation.scales import resolve_emulation
from experiments.parse.load import load

BOOK = load_book("study-2023-04")
SECONDS = st.floats(0.5, 1e5)


def predicted(
    epoch_s: Value | None, egress_usd: Decimal | None, sent: tuple[float, float] = (1.0, 1.0)
) -> Prediction:
    """A prediction of 21 simulated runs, of which the second and the last but one are the interval's ends.

    `sent`: egress of the shortest and of the longest run, over `egress_usd`.
    """
    if epoch_s is None:
        return Prediction("any", epoch_s=None, egress_usd_per_epoch=egress_usd)
    seconds = np.interp(np.arange(21), [1, 10, 19], [epoch_s.low, epoch_s.value, epoch_s.high])
    usd = None if egress_usd is None else float(egress_usd) * np.linspace(*sent, 21)
    return Prediction(
        "any", epoch_s=epoch_s, egress_usd_per_epoch=egress_usd, simulated=Simulated(seconds, usd)
    )


def test_by_hand():
    p = predicted(Value(100.0, 90.0, 120.0), Decimal("0.5"))
    found = cost_of(p, 1000, 4000, Decimal("3.6"))
    close = pytest.approx
    assert found.usd_per_h == Value(3.6 + 18.0, close(3.6 + 15.0), close(3.6 + 20.0))
    assert found.usd_per_1m_samples == Value(600.0, close(590.0), close(620.0))
    assert found.time_to_samples_s == Value(400.0, 360.0, 480.0)
    assert found.usd_to_samples == Value(close(2.4), close(2.36), close(2.48))


def test_bytes_that_grow_with_the_seconds_widen_the_interval_by_hand():
    # The second of 21 runs has 91 % of the egress, the last but one 109 %.
    p = predicted(Value(100.0, 90.0, 120.0), Decimal("0.5"), (0.9, 1.1))
    found = cost_of(p, 1000, 4000, Decimal("3.6")).usd_per_1m_samples
    assert found == Value(600.0, pytest.approx(90.0 + 455.0), pytest.approx(120.0 + 545.0))
    constant = cost_of(predicted(Value(100.0, 90.0, 120.0), Decimal("0.5")), 1000, 4000, Decimal("3.6"))
    assert constant.usd_per_1m_samples == Value(600.0, pytest.approx(590.0), pytest.approx(620.0))


@given(
    SECONDS,
    SECONDS,
    SECONDS,
    st.decimals(0, 100, places=4),
    st.decimals(0, 10, places=6),
    st.integers(1, 10**6),
)
def test_dollars_of_a_million_samples_agree_with_dollars_an_hour(a, b, c, vms, egress, tbs):
    low, value, high = sorted((a, b, c))
    found = cost_of(predicted(Value(value, low, high), egress), tbs, 3 * tbs, vms)
    per_h, per_1m, total = found.usd_per_h, found.usd_per_1m_samples, found.usd_to_samples
    assert per_h
    assert per_1m
    assert total
    assert per_1m.value == pytest.approx(per_h.value * value / 3600 / tbs * 1e6)
    assert total.value == pytest.approx(per_1m.value * 3 * tbs / 1e6)
    for each in (per_h, per_1m, total):
        assert each.low <= each.value <= each.high


@pytest.mark.parametrize("unknown", ["vms", "egress"])
def test_an_unknown_price_leaves_the_time_known(unknown: str):
    egress = None if unknown == "egress" else Decimal("0.1")
    vms = None if unknown == "vms" else Decimal("0.1")
    found = cost_of(predicted(Value(10.0, 9.0, 11.0), egress), 10, 20, vms)
    assert (found.usd_per_h, found.usd_per_1m_samples, found.usd_to_samples) == (None, None, None)
    assert found.time_to_samples_s == Value(20.0, 18.0, 22.0)
    assert found.unknown == (("a VM has no price",) if unknown == "vms" else ())


@pytest.mark.parametrize("vms", [None, Decimal("0.1")])
def test_without_simulated_runs_the_time_has_the_whole_interval_of_the_epoch(vms: Decimal | None):
    p = Prediction("any", epoch_s=Value(10.0, 5.0, 25.0), egress_usd_per_epoch=Decimal("0.1"))
    found = cost_of(p, 10, 20, vms)
    assert found.time_to_samples_s == Value(20.0, 10.0, 50.0)
    assert (found.usd_per_h, found.usd_per_1m_samples, found.usd_to_samples) == (None, None, None)
    assert found.unknown == (("a VM has no price",) if vms is None else ())


def test_without_seconds_everything_is_unknown():
    found = cost_of(predicted(None, Decimal(1)), 10, 20, Decimal(1))
    assert set(found.as_json().values()) == {20, None}


def test_a_plan_predicts_its_own_epochs_at_its_own_prices():
    spec = load("geo-b2", ["measure.warmup_epochs=1", "measure.epochs=2"])
    plan = plan_of(spec, BOOK, resolve_emulation(spec, 2))
    shown = plan.as_dict()["prediction"]
    p = predict(spec, BOOK)
    assert p.epoch_s
    assert shown["samples"] == 3 * spec.swarm.target_batch_size
    assert shown["time_to_samples_s"]["value"] == pytest.approx(3 * p.epoch_s.value, rel=1e-4)
    assert shown["usd_per_h"]["value"] > float(plan.usd_per_h or 0)
    assert shown["unknown"] == []


def test_a_plan_predicts_the_place_that_it_tries_first():
    """`cheapest_place` orders the places by price, not as in the file."""
    dear, cheap = "gcp/australia-southeast1/australia-southeast1-a", "gcp/us-central1/us-central1-a"
    places = ", ".join(f'{{infra: {at}, accelerators: "T4:1", use_spot: true}}' for at in (dear, cheap))
    changes = [
        "peers.us.resources=null",
        f"peers.us.any_of=[{places}]",
        "peers.us.replace.policy=cheapest_place",
    ]
    spec = load("geo-b2", changes)
    prices = {dear: Decimal("0.9"), cheap: Decimal("0.1")}
    plan = plan_of(
        spec,
        BOOK,
        None,
        quote=lambda at, accelerator, spot: Quote("n1", prices.get(at, Decimal("0.2")), "a test"),
    )
    assert plan.peers[0].first.location == cheap
    assert plan.prediction.sps == predict(load("geo-b2"), BOOK).sps
    assert plan.prediction.sps != predict(spec, BOOK).sps


def test_samples_are_those_after_which_the_run_ends():
    for until, samples in (("40_000", 65_536), ("10_000_000", 98_304)):
        spec = load("geo-a2", [f"train.until.samples={until}"])
        shown = plan_of(spec, BOOK, None).as_dict()["prediction"]
        assert shown["samples"] == samples
    third = plan_of(
        load("geo-a2", ["train.until.samples=32_768"]), BOOK, None
    ).predicted_cost.time_to_samples_s
    whole = plan_of(load("geo-a2"), BOOK, None).predicted_cost.time_to_samples_s
    assert third
    assert whole
    assert third.value == pytest.approx(whole.value / 3)


def test_intervals_are_of_the_epochs_that_are_measured():
    """Those left after a checkpoint: with fewer epochs the interval is wider."""
    spec = load("geo-c8", ["measure.epochs=50"])
    few, many = (plan_of(spec, BOOK, None, start_epoch=start).prediction.comm_s for start in (48, 0))
    assert few
    assert many
    assert few.high - few.low > 1.2 * (many.high - many.low)


def test_checkpoints_are_an_assumption_not_a_refusal():
    spec = load("geo-b2", ["emulation=null", "checkpoint={every_epochs: 1, to: s3://bucket/x}"])
    p = predict(spec, BOOK)
    assert p.sps == predict(spec.model_copy(update={"checkpoint": None}), BOOK).sps
    assert CHECKPOINTS in [a.name for a in p.assumptions]


def test_a_missing_price_makes_the_plans_dollars_unknown_and_is_named():
    spec = load("geo-b2")
    empty = PriceBook.from_text(BOOK.text.splitlines()[0] + "\n", "empty.csv")
    shown = plan_of(spec, empty, resolve_emulation(spec, 2)).as_dict()["prediction"]
    assert shown["sps"] is not None
    assert shown["usd_per_1m_samples"] is None
    assert "add the row" in shown["unknown"][0]


def test_numbers_have_few_digits_so_that_machines_agree():
    spec = load("geo-b2")
    shown = plan_of(spec, BOOK, resolve_emulation(spec, 2)).as_dict()["prediction"]
    assert len(str(shown["sps"]["value"])) <= 6


@pytest.mark.parametrize(
    ("name", "changes"), [("geo-b2", ["emulation.accelerators=host"]), ("stdlib-lm-2", [])]
)
def test_training_on_this_machines_own_cpu_is_not_predicted(name: str, changes: list[str]):
    p = predict(load(name, changes), BOOK)
    assert p.sps is None
    assert "trains on this machine" in p.unknown[0]
