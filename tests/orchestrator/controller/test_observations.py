"""How the shell processes provider lists: changes, missing VMs, reported values, and the observe period."""

import json
from dataclasses import replace
from decimal import Decimal
from pathlib import Path

import pytest

from cloud.provider import CredentialsError, NoCapacityError, Observed, TransientError
from cloud.vm_report import NOTICE_HORIZON_S
from metrics.store.database import RunStore
from orchestrator.controller import tick as shell_module
from orchestrator.controller.calls import InlineCalls, is_under_way
from orchestrator.controller.tick import Pace, Shell
from orchestrator.launch.own_paths import OwnPaths
from tests.orchestrator.shell_world import RUN, Requests, run, shell


def test_values_reported_after_creation_are_billed(world):
    found, observe = (
        {"instance": "g4dn.xlarge", "usd_per_h": Decimal("0.21"), "price_source": "EC2"},
        world.observe,
    )
    world.observe = lambda: [replace(o, **found) if o.vm == "r-a-0" else o for o in observe()]
    with RunStore.open_writer(world.folder / "run.db") as store:
        run(world, shell(world, store))
        rows = {r.vm: (r.instance, r.usd_per_h, r.price_source) for r in store.records("vms")}
    assert rows == {
        "r-a-0": ("g4dn.xlarge", Decimal("0.21"), "EC2"),
        "r-b-0": ("n1", Decimal("0.18"), "book"),
    }


@pytest.mark.parametrize("by", ["the provider", "its program"])
def test_a_vm_that_ends_after_its_notice_was_preempted(world, by):
    observe = world.observe

    def noticed() -> list[Observed]:
        out = []
        for o in observe():
            if o.vm == "r-b-0" and world.now_s >= 1008.0:
                if world.now_s >= 1012.0:  # it looks like a crash
                    o = replace(o, state="failed", ended_at_s=1012.0, cause="exit code 0")
                elif by == "the provider":
                    o = replace(o, notice_at_s=1012.0)
                else:
                    o = replace(o, status={**o.status, "notice_at_s": 1012.0})
            out.append(o)
        return out

    world.observe = noticed
    with RunStore.open_writer(world.folder / "run.db") as store:
        run(world, shell(world, store))
        rows = {r.vm: r.end_cause for r in store.records("vms")}
        causes = [e.cause for e in store.records("events") if e.vm == "r-b-0"]
    assert rows == {"r-a-0": "terminated", "r-b-0": "preempted", "r-b-1": "terminated"}
    assert any(c.startswith("preempted, as announced for 00:16:52; next at") for c in causes)


def test_a_programs_notice_counts_from_when_it_is_plausible(world):
    """What the VM reports does not change at that time."""
    observe = world.observe
    soon_s = world.now_s + 15.0
    notice = {"notice_at_s": soon_s + NOTICE_HORIZON_S}
    world.observe = lambda: [
        replace(o, status={**o.status, **notice}) if o.vm == "r-b-0" else o for o in observe()
    ]
    noticed_s = None
    with RunStore.open_writer(world.folder / "run.db") as store:
        controller = shell(world, store)
        while noticed_s is None:
            controller.tick()
            if controller.state.slots[1].ending == "r-b-0":
                noticed_s = world.now_s
            world.now_s += 1.0
            assert world.now_s < soon_s + 9.0, "unchanged observations are read again, but only much later"
    assert noticed_s >= soon_s


def test_a_monitor_whose_address_comes_last_is_known_while_the_run_goes_on(world):
    """Else what peers send it goes to an unknown place, and the cost is unknown until a VM ends."""
    observe = world.observe

    def observed() -> list[Observed]:
        late = world.now_s < 1010.0  # all VMs have long been as they will be
        return [
            replace(o, address=("10.0.0.8" if not late else None) if o.vm == "monitor" else o.address)
            for o in observe()
        ]

    world.observe = observed
    known_from_s = None
    with RunStore.open_writer(world.folder / "run.db") as store:
        controller = shell(world, store)
        while not controller.tick():
            if known_from_s is None and store.meta("addresses", {}).get("10.0.0.8") == "monitor":
                known_from_s = world.now_s
                assert all(row.ended_s is None for row in store.records("vms"))
            world.now_s += 1.0
            assert world.now_s < 1200.0
    assert known_from_s is not None
    assert known_from_s <= 1012.0


