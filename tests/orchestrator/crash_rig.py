"""A scripted run on the real Shell, the real RunStore and a simulated cloud, in virtual time, that can be stopped at
any write of its store and between any call of the provider and its reply."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, field
from decimal import Decimal
from functools import cache
from itertools import count
from pathlib import Path
from random import Random
from typing import Any

from cloud.provider import AmbiguousError, LaunchRequest, Offer, ProviderError, is_monitor
from cloud.sim import Reply, SimCloud, SimPlace, SimVm, SimWorld, TraceEvent, VirtualClock
from experiments.wire.orders import generate_run_key
from metrics.records import EgressRecord, EpochRecord, EventRecord
from metrics.store.database import RunStore
from orchestrator.controller.calls import Call, Done, is_under_way
from orchestrator.controller.tick import Pace, Shell
from orchestrator.core import events as ev
from orchestrator.core.journal import created, replay
from orchestrator.core.state import Place, Policy, RunSpec, SlotSpec

BEGAN_S = 1000.0
EPOCHS = 16
EPOCH_S = 12.0
TICK_S = 2.0
DOWN_S = 11.0  # from a controller's death to the next one
LIMIT_S = 900.0
FULL, US, EU, ASIA = (f"gcp/{r}/{r}-a" for r in ("us-east1", "us-central1", "europe-west1", "asia-east1"))
USD = {FULL: "0.10", US: "0.18", EU: "0.21", ASIA: "0.33"}


def _place(location: str) -> Place:
    return Place(location, "sim-8", "T4:1", True, Decimal(USD[location]), "book")


# us-0 is refused where it asks first, and its VM is taken back with a notice; eu-0's first request is not
# answered, and its VM is taken back without one; asia-0 stays. Both losses pause the run. The first monitor dies.
RUN = RunSpec(
    "r",
    (
        SlotSpec("us-0", (_place(FULL), _place(US)), Policy("next_place", backoff_s=2.0)),
        SlotSpec("eu-0", (_place(EU),), Policy("same_place", backoff_s=2.0)),
        SlotSpec("asia-0", (_place(ASIA),), Policy()),
    ),
    drain_s=5.0,
    min_peers=3,
)
_HISTORY = (
    TraceEvent(0.0, FULL, "refuse", Decimal(1)),
    TraceEvent(130.0, EU, "preempt", Decimal(1)),
)
_NOTICE_S, _TAKEN_S = 85.0, 100.0
_MONITOR_DIES_S = 115.0


def use_quick_keys(patch: Callable[[str, Any], None]) -> None:
    """One run's key for all runs, and for the VMs none: their peers are simulated."""
    names = count()
    patch("orchestrator.launch.keys.generate_identity", lambda: (b"identity", f"peer-{next(names)}"))
    patch("orchestrator.launch.keys.generate_record_key", lambda: (b"record", "ssh-rsa AAAA"))
    patch("orchestrator.launch.keys.generate_run_key", _run_key)


@cache
def _run_key() -> tuple[bytes, str]:
    return generate_run_key()


class Killed(BaseException):
    """kill -9 of the controller, as near as one process comes to it."""


@dataclass
class Points:
    """Counts the places at which a controller can be stopped, and stops it at one."""

    stop_at: int = 0  # 0: nowhere
    passed: list[str] = field(default_factory=list)

    def reach(self, what: str) -> None:
        self.passed.append(what)
        if len(self.passed) == self.stop_at:
            raise Killed


class SimCalls:
    """Provider calls in virtual time (`calls.Calls`): what a call does is done at once, its reply comes later."""

    def __init__(self, cloud: SimCloud, clock: VirtualClock, points: Points, before: Callable[[Call], None]):
        self._cloud, self._clock, self._points, self._before = cloud, clock, points, before
        self._under_way: dict[str, tuple[Call, Reply, float]] = {}

    def submit(self, call: Call) -> bool:
        if call.key in self._under_way:
            return False
        self._under_way[call.key] = (call, self._begin(call), self._clock.now_s + call.deadline_s)
        return True

    def poll(self) -> list[Done]:
        done: list[Done] = []
        for key, (call, reply, deadline_s) in list(self._under_way.items()):
            if reply.at_s <= self._clock.now_s:
                done.append(Done(call, reply.result, reply.error))
            elif deadline_s <= self._clock.now_s:
                done.append(Done(call, error=AmbiguousError("no answer")))
            else:
                continue
            del self._under_way[key]
        return done

    def drop(self, key: str) -> bool:
        return False

    def wait(self, call: Call) -> Any:
        if call.method == "collect":
            return self._cloud.collect(*call.arguments)
        reply = self._begin(call)
        self._clock.advance_to(reply.at_s)
        if reply.error is not None:
            raise reply.error
        return reply.result

    def busy(self, what: str) -> bool:
        return is_under_way(what, self._under_way)

    def _begin(self, call: Call) -> Reply:
        self._before(call)
        reply = self._cloud.begin(call.method, *call.arguments)
        if call.method != "observe":
            self._points.reach(f"{call.method}: before its reply")
        return reply


