"""The shell with an in-memory provider and a test clock: whole runs, and a kill at every write."""

import json
from collections.abc import Callable
from dataclasses import asdict, replace
from decimal import Decimal

import pytest

from cloud.clock import run_clock, steady_clock
from cloud.provider import (
    AmbiguousError,
    CredentialsError,
    InvalidRequestError,
    LostError,
    NoCapacityError,
    TransientError,
)
from experiments.parse import load
from experiments.parse.load import to_document
from metrics.records import EventRecord, ProgressRecord, StepRecord
from metrics.store.database import DiskFullError, RunStore
from orchestrator.controller.calls import Call, InlineCalls
from orchestrator.controller.finish import host_report, read_steps
from orchestrator.controller.records import written_until_s
from orchestrator.controller.spending import spent_of
from orchestrator.controller.tick import Shell, Spent
from orchestrator.controller.view import snapshot_of
from orchestrator.core.journal import created, replay, story
from orchestrator.core.state import SlotState
from tests.metrics.synthetic_runs import epoch
from tests.metrics.synthetic_runs import vm as vm_row
from tests.orchestrator.shell_world import PLACE, RUN, Requests, World, run, shell


class Unlisted(InlineCalls):
    """A provider whose lists nobody gets."""

    def submit(self, call: Call) -> bool:
        return call.method == "observe" or super().submit(call)


class Killed(BaseException):
    """kill -9 of the controller, as near as one process comes to it."""


def test_a_whole_run(world):
    for vm in ("r-a-0", "r-b-0"):
        folder = world.folder / "vms" / vm
        folder.mkdir(parents=True)
        header = "step,epoch,began_s,wall_s,load_s,move_s,forward_s,backward_s,optimizer_local_s,optimizer_sync_s,other_s,samples"
        (folder / "steps.csv").write_text(
            f"{header}\n1,1,5.0,1.0,0.1,0.0,0.3,0.5,0.0,0.0,0.1,32\n2,1,6.0,1.0,0.1"
        )
        (folder / "egress.csv").write_text(
            f"vm,epoch,dst_address,phase,seconds,bytes\n{vm},1,10.0.0.9,leaving,1.5,77\n"
        )
    with RunStore.open_writer(world.folder / "run.db") as store:
        controller = shell(world, store)
        run(world, controller)
        assert store.meta("status") == "done"
        assert store.meta("error") == ""
        assert world.alive() == []
        assert world.closed == 1
        assert {e.vm for e in store.records("epochs")} == {"r-a-0", "r-b-0"}
        steps = store.records("steps")
        assert [s.vm for s in steps] == ["r-a-0", "r-b-0"]
        assert isinstance(steps[0], StepRecord)
        assert steps[0].wall_s == 1.0
        assert sum(e.bytes for e in store.records("egress") if e.phase == "leaving") == 2 * 77
        rows = store.records("vms")
        assert [r.end_cause for r in rows] == ["terminated", "terminated"]
        assert rows[0].usd_per_h == Decimal("0.18")
        assert store.meta("addresses")["10.0.0.9"] == "store"
        assert store.meta("locations")["store"] == "b2/us-west-1"
        assert replay(store.records("events")).ended
        told = story(store.records("events"), "a")
        assert any("WAITING -> PROVISIONING" in line for line in told)
        assert not any("b#" in line for line in told)
        view = snapshot_of(store, world.now_s, controller_alive=False)
        assert [p["state"] for p in view["peers"]] == ["DONE", "DONE"]
        assert view["status"] == "done"
        assert view["controller"] == "none"
    roster = json.loads((world.folder / "monitor" / "roster.json").read_text())
    assert [p["vm"] for p in roster["peers"]] == ["r-a-0", "r-b-0"]
    assert list(world.folder.glob("keys/*/*.key")) == []


def test_a_preempted_peer_is_replaced_and_both_are_billed(world):
    world.preempt_at_s = 1010.0
    with RunStore.open_writer(world.folder / "run.db") as store:
        run(world, shell(world, store))
        rows = {r.vm: r.end_cause for r in store.records("vms")}
        assert rows == {"r-a-0": "terminated", "r-b-0": "preempted", "r-b-1": "terminated"}
        view = snapshot_of(store, world.now_s, controller_alive=True)
        assert [p["preemptions"] for p in view["peers"]] == [0, 1]