def test_a_vm_refused_after_its_creation_is_billed_and_no_loss(world):
    """Dearer than the ceiling: it was there for a minute, and the provider's list says so from then on."""
    request = world.request

    def dear(wish) -> None:
        request(wish)
        if wish.vm == "r-a-0":
            there = {
                "state": "terminated",
                "requested_at_s": 940.0,
                "ended_at_s": 1000.0,
                "usd_per_h": Decimal(9),
            }
            world.vms["r-a-0"] = replace(world.vms["r-a-0"], **there)
            raise NoCapacityError("dearer than its ceiling")

    world.request = dear
    with RunStore.open_writer(world.folder / "run.db") as store:
        controller = shell(world, store)
        run(world, controller)
        assert store.meta("status") == "done"
        row = next(r for r in store.records("vms") if r.vm == "r-a-0")
        lost = {s.name: (s.lost, s.generation) for s in controller.state.slots}
    # Its minute counts, by our clock: it cannot have been there before it was wished for.
    assert (row.requested_s, row.ended_s, row.end_cause, row.usd_per_h) == (
        1000.0,
        1060.0,
        "terminated",
        Decimal(9),
    )
    assert lost == {"a": (0, 1), "b": (0, 0)}


def test_periodic_full_reports_give_the_same_end(world, monkeypatch):
    told = []
    monkeypatch.setattr(shell_module, "_WHOLE_EACH", 8)
    advance = shell_module.advance
    monkeypatch.setattr(
        shell_module,
        "advance",
        lambda s, events, *more: (told.append(list(events)), advance(s, events, *more))[1],
    )
    with RunStore.open_writer(world.folder / "run.db") as store:
        controller = shell(world, store)
        run(world, controller)
        assert store.meta("status") == "done"
    seen = [sum(type(e).__name__ == "Observed" for e in events) for events in told]
    assert seen[10:18] == [0] * 7 + [
        3
    ]  # both train; nothing is new, until the whole list is told, the monitor too


def test_an_unlisted_vm_is_terminated_and_then_replaced(world):
    observe = world.observe
    world.observe = lambda: [o for o in observe() if o.vm != "r-b-0" or world.now_s < 1005.0]
    with RunStore.open_writer(world.folder / "run.db") as store:
        controller = shell(world, store)
        controller.state = replace(controller.state, spec=replace(RUN, missing_deadline_s=2.0))
        run(world, controller)
        causes = [e.cause for e in store.records("events") if e.slot == "b"]
    assert any(c.startswith("the provider no longer knows the VM; next at") for c in causes)
    assert "r-b-1" in world.vms
    assert world.vms["r-b-0"].ended_at_s <= world.vms["r-b-1"].requested_at_s, "it lived all the time"


def test_what_vms_report_names_the_users_own_files(world):
    observe, copy = world.observe, "/root/orch-vm/code/my_task.py:7: ValueError"
    counts = {"training": {"count": 1, "first": f"s3://b/a.tar: {copy}"}}
    failed = {"phase": "failed", "error": f"loss failed: {copy}", "hopeless": True, "bad_samples": counts}
    failed["warnings"] = [f"not evaluated: {copy}"]
    watches = {"warnings": ["rejected records"]}  # shown from the monitor's log
    world.observe = lambda: [
        replace(o, status={**o.status, **(watches if o.vm == "monitor" else failed)}) for o in observe()
    ]
    own = OwnPaths.of_run({"code/my_task.py": Path("/home/u/my_task.py")}, world.folder)
    with RunStore.open_writer(world.folder / "run.db") as store:
        run(world, shell(world, store, own_paths=own))
        shown = [
            store.meta("error"),
            json.dumps(store.meta("bad_samples")),
            *(e.cause for e in store.records("events")),
        ]
        warned = store.meta("peer_warnings")
    assert shown[0] == "loss failed: /home/u/my_task.py:7: ValueError"
    assert "s3://b/a.tar: /home/u/my_task.py:7" in shown[1]
    assert set(warned) <= {"r-a-0", "r-b-0"}
    assert {text for texts in warned.values() for text in texts} == {
        "not evaluated: /home/u/my_task.py:7: ValueError"
    }
    assert not any("orch-vm" in text for text in shown)


def test_the_provider_is_observed_at_the_given_period(world):
    submitted = []

    class Slow(InlineCalls):
        def submit(self, call):
            submitted.append((world.now_s, call.method, call.deadline_s))
            return super().submit(call)

    with RunStore.open_writer(world.folder / "run.db") as store:
        controller = Shell(
            store, Slow(world), Requests(), world.folder, now_s=lambda: world.now_s, jitter=lambda: 0.5,
            pace=Pace(request_deadline_s=900.0, observe_deadline_s=77.0, observe_period_s=5.0),
        )  # fmt: skip
        for _ in range(12):
            controller.tick()
            world.now_s += 1.0
    assert [(at_s, s) for at_s, m, s in submitted if m == "observe"] == [(1000, 77), (1005, 77), (1010, 77)]
    assert {s for _, m, s in submitted if m == "request"} == {900.0}


