"""Held-out figures over samples, seconds and dollars, and what it took to reach a target."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from synthetic_runs import egress, epoch, vm

from cloud.prices.book import load
from metrics.cost.ledger import Terms
from metrics.epochs.scaling import Scales, full_scale_epochs
from metrics.epochs.throughput import swarm_epochs
from metrics.events.evaluation import evaluations_of
from metrics.figures import FIGURES
from metrics.learning_curve import (
    PRICED_POINTS,
    LearningCurve,
    Spending,
    Target,
    learning_curve,
    target_words,
)
from metrics.records import EpochRecord, IngressRecord, VmRecord
from metrics.run import RunNumbers
from metrics.store.database import RunStore
from metrics.summary import summarise

USD_PER_S = Decimal("0.18") / 3600
BYTES_USD = Decimal("0.01") / 10**9  # reading from B2 in the study's book
BOOK = load("study-2023-04")
LOSSES = {2: 1.9, 4: 1.4, 6: 1.5}


def one_peer(epochs: int = 6, began_s: float = 20.0, name: str = "a") -> list[EpochRecord]:
    return [epoch(name, k, began_s + 12.0 * (k - 1), group_size=1) for k in range(1, epochs + 1)]


def terms(**changes: Any) -> Terms:
    places = {"a": vm().location, "b": vm().location, "store": "b2/us-west-1"}
    known: dict[str, Any] = {
        "scales": Scales(),
        "raw_target": 128,
        "book": BOOK,
        "addresses": {"10.0.0.9": "store"},
        "locations": places,
        "bytes_per_sample": None,
        "store_location": "b2/us-west-1",
    }
    return Terms(**known | changes)


def rows(losses: dict[int, float]) -> list[dict[str, Any]]:
    return [{"vm": "a", "epoch": k, "at_s": 1e3, "loss": v, "samples": 9} for k, v in losses.items()]


def curve_of(
    records: list[EpochRecord], vms: list[VmRecord], priced: Terms, losses: dict[int, float]
) -> LearningCurve:
    raw = swarm_epochs(records, 0, vms=vms)
    read = [IngressRecord(r.vm, r.epoch, 10**9, 0) for r in records]
    sent = [egress(r.vm, r.epoch, "10.0.0.9", "comm", 2.0, 0) for r in records]
    spending = Spending(vms, records, sent, read, priced, {}, 6)
    full_scale = full_scale_epochs(raw, priced.scales, priced.raw_target)
    return learning_curve(evaluations_of(rows(losses)), raw, full_scale, spending)


def test_a_point_has_the_samples_seconds_and_dollars_until_its_epochs_end():
    row = vm(
        requested_s=-100.0, ended_s=500.0, end_cause="terminated"
    )  # long enough for the least that is billed
    found = curve_of(one_peer(), [row], terms(), LOSSES)
    assert [(p.epoch, p.samples, p.trained_s, p.figures["loss"]) for p in found.points] == [
        (2, 256.0, 24.0, 1.9), (4, 512.0, 48.0, 1.4), (6, 768.0, 72.0, 1.5),
    ]  # fmt: skip
    for point in found.points:
        ended_s = 100 + 20 + 12 * point.epoch
        read = point.epoch * 10**9 * BYTES_USD
        assert point.usd is not None
        assert float(point.usd) == pytest.approx(float(ended_s * USD_PER_S + read), rel=1e-6)
    assert found.unknown == ()


def test_scaled_runs_have_curves_at_full_scale():
    scaled = terms(scales=Scales(samples=4.0), bytes_per_sample=1000.0)
    found = curve_of(one_peer(), [vm()], scaled, {3: 1.0})
    (point,) = found.points
    # 10 of an epoch's 12 seconds are calculation, which grows fourfold, as do the samples
    assert (point.samples, point.trained_s) == (3 * 512.0, pytest.approx(3 * 42.0))
    read = 3 * 512 * 1000 * BYTES_USD
    assert float(point.usd or 0) == pytest.approx(float((20 + 3 * 42) * USD_PER_S + read), rel=1e-6)


def test_unknown_prices_make_unknown_dollars_with_the_reason():
    found = curve_of(one_peer(), [vm(usd_per_h=None, price_source="")], terms(), LOSSES)
    assert [p.usd for p in found.points] == [None, None, None]
    assert found.unknown == ("no price for T4:1 spot at gcp/us-central1/us-central1-a",)
    assert [p.samples for p in found.points] == [256.0, 512.0, 768.0]


def test_an_epoch_without_records_has_no_samples_seconds_and_dollars():
    records = [r for r in one_peer() if r.epoch != 3]
    found = curve_of(records, [vm()], terms(), {2: 1.0, 3: 0.9, 4: 0.8})
    assert [p.samples for p in found.points] == [256.0, None, None]
    assert [p.trained_s for p in found.points] == [24.0, None, 48.0]
    assert [p.usd is None for p in found.points] == [False, True, False]


def test_what_was_trained_before_all_peers_were_lost_costs_time_and_dollars_but_gives_no_samples():
    lost = [vm(ended_s=60.0, end_cause="preempted"), vm("b", slot="a", generation=1, requested_s=60.0)]
    records = [*one_peer(3), *one_peer(4, began_s=100.0, name="b")]
    found = curve_of(records, lost, terms(), {4: 1.0})
    (point,) = found.points
    assert (point.samples, point.trained_s) == (4 * 128.0, 148.0 - 20.0)
    assert float(point.usd or 0) == pytest.approx(
        float(148 * USD_PER_S + 7 * 10**9 * BYTES_USD), rel=0.02
    )  # the lost VM's last seconds count like its last epoch


def test_many_points_have_dollars_for_an_even_choice_of_them():
    losses = {k: 1.0 for k in range(1, 2 * PRICED_POINTS + 1)}
    found = curve_of(one_peer(2 * PRICED_POINTS), [vm()], terms(), losses)
    assert sum(p.usd is not None for p in found.points) == PRICED_POINTS
    assert found.points[-1].usd is not None
    assert all(p.samples is not None for p in found.points)


@pytest.mark.parametrize(
    ("target", "epoch_reached"),
    [
        (Target("loss", at_most=1.9), 2), (Target("loss", at_most=1.5), 4), (Target("loss", at_most=1.0), None),
        (Target("loss", at_least=1.5), 2), (Target("wer", at_most=9.0), None), (None, None),
    ],
)  # fmt: skip
def test_the_first_point_that_reaches_a_target(target: Target | None, epoch_reached: int | None):
    found = curve_of(one_peer(), [vm()], terms(), LOSSES).reached(target)
    assert (None if found is None else found.epoch) == epoch_reached


def run_of(folder: Path, document: dict[str, Any], records: list[EpochRecord], **meta: Any) -> RunNumbers:
    with RunStore.open_writer(folder / "run.db") as store:
        values = {
            "run_id": "r", "experiment": document, "target": "sky", "epochs": 6, "started_s": 0.0, "ended_s": 95.0,
            "price_book": {"name": BOOK.name, "csv": BOOK.text}, "evaluations": rows(LOSSES),
            "locations": {"a": vm().location, "store": "b2/us-west-1"}, **meta,
        }  # fmt: skip
        for key, value in values.items():
            store.set_meta(key, value)
        store.upsert_vm(vm(ended_s=95.0, end_cause="terminated"))
        store.append("epochs", records)
        store.append("ingress", [IngressRecord(r.vm, r.epoch, 10**9, 0) for r in records])
        return RunNumbers.of(store)


def until(**bound: float) -> dict[str, Any]:
    return {"name": "mine", "train": {"until": {"metric": {"name": "loss", **bound}}}}


def test_the_bill_at_the_end_is_the_runs_bill(tmp_path: Path):
    run = run_of(tmp_path, {"name": "mine"}, one_peer())
    assert run.spending.until(95.0).sum() == run.bill.sum()
    usd = [p.usd for p in run.curve.points]
    assert usd == sorted(usd, key=lambda one: one or 0)
    assert float(usd[-1] or 0) < float(run.bill.sum() or 0)


def test_time_and_dollars_to_the_target_are_figures_of_a_run(tmp_path: Path):
    run = run_of(tmp_path, until(at_most=1.5), one_peer())
    assert FIGURES["time_to_target_s"].value(run) == 48.0
    usd = float((20 + 48) * USD_PER_S + 4 * 10**9 * BYTES_USD)
    assert FIGURES["usd_to_target"].value(run) == pytest.approx(usd, rel=1e-6)
    assert FIGURES["time_to_target_s"].value(run, run.study[0]) is None
    found = summarise(run)
    assert found["target_reached"] == {
        "name": "loss", "at_most": 1.5, "at_least": None, "reached": True, "epoch": 4, "value": 1.4, "samples": 512.0,
        "time_s": 48.0, "usd": pytest.approx(usd, rel=1e-4), "usd_unknown": [],
    }  # fmt: skip
    assert [(e["trained_samples"], e["trained_s"]) for e in found["evaluations"]] == [
        (256.0, 24.0),
        (512.0, 48.0),
        (768.0, 72.0),
    ]


def test_a_target_that_was_not_reached_and_none_at_all(tmp_path: Path):
    run = run_of(tmp_path, until(at_most=1.0), one_peer())
    assert FIGURES["time_to_target_s"].value(run) is FIGURES["usd_to_target"].value(run) is None
    found = summarise(run)["target_reached"]
    assert (found["reached"], found["epoch"], found["usd"], found["usd_unknown"]) == (False, None, None, [])
    (tmp_path / "other").mkdir()
    assert summarise(run_of(tmp_path / "other", {"name": "mine"}, one_peer()))["target_reached"] is None


def test_evaluations_of_weights_that_were_lost_do_not_count(tmp_path: Path):
    again = one_peer(4, began_s=200.0, name="b")
    old = [{"vm": "a", "epoch": k, "at_s": 20.0 + 12 * k, "loss": 9.0, "samples": 9} for k in (2, 4)]
    new = [{"vm": "b", "epoch": k, "at_s": 201.0 + 12 * k, "loss": 1.0, "samples": 9} for k in (2, 4)]
    joiner = {"vm": "c", "epoch": 4, "at_s": 260.0, "loss": 3.0, "samples": 9}
    run = run_of(tmp_path, {"name": "mine"}, [*one_peer(5), *again], evaluations=[*old, *new, joiner])
    assert run.discarded_epochs == 5
    assert [(e.epoch, e.peers, e.figures["loss"]) for e in run.evaluations] == [(2, 1, 1.0), (4, 2, 2.0)]


def test_what_is_unknown_of_a_reached_target_is_said_in_words():
    unknown = dict.fromkeys(("samples", "time_s", "usd"))
    target = {
        "name": "loss",
        "at_most": 1.5,
        "at_least": None,
        "reached": True,
        "epoch": 3,
        "usd_unknown": [],
    }
    assert target_words(target | unknown) == (
        "The target, loss of at most 1.5, was reached after epoch 3: an unknown number of samples, "
        "an unknown time of training, dollars unknown (the epoch has no record)"
    )
