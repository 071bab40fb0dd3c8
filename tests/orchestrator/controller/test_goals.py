"""What a run has trained, as its goals see it, and how the controller ends the run after one is reached."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from decimal import Decimal
from pathlib import Path

import pytest

from metrics.records import EventRecord
from metrics.run import RunNumbers
from metrics.store.database import RunStore
from orchestrator.controller.goals import trained
from orchestrator.controller.tick import Spent
from orchestrator.controller.view import snapshot_of
from orchestrator.core.journal import created
from orchestrator.core.state import RunSpec
from orchestrator.core.until import Goals
from tests.analysis.made_up_run import write_run
from tests.metrics.synthetic_runs import epoch, vm
from tests.orchestrator.shell_world import LAST, RUN, World, run, shell

LOSS = Goals(metric="loss", at_most=1.0)


def test_what_was_trained_is_what_the_report_says(tmp_path: Path):
    write_run(tmp_path, peers=4, epochs=5)
    with RunStore.open_writer(tmp_path / "run.db") as store:
        rows = [{"vm": "x", "epoch": e, "at_s": 1.7e9, "loss": 3.0 - e, "samples": 9} for e in (2, 4, 5)]
        store.set_meta("evaluations", rows)
        at = trained(store, LOSS, 1.8e9, Decimal(3), 100)
        point = RunNumbers.of(store).curve.points[-1]
        assert at is not None
        assert (at.epoch, at.samples, at.trained_s) == (5, point.samples, pytest.approx(point.trained_s))
        assert (at.now_s, at.spent_usd, at.evaluated) == (1.8e9, Decimal(3), (1.0, -1.0, -2.0))
        assert at.epoch_s == pytest.approx(30.0)
        assert trained(store, Goals(samples=1), 1.8e9, None, 100) == replace(at, spent_usd=None, evaluated=())


def test_an_epoch_that_a_peer_has_not_reported_yet_does_not_count(tmp_path: Path):
    with RunStore.open_writer(tmp_path / "run.db") as store:
        store.set_meta("run_id", "r")
        assert trained(store, LOSS, 99.0, None, 100) is None
        for name in ("a", "b"):
            store.upsert_vm(vm(name))
        store.append("epochs", [epoch("a", 1), epoch("b", 1), epoch("a", 2, 12.0)])
        at = trained(store, LOSS, 99.0, None, 100)
        assert at is not None
        assert (at.epoch, at.samples) == (1, 256.0)


def test_a_vm_that_reports_impossible_epochs_reaches_nothing(tmp_path: Path):
    with RunStore.open_writer(tmp_path / "run.db") as store:
        for name in ("a", "b"):
            store.upsert_vm(vm(name))
        honest = [epoch("a", 1), epoch("b", 1)]
        store.append("epochs", [*honest, epoch("b", 10**6), epoch("b", 10**6 + 1)])
        row = {"vm": "b", "epoch": 10**6, "at_s": 40.0, "loss": 0.5, "samples": 9}
        store.set_meta("evaluations", [row])
        at = trained(store, LOSS, 99.0, None, 100)
        assert at is not None
        assert (at.epoch, at.evaluated) == (1, ())


def test_evaluations_of_lost_weights_reach_nothing(tmp_path: Path):
    with RunStore.open_writer(tmp_path / "run.db") as store:
        store.upsert_vm(vm("a", ended_s=60.0, end_cause="preempted"))
        store.upsert_vm(vm("b", slot="a", generation=1, requested_s=60.0))
        store.append("epochs", [epoch("a", n, 12.0 * n) for n in (1, 2, 3)] + [epoch("b", 1, 100.0)])
        row = {"vm": "a", "epoch": 2, "at_s": 40.0, "loss": 0.5, "samples": 9}
        store.set_meta("evaluations", [row])
        at = trained(store, LOSS, 199.0, None, 100)
        assert at is not None
        assert (at.epoch, at.evaluated, at.trained_s) == (1, (), 100.0)


def reports(world: World, number: int) -> None:
    """Both peers report an epoch of 30 s, as the monitor's log has it."""
    with (world.folder / "monitor" / "monitor.jsonl").open("a") as file:
        for name in ("r-a-0", "r-b-0"):
            row = asdict(epoch(name, number, world.now_s - 30.0, calc_s=28.0))
            file.write(json.dumps({"kind": "epoch", "epoch": row, "egress": [], "ingress": None}) + "\n")


@pytest.mark.parametrize(
    ("goals", "usd", "ended_by"),
    [
        (Goals(samples=200), "0", "samples"),
        (Goals(usd=Decimal(2)), "2.5", "usd"),
        (Goals(usd=Decimal(3)), "2.5", None),
        (Goals(samples=10**9), "0", None),
        (None, "0", None),
    ],
)
def test_the_last_epoch_is_stored_with_its_goal_and_survives_a_restart(
    tmp_path: Path, quick_keys, goals: Goals | None, usd: str, ended_by: str | None
):
    world = World(tmp_path)
    with RunStore.open_writer(tmp_path / "run.db") as store:
        begin(store, replace(RUN, until=goals))
        bill = Spent(Decimal(usd), Decimal(1))
        controller = shell(world, store, spent=lambda *_: bill)
        while world.now_s < 1012.0:
            controller.tick()
            world.now_s += 1.0
        reports(world, 1)
        controller.tick()
        assert (controller.state.last_epoch, controller.state.ended_by or None) == (
            (2, ended_by) if ended_by else (None, None)
        )
        assert (store.meta("last_epoch"), store.meta("ended_by")) == (
            (2, ended_by) if ended_by else (None, None)
        )
        assert snapshot_of(store, world.now_s, controller_alive=True)["epoch"]["last"] == (
            2 if ended_by else LAST
        )
        controller = shell(world, store, spent=lambda *_: bill)
        assert controller.state.last_epoch == (2 if ended_by else None)
        run(world, controller)
        assert store.meta("status") == "done"


def test_a_goal_that_is_reached_too_late_does_not_end_the_run(tmp_path: Path, quick_keys):
    world = World(tmp_path)
    with RunStore.open_writer(tmp_path / "run.db") as store:
        begin(store, replace(RUN, until=Goals(samples=200), epochs=2))
        controller = shell(world, store, spent=lambda *_: Spent(Decimal(0), Decimal(1)))
        controller._requests.last_epoch = 2
        while world.now_s < 1012.0:
            controller.tick()
            world.now_s += 1.0
        reports(world, 1)
        controller.tick()
        assert controller.state.last_epoch == 2  # as planned
        assert (store.meta("last_epoch"), store.meta("ended_by")) == (None, None)


def begin(store: RunStore, spec: RunSpec) -> None:
    """The first row of the journal, and what a launch stores."""
    fact = created(spec)
    store.append(
        "events", [EventRecord(0, 1000.0, fact.kind, "", -1, "", "", "", fact.cause, fact.data_json)]
    )
    for key, value in {"run_id": "r", "status": "running", "epochs": LAST, "started_s": 1000.0}.items():
        store.set_meta(key, value)