class _Requests:
    last_epoch = EPOCHS
    evaluates = checkpoints = False
    most_checkpoint_bytes = 10**9

    def peer(self, request: ev.RequestVm, place: Place) -> LaunchRequest:
        return self._request(request.vm, place)

    def monitor(self, vm: str) -> LaunchRequest:
        return self._request(vm, RUN.slots[2].places[0])

    def nodes(self) -> dict[str, tuple[str, str]]:
        return {}

    def _request(self, vm: str, place: Place) -> LaunchRequest:
        offer = Offer(place.location, place.instance, "T4:1", True, place.usd_per_h, "book")
        return LaunchRequest(vm, offer, "simulated:peer", {}, max_usd_per_h=place.usd_per_h)


class _Swarm:
    """Peers that train an epoch each EPOCH_S as long as one of them trains, and a monitor that tells of it."""

    def __init__(self, world: SimWorld, log: Path, all_slots: int) -> None:
        self._world, self._log, self._all = world, log, all_slots
        self.epochs = 0
        self.told: list[tuple[str, int]] = []
        self._begun = False
        log.parent.mkdir(parents=True)
        world.status_of = self.status
        world.at(world.now_s, self._look)

    def phase(self, vm: SimVm) -> str:
        if self.epochs == EPOCHS:
            return "done"
        for_s = self._world.now_s - (vm.ready_s or self._world.now_s)
        return "starting" if for_s < 3.0 else "ready" if for_s < 6.0 else "training"

    def status(self, vm: SimVm) -> dict[str, Any]:
        if is_monitor(vm.vm):
            return {"phase": "ready"}
        phase = self.phase(vm)
        return {"phase": phase, "maddr": f"/m/{vm.vm}" if phase != "starting" else "", "error": None}

    def _peers(self) -> list[SimVm]:
        return [vm for vm in self._world.alive("r") if vm.billed and vm.ready_s is not None]

    def _look(self) -> None:
        """Each second."""
        now_s = self._world.now_s
        training = [vm for vm in self._peers() if self.phase(vm) == "training"]
        for vm in self._peers():
            self._world.touch(vm)
        if not self._begun and len(training) == self._all:
            self._begun = True
            self._world.at(now_s + EPOCH_S, self._average)
        alive = {"kind": "swarm", "at_s": now_s, "alive": [vm.vm for vm in training]}
        self._say([alive])
        if self.epochs < EPOCHS:
            self._world.at(now_s + 1.0, self._look)

    def _average(self) -> None:
        peers = [vm for vm in self._peers() if self.phase(vm) == "training"]
        now_s = self._world.now_s
        if peers:
            self.epochs += 1
        for vm in peers:
            epoch = EpochRecord(
                vm.vm, self.epochs, now_s - EPOCH_S, now_s, 3, 30, 1.0, 0.0, 1.0, 2.0, 0.1, 4.0, 0.0, 5.0, 4.0,
                2.3, len(peers), "", "d",
            )  # fmt: skip
            sent = EgressRecord(vm.vm, self.epochs, "10.9.9.9", "comm", 4.0, 1000 + self.epochs)
            self._say([{"kind": "epoch", "epoch": asdict(epoch), "egress": [asdict(sent)], "ingress": None}])
            self.told.append((vm.vm, self.epochs))
        if self.epochs == EPOCHS:
            for vm in peers:
                self._world.program_ended(vm)
        else:
            self._world.at(now_s + EPOCH_S, self._average)

    def _say(self, lines: list[dict[str, Any]]) -> None:
        with self._log.open("a") as file:
            file.writelines(json.dumps(line) + "\n" for line in lines)