def test_queued_requests_are_dropped_when_the_run_stops(world):
    class Crowded(InlineCalls):
        """Requests never get their turn."""

        line: tuple[str, ...] = ()

        def submit(self, call):
            if call.method == "request":
                self.line = (*self.line, call.key)
                return True
            return super().submit(call)

        def drop(self, key):
            found = key in self.line
            self.line = tuple(k for k in self.line if k != key)
            return found

        def busy(self, what):
            return is_under_way(what, self.line) or super().busy(what)

    with RunStore.open_writer(world.folder / "run.db") as store:
        calls = Crowded(world)
        controller = Shell(
            store, calls, Requests(), world.folder, now_s=lambda: world.now_s, jitter=lambda: 0.5
        )
        for _ in range(5):
            controller.tick()
            world.now_s += 1.0
        assert calls.line == ("request r-a-0",)  # once, however often it is wished for
        controller.stop("stopped", "the user")
        run(world, controller)
        assert store.meta("status") == "stopped"
    assert world.requests == []
    assert calls.line == ()


def blind(world, store) -> Shell:
    """A controller whose two peers and monitor are up, and whose provider will list nothing any more."""

    def refused() -> list[Observed]:
        raise CredentialsError("ExpiredToken")

    controller = shell(world, store)
    for _ in range(8):
        controller.tick()
        world.now_s += 1.0
    assert len(world.alive()) == 3
    world.observe = refused
    return controller


def wait(world, controller, for_s: float) -> bool:
    """Whether it ended within this time; a tick each ten seconds."""
    until_s = world.now_s + for_s
    while world.now_s < until_s:
        if controller.tick():
            return True
        world.now_s += 10.0
    return False


def test_a_run_whose_vms_can_never_be_listed_again_ends(world):
    with RunStore.open_writer(world.folder / "run.db") as store:
        controller = blind(world, store)
        assert not wait(world, controller, 1010.0)
        assert not controller.state.stop_status
        assert not wait(world, controller, 1010.0)
        assert controller.state.stop_status == "failed"
        assert world.closed == 0  # its peers may still leave by themselves, and be seen again
        assert wait(world, controller, 100.0)
        assert store.meta("status") == "failed"
        assert store.meta("error").startswith("the VMs could not be listed for 1030 s: ExpiredToken")
        assert all(row.ended_s is not None for row in store.records("vms"))
        assert controller.state.ended
    assert world.alive() == []


def test_a_stop_completes_although_nothing_can_be_listed(world):
    with RunStore.open_writer(world.folder / "run.db") as store:
        controller = blind(world, store)
        controller.stop("stopped", "the user")
        assert not wait(world, controller, 1010.0)
        assert wait(world, controller, 60.0)
        assert (store.meta("status"), store.meta("error")) == ("stopped", "the user")


def test_vms_not_proven_gone_are_not_reported_gone(world):
    """The actor tries some times and then says that VMs may be left (exit code 5)."""

    def close() -> None:
        raise TransientError("r-a-0: not proven to be gone")

    with RunStore.open_writer(world.folder / "run.db") as store:
        controller = blind(world, store)
        controller.stop("stopped", "the user")
        close_all, world.close = world.close, close
        with pytest.raises(TransientError):
            wait(world, controller, 1100.0)
        assert not controller.state.ended
        assert (store.meta("status"), [r.ended_s for r in store.records("vms")]) == ("running", [None, None])
        world.close = close_all
        assert wait(world, controller, 10.0)


def test_the_run_does_not_end_while_a_request_is_in_progress(world):
    """Its VM could come to be after the provider was closed."""

    class Hanging(InlineCalls):
        under_way = True

        def busy(self, what):
            return (what == "request" and self.under_way) or super().busy(what)

    with RunStore.open_writer(world.folder / "run.db") as store:
        calls = Hanging(world)
        controller = Shell(
            store, calls, Requests(), world.folder, now_s=lambda: world.now_s, jitter=lambda: 0.5
        )
        for tick in range(30):
            if tick == 5:
                controller.stop("stopped", "the user")
            assert not controller.tick()
            world.now_s += 1.0
        assert controller.state.ended
        assert world.closed == 0
        calls.under_way = False
        run(world, controller)
        assert world.closed == 1
