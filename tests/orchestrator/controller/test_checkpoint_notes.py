"""What peers report about checkpoints becomes notes of the journal, each once, and tells where training goes on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from made_up_run import write_run
from shell_world import RUN, World, shell

from cloud.provider import Observed
from metrics.events.checkpoints import checkpoints_of
from metrics.records import CHECKPOINTS, SWARM_LOST, EventRecord
from metrics.store.database import RunStore
from metrics.summary import summarise
from orchestrator.controller.checkpoints import checkpoint_events
from orchestrator.controller.view import snapshot_of
from orchestrator.core.journal import created, replay
from tests.orchestrator.core.test_machine import spec
from tests.orchestrator.core_driver import Driver

MOST = 10**9  # bytes


def stored(epoch: int, vm: str, **other: Any) -> dict[str, Any]:
    return {
        "name": f"epoch-{epoch:08d}-{vm}", "epoch": epoch, "bytes": 1_000_000, "sent_bytes": 1_000_500,
        "copy_s": 0.1, "upload_s": 2.0, "at_s": 1000.0 + epoch, **other,
    }  # fmt: skip


def restored(epoch: int, **other: Any) -> dict[str, Any]:
    return {
        "name": f"epoch-{epoch:08d}-r-a-0", "prefix": "s3://b/checkpoints/r", "epoch": epoch, "bytes": 1_000_000,
        "seconds": 3.0, "at_s": 2000.0, **other,
    }  # fmt: skip


def seen(vm: str, **checkpoints: Any) -> Observed:
    status = {
        "phase": "training",
        "checkpoints": {"stored": [], "restored": None, "error": None, **checkpoints},
    }
    return Observed(vm, "running", "gcp/us-central1", "10.0.0.1", 1.0, 2.0, None, "", None, status)


def report(driver: Driver, *reports: Observed, last_epoch: int = 100) -> None:
    for event in checkpoint_events(reports, driver.state, last_epoch, driver.now_s, MOST):
        driver.feed(event)


def test_each_report_is_noted_once_and_survives_a_restart() -> None:
    driver = Driver(spec()).train()
    began = len(driver.facts)
    for _ in range(2):
        report(driver, seen("r-a-0", stored=[stored(4, "r-a-0"), stored(8, "r-a-0")]))
        report(driver, seen("r-b-0", restored=restored(2), error="the bucket is full"))
    notes = driver.facts[began:]
    assert [(fact.kind, fact.slot, fact.generation, fact.cause) for fact in notes] == [
        ("checkpoint_stored", "a", 0, "epoch-00000004-r-a-0, 1 MB, uploaded in 2 s"),
        ("checkpoint_stored", "a", 0, "epoch-00000008-r-a-0, 1 MB, uploaded in 2 s"),
        ("checkpoint_restored", "b", 0, "began from checkpoint epoch-00000002-r-a-0, 1 MB in 3 s"),
        ("checkpoint_failed", "b", 0, "the bucket is full"),
    ]
    again = replay(rows_of([created(spec()), *driver.facts]))
    assert (again.checkpoint_epoch, again.checkpoint_notes) == (8, driver.state.checkpoint_notes)
    assert checkpoint_events([seen("r-a-0", stored=[stored(8, "r-a-0")])], again, 100, 0.0, MOST) == []


def test_each_failure_counts_also_of_the_same_error_and_between_two_looks() -> None:
    driver = Driver(spec()).train()
    began = len(driver.facts)
    for count, epoch, error in ((1, 4, "full"), (1, 4, "full"), (2, 8, "full"), (4, 8, None)):
        failed = {"count": count, "epoch": epoch, "error": "the bucket is\nfull"}
        report(driver, seen("r-a-0", error=error, failed=failed))
    report(driver, seen("r-b-0", error="of an earlier version"))
    assert len(driver.facts) - began == 4
    unsaid = seen("r-b-0", failed={"count": 1, "epoch": 4, "error": ""})
    assert [e.cause for e in checkpoint_events([unsaid], driver.state, 100, 0.0, MOST)] == [
        "no reason was given"
    ]
    found = checkpoints_of(rows_of(driver.facts[began:]))
    assert (found.failures, found.to_json()["failed"]) == (5, 5)
    assert found.sentence.startswith("Storing a checkpoint failed 5 times")
    again = replay(rows_of([created(spec()), *driver.facts]))
    assert again.checkpoint_notes == driver.state.checkpoint_notes
    assert again.checkpoint_epoch == 0, "nothing was stored"


def test_the_loss_of_all_peers_says_where_training_goes_on() -> None:
    driver = Driver(spec()).train()
    report(driver, seen("r-a-0", stored=[stored(12, "r-a-0")]))
    driver.sees("r-a-0", "preempted")
    driver.sees("r-b-0", "preempted")
    assert [fact.cause for fact in driver.facts if fact.kind == SWARM_LOST] == [
        "every peer that trained is lost, and with them what was learned after epoch 12; training goes on at epoch 13"
    ]


@pytest.mark.parametrize(
    "given",
    [
        {"stored": [stored(4, "r-b-0")]}, {"stored": [stored(4, "r-a-0", name="../4")]}, {"stored": {"name": "x"}},
        {"stored": [stored(101, "r-a-0")]}, {"stored": [stored(4, "r-a-0", bytes=-1)]},
        {"stored": [stored(4, "r-a-0", bytes=MOST + 1)]}, {"restored": restored(3, bytes=MOST + 1)},
        {"stored": [stored(4, "r-a-0", upload_s=float("inf"))]}, {"stored": [stored(4, "r-a-0") | {"epoch": True}]},
        {"restored": restored(3, name="")}, {"restored": restored(101)}, {"restored": [3]}, {"error": 7},
        {"failed": {"count": -1, "epoch": 1, "error": "x"}}, {"failed": {"count": 1, "epoch": 101, "error": "x"}},
    ],
)  # fmt: skip
def test_an_invalid_report_is_left_out(given: dict[str, Any]) -> None:
    driver = Driver(spec()).train()
    assert checkpoint_events([seen("r-a-0", **given)], driver.state, 100, 0.0, MOST) == []


def test_a_time_outside_of_the_vms_life_is_moved_into_it() -> None:
    """The time decides how long a checkpoint is billed, and the VM's clock or program may be wrong."""
    driver = Driver(spec()).train()
    for reported_s, noted_s in ((0.0, 1.0), (50.0, 50.0), (1e12, 100.0)):
        reports = [seen("r-a-0", stored=[stored(4, "r-a-0", at_s=reported_s)])]
        (event,) = checkpoint_events(reports, driver.state, 100, 100.0, MOST)
        assert json.loads(event.data_json)["at_s"] == noted_s