def test_a_peer_killed_after_the_last_epoch_is_not_replaced(world):
    """Its record and evaluation were read before it could report that it is done."""
    with RunStore.open_writer(world.folder / "run.db") as store:
        controller = shell(world, store)
        while not all(slot.state is SlotState.TRAINING for slot in controller.state.slots):
            controller.tick()
            world.now_s += 1.0
        world.monitor_reads("r-b-0")
        controller.tick()
        world.preempt_at_s = world.now_s = world.now_s + 1.0
        run(world, controller)
        assert {r.vm: r.end_cause for r in store.records("vms")} == {
            "r-a-0": "terminated",
            "r-b-0": "preempted",
        }
        assert store.meta("status") == "done"
        told = " ".join(story(store.records("events"), "b"))
        assert (
            "r-b-0 trained the last epoch before it was lost; a replacement would have nothing to do" in told
        )


def test_a_swarm_that_lost_all_peers_counts_from_epoch_1_again(world):
    with RunStore.open_writer(world.folder / "run.db") as store:
        controller = shell(world, store)
        while not all(slot.state is SlotState.TRAINING for slot in controller.state.slots):
            controller.tick()
            world.now_s += 1.0
        store.set_meta("epochs", 9)
        for vm in ("r-a-0", "r-b-0", ""):
            store.append("progress", [ProgressRecord(world.now_s, vm, 5, 40, 20.0, 2, 3.0)])
        store.append("epochs", [epoch(vm, 5, began_s=world.now_s - 12.0) for vm in ("r-a-0", "r-b-0")])
        view = snapshot_of(store, world.now_s, controller_alive=True)
        assert [(p["epoch"], p["sps"]) for p in view["peers"]] == [(6, 20.0), (6, 20.0)]
        assert (view["epoch"]["completed"], view["epoch"]["sps"]) == (5, 20.0)
        world.now_s += 1.0
        for vm in ("r-a-0", "r-b-0"):
            world.vms[vm] = replace(world.vms[vm], state="preempted", ended_at_s=world.now_s)
        controller.tick()
        controller.tick()
        view = snapshot_of(store, world.now_s, controller_alive=True)
        assert [p["state"] for p in view["peers"]] == ["WAITING", "WAITING"]
        assert [(p["epoch"], p["samples"], p["sps"]) for p in view["peers"]] == [(None, None, None)] * 2
        assert (view["epoch"]["current"], view["epoch"]["completed"]) == (1, 0)
        assert (view["epoch"]["sps"], view["epoch"]["eta_s"]) == (None, None)
        assert any(w.startswith("all peers were lost at ") for w in view["warnings"])
        assert [
            e
            for e in view["events"]
            if e["text"].startswith("all peers lost: every peer that trained is lost")
        ]


def test_clock_skew_is_reported(world):
    world.skews = {"r-a-0": -700.04, "r-b-0": 0.3}
    with RunStore.open_writer(world.folder / "run.db") as store:
        controller = shell(world, store)
        for _ in range(10):
            controller.tick()
            world.now_s += 1.0
        view = snapshot_of(store, world.now_s, controller_alive=True)
        assert [p["clock_skew_s"] for p in view["peers"]] == [-700.0, 0.3]
        [told] = [w for w in view["warnings"] if "clock" in w]
        assert told.startswith("r-a-0: its clock is 700 s behind this machine's")
        assert "`sudo chronyc makestep`" in told


def test_a_clock_set_back_ends_nothing(world):
    began_s = world.now_s
    now_s = steady_clock(
        lambda: world.now_s - 3600.0 * (world.now_s > began_s + 6), lambda: world.now_s, not_before_s=999.0
    )
    with RunStore.open_writer(world.folder / "run.db") as store:
        run(
            world, Shell(store, InlineCalls(world), Requests(), world.folder, now_s=now_s, jitter=lambda: 0.5)
        )
        assert store.meta("status") == "done"
        times = [event.at_s for event in store.records("events")]
    assert times == sorted(times)
    assert times[-1] - times[0] < 60


