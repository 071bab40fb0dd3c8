"""What the loss of all peers cost, and that it is paid for once."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path

import pytest
from synthetic_runs import epoch, vm

from metrics.cost.lost_work import lost_work
from metrics.epochs.restarts import training
from metrics.run import RunNumbers, terms_of
from metrics.store.database import RunStore
from metrics.store.meta import RunMeta
from metrics.summary import summarise

_FIRST = [epoch("a", k, 12.0 * k) for k in range(1, 6)]
_SECOND = [epoch("b", k, 200.0 + 12 * k) for k in range(4, 8)]
_META = RunMeta.from_json({"scales": {"bytes": 1, "time": 1, "samples": 10}, "raw_target_batch_size": 128})


def test_samples_and_dollars_of_lost_epochs_at_full_scale():
    vms = [vm("a", ended_s=100.0), vm("b")]
    terms, _ = terms_of(_META)
    records = [epoch(r.vm, r.epoch, r.began_s, group_size=1) for r in [*_FIRST, *_SECOND]]
    (lost,) = lost_work(training(records, vms).restarts, vms, [], terms)
    assert (lost.from_epoch, lost.epochs, lost.samples) == (3, 2, 2560)
    assert lost.usd == pytest.approx(Decimal("0.18") * 2 * (10 * 10 + 2) / 3600)
    without_price = [vm("a", ended_s=100.0, usd_per_h=None), vm("b")]
    assert lost_work(training(records, without_price).restarts, without_price, [], terms)[0].usd is None


def test_lost_epochs_are_in_the_bill_and_in_no_other_figure(tmp_path: Path):
    store = RunStore.open_writer(tmp_path / "run.db")
    store.append("vms", [vm("a", ended_s=100.0), vm("b", ended_s=300.0)])
    store.append("epochs", [*_FIRST, *_SECOND])
    evaluated = [
        {"vm": r.vm, "epoch": r.epoch, "loss": r.began_s} for r in (_FIRST[4], _SECOND[1], _FIRST[2])
    ]
    for key, value in (
        ("scales", {"samples": 10}),
        ("raw_target_batch_size", 128),
        ("evaluations", evaluated),
    ):
        store.set_meta(key, value)
    run = RunNumbers.of(store)
    assert [e.epoch for e in run.raw] == [1, 2, 3, 4, 5, 6, 7]
    assert (run.discarded_epochs, run.discarded_by_vm) == (2, {"a": 2})
    seconds = {line.src: line.quantity for line in run.bill.lines if line.kind == "vm"}
    assert seconds == {"a": pytest.approx(100 + 5 * 90), "b": pytest.approx(300 + 4 * 90)}  # calculation x 10
    found = summarise(run)
    assert found["samples"] == 7 * 1280
    assert [(row["epoch"], row["figures"]) for row in found["evaluations"]] == [
        (3, {"loss": 36.0}),
        (5, {"loss": 260.0}),
    ]
    assert found["lost_work"]["restarts"] == [
        {
            "at_s": 248.0,
            "from_epoch": 3,
            "epochs": 2,
            "samples": 2560.0,
            "usd": None,
        }  # egress was not measured
    ]
    assert (
        "All peers were lost at once and training went on from the state after epoch 3: 2 epochs trained before that "
        "(2560 samples, dollars unknown) count in the cost only, not in the other figures."
    ) in found["warnings"]