def test_a_vm_that_is_not_of_the_run_or_reports_without_end_does_not_fill_the_journal() -> None:
    driver = Driver(spec()).train()
    began = len(driver.facts)
    report(driver, seen("r-a-7", stored=[stored(4, "r-a-7")]))
    assert driver.facts[began:] == []
    for number in range(200):
        report(driver, seen("r-a-0", error=f"error {number}"))
    assert len(driver.facts) - began == 50


def test_controller_reads_them_before_the_ends_of_vms(tmp_path: Path) -> None:
    """A list in which all VMs are gone is the first one with the newest checkpoint."""
    world = World(tmp_path)
    observe = world.observe

    def gone() -> list[Observed]:
        return [
            Observed(o.vm, "preempted", o.location, o.address, 1.0, 2.0, world.now_s, "", None,
                     {"phase": "training", "checkpoints": {"stored": [stored(2, o.vm)]}})
            if o.vm != "monitor" else o
            for o in observe()
        ]  # fmt: skip

    with RunStore.open_writer(tmp_path / "run.db") as store:
        store.append("events", rows_of([created(RUN)]))
        controller = shell(world, store)
        for tick in range(12):
            world.observe = gone if tick == 10 else observe
            controller.tick()
            world.now_s += 1.0
        kinds = {e.kind: e.cause for e in store.records("events") if e.kind in (*CHECKPOINTS, SWARM_LOST)}
    assert kinds[SWARM_LOST].startswith(
        "every peer that trained is lost, and with them what was learned after epoch 2"
    )


def test_status_and_summary_have_them(tmp_path: Path) -> None:
    write_run(tmp_path, peers=2, epochs=2)
    driver = Driver(spec()).train()
    vm = "r-a-0"
    report(driver, seen(vm, stored=[stored(1, vm)], restored=restored(1), error="the bucket is full"))
    with RunStore.open_writer(tmp_path / "run.db") as store:
        assert summarise(store)["checkpoints"]["newest"] is None
        store.append("events", rows_of([created(spec()), *driver.facts]))
        found, snapshot = summarise(store), snapshot_of(store, 0.0, controller_alive=False)
        assert checkpoints_of(store.records("events")).epoch == 1
    assert found["checkpoints"] == snapshot["checkpoints"]
    assert (found["checkpoints"]["stored"], found["checkpoints"]["newest"]["epoch"]) == (1, 1)
    warning = f"Storing a checkpoint failed once, and training went on; the last error, of {vm}: the bucket is full."
    assert warning in found["warnings"]
    assert warning in snapshot["warnings"]
    assert f"checkpoint stored {vm}: epoch-00000001-{vm}, 1 MB, uploaded in 2 s" in [
        e["text"] for e in snapshot["events"]
    ]


def rows_of(facts: list[Any]) -> list[EventRecord]:
    return [
        EventRecord(
            n, 1000.0, f.kind, f.slot, f.generation, f.vm, f.from_state, f.to_state, f.cause, f.data_json
        )
        for n, f in enumerate(facts)
    ]