def test_a_quiet_run_stores_its_clock_and_continues_from_it(world):
    """Hours after the last row of the journal the machine starts again, with its time of day an hour back."""
    with RunStore.open_writer(world.folder / "run.db") as store:
        wall_s, ticks_s, boot = world.now_s, [5.0], ["first"]

        def clock() -> Callable[[], float]:
            return run_clock(
                world.folder, wall_s=lambda: wall_s, ticks_s=lambda: ticks_s[0], boot=lambda: boot[0],
                not_before_s=written_until_s(store, store.records("events")),
            )  # fmt: skip

        now_s = clock()
        controller = Shell(
            store, InlineCalls(world), Requests(), world.folder, now_s=now_s, jitter=lambda: 0.5
        )
        for _ in range(100):  # the world's own time does not move: its VMs never get ready
            controller.tick()
            ticks_s[0] += 1.0
        journalled_s, last_s = store.records("events")[-1].at_s, now_s() - 1.0
        assert last_s - 30.0 <= store.meta("clock_s") <= last_s
        assert last_s - journalled_s > 90.0, "nothing happened meanwhile"
        wall_s, ticks_s[0], boot[0] = wall_s - 3600.0, 1.0, "second"
        assert clock()() == store.meta("clock_s")


def test_unanswered_requests_of_an_earlier_controller_count(world):
    """It was killed before the answer; now the provider answers nothing, and the VM may have been there all the time."""
    with RunStore.open_writer(world.folder / "run.db") as store:
        first = shell(world, store)
        first.tick()
        assert world.requests == ["r-a-0"]
        asked_s = world.now_s
        world.refuse = [TransientError("the provider's API does not answer")] * 9
        world.now_s += 1800.0
        controller = Shell(
            store, Unlisted(world), Requests(), world.folder, now_s=lambda: world.now_s, jitter=lambda: 0.5
        )
        for _ in range(3):
            controller.tick()
            world.now_s += 30.0
        slot = controller.state.slot("a")
        assert slot.refusals > 0
        for_s = Decimal(str(world.now_s - asked_s))
        asked_usd = (PLACE.ceiling_usd_per_h or 0) * for_s / 3600
        assert spent_of(store, world.now_s, controller.state).spent_usd == pytest.approx(asked_usd)


def test_refusals_and_lost_answers_are_survived(world):
    world.refuse = [NoCapacityError("none there"), AmbiguousError("no answer")]
    with RunStore.open_writer(world.folder / "run.db") as store:
        run(world, shell(world, store))
        assert store.meta("status") == "done"
    assert len(set(world.requests)) == len(set(world.vms) | {"r-a-0"})


def test_stopping_leaves_nothing(world):
    with RunStore.open_writer(world.folder / "run.db") as store:
        controller = shell(world, store)
        for _ in range(6):
            controller.tick()
            world.now_s += 1.0
        controller.stop("stopped", "the user")
        run(world, controller)
        assert (store.meta("status"), store.meta("error")) == ("stopped", "the user")
    assert world.alive() == []


def test_a_dead_cloud_ends_the_run(world):
    with RunStore.open_writer(world.folder / "run.db") as store:
        controller = shell(world, store)
        for _ in range(8):
            controller.tick()
            world.now_s += 1.0
        world.observe = _dead
        run(world, controller)
        assert (store.meta("status"), store.meta("error")) == ("failed", "the switch died")
        assert all(r.ended_s is not None for r in store.records("vms"))
    assert world.closed == 1


@pytest.mark.parametrize("error", [CredentialsError("token expired"), InvalidRequestError("no such flag")])
def test_a_failed_list_ends_nothing(world, error):
    """Each cloud's credentials expire alone; what trains meanwhile goes on, and is seen again when they are renewed."""
    observe = world.observe

    def refused() -> None:
        if 1008.0 <= world.now_s < 1016.0:
            raise error
        return observe()

    world.observe = refused
    with RunStore.open_writer(world.folder / "run.db") as store:
        run(world, shell(world, store))
        assert store.meta("status") == "done"
    assert world.vms.keys() == {"r-a-0", "r-b-0", "monitor"}


def _dead():
    raise LostError("the switch died")