class ScriptedRun:
    """The world and the run's folder, which outlive controllers; `wrong` collects what must never happen."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.wrong: list[str] = []
        self.clock = VirtualClock(BEGAN_S)
        quick = {"boot_s": (6.0, 9.0), "preempt_per_h": 0.0}
        places = [SimPlace(loc, spot_usd_per_h=Decimal(usd), **quick) for loc, usd in USD.items()]
        self.world = SimWorld(places, seed=5, autodown_s=40.0, began_s=BEGAN_S)
        self.cloud = SimCloud(folder / "r", self.world, self.clock, seed=5)
        self.swarm = _Swarm(self.world, folder / "r" / "monitor" / "monitor.jsonl", len(RUN.slots))
        self.world.on_change = self._changed
        self.world.schedule(_HISTORY)
        self.world.at(BEGAN_S + _NOTICE_S, self._announce)
        self.world.at(BEGAN_S + _MONITOR_DIES_S, self._kill_monitor)
        self._unanswered = "request r-eu-0-0"
        self._store: RunStore | None = None
        self.controllers = 0
        fact = created(RUN)
        with RunStore.open_writer(self.path) as store, store.transaction():
            store.set_meta("status", "running")
            store.set_meta("run_id", "r")
            row = EventRecord(0, BEGAN_S, fact.kind, "", -1, "", "", "", fact.cause, fact.data_json)
            store.append("events", [row])

    @property
    def path(self) -> Path:
        return self.folder / "r" / "run.db"

    def control(self, points: Points) -> None:
        """One controller's life, to the run's end or to its own (Killed)."""
        self.controllers += 1
        with RunStore.open_writer(self.path) as store:
            self._store = store
            _hook(store, points)
            calls = SimCalls(self.cloud, self.clock, points, self._before)
            shell = Shell(
                store, calls, _Requests(), self.folder / "r", now_s=lambda: self.clock.now_s,
                jitter=Random(self.controllers).random, pace=Pace(20.0, 20.0),
            )  # fmt: skip
            self.shell = shell
            while True:
                try:
                    if shell.tick():
                        return
                except ProviderError as error:  # closing: the actor tries again
                    self.wrong.append(f"closing failed: {error}")
                if self.clock.now_s > BEGAN_S + LIMIT_S:
                    raise AssertionError(f"not finished: {shell.state}")
                self.pass_time(TICK_S)

    def pass_time(self, seconds: float) -> None:
        self.clock.advance_to(self.clock.now_s + seconds)
        self.world.advance_to(self.clock.now_s)

    def run(self, *stops: int) -> Points:
        """The whole run; the first controllers are stopped at these points of theirs, and the last goes on."""
        points = Points()
        for stop_at in (*stops, 0):
            points = Points(stop_at)
            try:
                self.control(points)
                break
            except Killed:
                self.pass_time(DOWN_S)
        return points

    def _before(self, call: Call) -> None:
        if call.key == self._unanswered:
            self._unanswered = ""
            self.cloud.faults.demand("lost_reply")

    def _announce(self) -> None:
        for vm in self.world.alive("r"):
            if vm.place.location == US:
                self.world._notice(vm, BEGAN_S + _TAKEN_S)

    def _kill_monitor(self) -> None:
        for vm in self.world.alive("r"):
            if is_monitor(vm.vm):
                self.world.end(vm, "failed", "killed by signal 9")

    def _changed(self, change: str, vm: SimVm, at_s: float) -> None:
        """No VM without its row in the journal; no slot with two that stay."""
        if change != "created":
            return
        assert self._store is not None
        state = replay(self._store.records("events"))
        wished = state.intents | (set(state.monitor_vms()) if state.monitor != "absent" else set())
        if vm.vm not in wished:
            self.wrong.append(f"{vm.vm} was created, and the journal does not know it")
        slot = vm.vm.rpartition("-")[0]
        stay = [
            o for o in self.world.alive("r") if o.billed and o.notice_s is None
        ]  # the others go by themselves
        twins = [o.vm for o in stay if o.vm.rpartition("-")[0] == slot]
        if vm.billed and len(twins) > 1:
            self.wrong.append(f"{slot} has two VMs: {', '.join(twins)}")


def _hook(store: RunStore, points: Points) -> None:
    """Points before and after each journal write, and after each other transaction.

    Within a transaction there is none: a kill there leaves nothing of it. Before one that is no journal write it is
    the same for the world as after the write or the call that came last.
    """
    transaction, append = store.transaction, store.append
    inside = [False]

    @contextmanager
    def hooked(what: str = "store") -> Iterator[None]:
        if inside[0]:
            with transaction():
                yield
            return
        if what == "journal":
            points.reach("journal: before a write")
        inside[0] = True
        try:
            with transaction():
                yield
        finally:
            inside[0] = False
        points.reach(f"{what}: after a write")

    def appending(table: str, rows: Iterable[Any]) -> int:
        rows = list(rows)
        with hooked("journal" if table == "events" else "store") if rows else nullcontext():
            return append(table, rows)

    store.transaction = hooked  # type: ignore[method-assign]
    store.append = appending  # type: ignore[method-assign]