def test_the_budget_stops_the_run(world):
    budgeted = replace(RUN, budget_usd=Decimal(1))
    with RunStore.open_writer(world.folder / "b" / "run.db") as store:
        fact = created(budgeted)
        store.append(
            "events", [EventRecord(0, 999.0, fact.kind, "", -1, "", "", "", fact.cause, fact.data_json)]
        )
        store.set_meta("status", "running")
        spent = lambda store, now_s, state: Spent(Decimal(str((now_s - 1000) / 10)), Decimal(1))  # noqa: E731
        run(world, shell(world, store, spent=spent))
        assert store.meta("status") == "budget"
    assert world.alive() == []


def _kill_at(store, count: int, after: bool) -> None:
    """The `count`-th journal write is the last thing this controller does, or just before it."""
    append, left = store.append, [count]

    def killing(table, rows):
        rows = list(rows)
        if table == "events" and rows:
            left[0] -= 1
            if left[0] == 0 and not after:
                raise Killed
        written = append(table, rows)
        if table == "events" and rows and left[0] == 0 and after:
            raise Killed
        return written

    store.append = killing


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_killed_at_any_journal_write_it_reaches_the_same_end(tmp_path, quick_keys, after):
    kills = 0
    for count in range(1, 60):
        folder = tmp_path / f"{count}"
        world = World(folder)
        with RunStore.open_writer(folder / "run.db") as store:
            fact = created(RUN)
            store.append(
                "events", [EventRecord(0, 999.0, fact.kind, "", -1, "", "", "", fact.cause, fact.data_json)]
            )
            store.set_meta("status", "running")
            _kill_at(store, count, after)
            try:
                run(world, shell(world, store))
                break  # so many writes there are not
            except Killed:
                kills += 1
        with RunStore.open_writer(folder / "run.db") as store:
            run(world, shell(world, store))
            assert store.meta("status") == "done"
            assert {r.vm for r in store.records("vms")} == {"r-a-0", "r-b-0"}
            assert len(store.records("epochs")) == 2
        assert world.alive() == []
        assert set(world.vms) == {"r-a-0", "r-b-0", "monitor"}, count
    assert kills >= 10


def test_monitor_lines_are_read_once_and_malformed_ones_counted(world):
    path = world.folder / "monitor" / "monitor.jsonl"
    progress = {"kind": "progress", **asdict(ProgressRecord(1.0, "", 1, 5, 2.0, 2, None))}
    whole = json.dumps(progress) + "\n"
    path.write_text(
        whole
        + "not json\n"
        + json.dumps(progress | {"epoch": 2**63})
        + "\n"
        + json.dumps({"kind": "rejected", "at_s": 1, "reason": "huge", "vm": "x", "count": 3})
        + "\n"
        + whole[:20]
    )
    with RunStore.open_writer(world.folder / "run.db") as store:
        controller = shell(world, store)
        controller.tick()
        assert len(store.records("progress")) == 1
        assert store.meta("monitor_unread_lines") == 2
        assert store.meta("rejected") == {"huge": 3}
        with path.open("a") as file:
            file.write(whole[20:].replace("1.0", "2.0"))
        world.now_s += 1
        controller.tick()
        assert store.tail_offset("monitor.jsonl") == path.stat().st_size


def test_a_full_disk_stops_before_anything_is_requested(world):
    with RunStore.open_writer(world.folder / "run.db") as store:
        store._connection.execute("PRAGMA max_page_count = 1")
        controller = shell(world, store)
        store.append = _full
        with pytest.raises(DiskFullError):
            controller.tick()
    assert world.requests == []


def _full(table, rows):
    raise DiskFullError("run.db: no space left on the disk")


def test_a_contended_host_reports_why(tmp_path):
    with RunStore.open_writer(tmp_path / "run.db") as store:
        store.append("epochs", [epoch("a", k, 100 + (k - 1) * 30.0, 20.0, 10.0) for k in (1, 2)])
        store.set_meta("warmup_epochs", 1)
        rows = [[s, 10, 0, 0.9 if s < 130 else 0.1] for s in range(100, 160)]
        switch = {
            "late": {"inf": 600},
            "late_worst_s": 0.9,
            "late_over_10ms_share": 0.3,
            "sleep_worst_s": 2.0,
        }
        calm = host_report(store, tmp_path, {**switch, "by_second": rows, "sleep_worst_s": 0.01})
        assert not calm["contended"]  # only the warm-up was late
        busy = host_report(store, tmp_path, switch)
        assert len(busy["reasons"]) == 3
        (tmp_path / "pace.csv").write_text(
            "second,sleep_worst_s,sleeps,sleeps_late,pressure_share,busy_share\n140,0.7,9,1,0.9,1\n"
        )
        slept = host_report(store, tmp_path, {**switch, "by_second": rows})
        assert (slept["sleep_worst_s"], len(slept["reasons"])) == (0.7, 2)


def test_slow_emulated_accelerators_are_reported(tmp_path):
    spec = load("geo-b2")  # a step of 32 is padded to 0.9 s
    with RunStore.open_writer(tmp_path / "run.db") as store:
        store.upsert_vm(vm_row("a"))
        store.append("epochs", [epoch("a", k, 100 + (k - 1) * 14.0, 4 * 0.9 * 1.1, 10.0) for k in (1, 2)])
        settings = {"coalesce": 1, "time_scale": 1.0}
        meta = {"emulated": True, "experiment": to_document(spec), "emulation": settings, "warmup_epochs": 1}
        for key, value in meta.items():
            store.set_meta(key, value)
        found = host_report(store, tmp_path, {})
        assert found["stretched_share"] == pytest.approx(0.1)
        assert "10.0% longer than asked" in found["reasons"][0]
        store.set_meta("emulation", settings | {"coalesce": {"T4:1": 1, "V100:8": 37}})
        assert host_report(store, tmp_path, {})["stretched_share"] == pytest.approx(0.1)
        store.set_meta("experiment", {"of": "an older orch"})
        assert host_report(store, tmp_path, {})["stretched_share"] is None


def test_a_step_log_without_a_column_is_an_error(tmp_path):
    path = tmp_path / "steps.csv"
    path.write_text("step,epoch\n1,1\n")
    with pytest.raises(ValueError, match="no column"):
        read_steps(path, "r-a-0")


STEP = "step,epoch,began_s,wall_s,load_s,move_s,forward_s,backward_s,optimizer_local_s,optimizer_sync_s,other_s,samples\n"
GOOD = "1,1,10.0,1.0,0,0,0.5,0.5,0,0,0,32\n"


@pytest.mark.parametrize(
    "bad",
    [
        b"\0" * 300_000 + b"\n",
        b"2,1,nan,1.0,0,0,0.5,0.5,0,0,0,32\n",
        b"2,1,10.0,inf,0,0,0.5,0.5,0,0,0,32\n",
        b"2,1,10.0,1.0,0,0,0.5,0.5,0,0,0," + b"9" * 30 + b"\n",
        b"2,1,10.0,1.0,0,0,0.5,0.5,0,0,0," + b"9" * 5000 + b"\n",
        b"2,1,\xff\xfe,1.0,0,0,0.5,0.5,0,0,0,32\n",
        b"2,x\n",
    ],
    ids=["zeros", "nan", "infinite", "30 digits", "5000 digits", "not UTF-8", "cut"],
)
@pytest.mark.parametrize("name", ["steps.csv", "egress.csv", "utilisation.csv"])
def test_a_corrupt_vm_log_is_skipped_with_a_warning(world, name: str, bad: bytes):
    """The other VM's steps are there, the run is done, and a warning names the VM and the file."""
    tmp_path = world.folder
    head = {
        "steps.csv": STEP.encode() + GOOD.encode(),
        "egress.csv": b"epoch,dst_address,phase,seconds,bytes\n0,10.0.0.9,leaving,1.0,5\n",
        "utilisation.csv": b"began_s,wall_s,readings,scope,cores\n1.0,10.0,10,vm,4\n",
    }
    for vm in ("r-a-0", "r-b-0"):
        (tmp_path / "vms" / vm).mkdir(parents=True)
        (tmp_path / "vms" / vm / "steps.csv").write_text(STEP + GOOD)
    (tmp_path / "vms" / "r-a-0" / name).write_bytes(head[name] + bad)
    with RunStore.open_writer(tmp_path / "run.db") as store:
        run(world, shell(world, store))
        assert store.meta("status") == "done"
        assert "r-b-0" in {row.vm for row in store.records("steps")}
        (warning,) = [w for w in store.meta("warnings") if "is skipped" in w]
    assert "r-a-0" in warning
    assert name in warning
