"""The controller of a simulated run: the real loop (`orchestrator.controller.tick`) with simulated I/O.

The store, provider calls, monitor log and roster are in memory and on a virtual clock. The loop, its records, the
accounting and the shutdown are those of a real run. The `MemoryStore` is what the next controller finds when this
one is killed.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, Literal, Protocol

from cloud.prices.book import PriceBook
from cloud.prices.classes import EGRESS_CLASSES
from cloud.provider import LaunchRequest, Observed, Offer, ProviderError
from cloud.sim import Reply, SimCloud, SimWorld, VirtualClock
from experiments.wire.lease import OrdersTime
from metrics.records import EgressRecord, EpochRecord, EventRecord
from metrics.store.database import StoreError
from metrics.traffic import STORE
from orchestrator.controller.calls import Call, Done, Line, abandoned, broken, is_under_way, refusal_of
from orchestrator.controller.loop import Shells, abort, ticks
from orchestrator.controller.records import written_until_s
from orchestrator.controller.spending import spent_of
from orchestrator.controller.tick import Pace, Shell
from orchestrator.core import events as ev
from orchestrator.core.indexed_state import any_joinable
from orchestrator.core.invariants import validate_step
from orchestrator.core.journal import created
from orchestrator.core.state import Place, RunSpec, RunState, SlotState
from orchestrator.simulation.peers import Peers
from orchestrator.simulation.store import MemoryStore

OWNER = "simulated-00000000"
CrashPoint = Literal["before_write", "after_write", "before_reply"]

_FOLDER = Path("/simulated/sim")  # of the run; does not exist and is never written
_PACE = Pace(
    request_deadline_s=900.0, observe_deadline_s=30.0, observe_period_s=6.0, terminate_deadline_s=60.0
)
_MAX_PARALLEL = 32
_SOON_S = 0.01  # sparse ticks are at least so far apart
_ROUNDING_S = 0.001
_VALIDATED_EACH = 20  # with sparse ticks, since it takes time proportional to all VMs so far


class Crashed(BaseException):
    """The controller is killed at this point. A BaseException, so that no error handler catches it."""


class Disk(Protocol):
    """The disk of the controller's machine."""

    def write_file(self) -> None:
        """Raise OSError if the disk is full."""
        ...

    def free_reserve(self) -> bool:
        """Free the reserved space; return whether there was any."""
        ...

    def has_failed(self) -> bool:
        """Whether it raised an error in this round."""
        ...


def price_book() -> PriceBook:
    """Made-up traffic prices of the simulated clouds. VM prices come from the market."""
    rows = ["provider,product,from,to,item,unit,tier_start,usd,minimum_s,increment_s,valid_from,source"]
    for cloud in ("gcp", "aws"):
        for kind, usd in zip(
            EGRESS_CLASSES, ("0.01", "0.01", "0.01", "0.02", "0.08", "0.15", "0.09", "0.12"), strict=False
        ):
            rows.append(f"{cloud},egress,*,*,{kind},GB,0,{usd},,,2026-01-01,made up")
    # Free, since the provider's meter, with which the controller's costs are compared, has VMs only.
    rows += [
        "gcp,store_egress,*,*,*,GB,0,0,,,2026-01-01,made up",
        "gcp,storage,*,*,*,GB-month,0,0,,,2026-01-01,made up",
    ]
    return PriceBook.from_text("\n".join(rows) + "\n", "simulated")


def launched(spec: RunSpec, at_s: float) -> MemoryStore:
    """Create the store of a run that was just launched."""
    book = price_book()
    meta = {
        "run_id": spec.run_id,
        "status": "running",
        "target": "sky",  # determines billing
        "emulated": False,
        "scales": None,
        "price_book": {"name": book.name, "sha256": book.sha256, "csv": book.text},
        "locations": {STORE: "gcp/us-central1"},
        "started_s": at_s,
    }
    store = MemoryStore(_FOLDER / "run.db", meta)
    fact = created(spec)
    store.take_over()
    store.append("events", [EventRecord(0, at_s, fact.kind, "", -1, "", "", "", fact.cause, fact.data_json)])
    store.commits = 0
    return store


class SimCalls:
    """Provider calls on the virtual clock: each is made immediately and completes when its reply is due."""

    def __init__(
        self, cloud: SimCloud, world: SimWorld, clock: VirtualClock, list_without_news_s: float = 0.0
    ) -> None:
        """`list_without_news_s`: a list that would be as the last one is requested this long after it only."""
        self._cloud, self._world, self._clock = cloud, world, clock
        self._list_without_news_s = list_without_news_s
        self._listed_s = -math.inf
        self.needs_lists: Callable[[], bool] = lambda: True  # whether one without news matters
        self._line = Line(_MAX_PARALLEL)
        self._under_way: dict[str, tuple[Call, Reply, float]] = {}  # with their deadlines
        self._again: list[tuple[float, Done]] = []  # late and duplicate answers to requests
        self.counts: Counter[str] = Counter()
        self.called: Callable[[], None] = lambda: None  # called after a call was made, before its reply
        self.listed: Callable[[Sequence[Observed]], None] = lambda _: None  # called with each listing

    def submit(self, call: Call) -> bool:
        """Make or queue the call; False if one with the same key is in progress."""
        if call.key in self._under_way or call.key in self._line:
            return False
        if call.method == "observe":
            now_s = self._clock.now_s
            recent = now_s - self._listed_s < self._list_without_news_s
            if recent and not self._world.has_news(self._cloud.run) and not self.needs_lists():
                return False
            self._listed_s = now_s
        self._line.add(call)
        self._start()
        if call.method != "observe":
            self.called()
        return True

    def _start(self) -> None:
        for call in self._line.take([call for call, *_ in self._under_way.values()]):
            reply = self._cloud.begin(call.method, *call.arguments)
            self._under_way[call.key] = (call, reply, self._clock.now_s + call.deadline_s)

    def poll(self) -> list[Done]:
        """Return the calls that were answered or passed their deadline."""
        now_s = self._clock.now_s
        done = [each for at_s, each in self._again if at_s <= now_s]
        self._again = [(at_s, each) for at_s, each in self._again if at_s > now_s]
        for key, (call, reply, deadline_s) in list(self._under_way.items()):
            if reply.at_s > now_s and deadline_s > now_s:
                continue
            del self._under_way[key]
            faults = self._cloud.faults
            answer = _answer(call, reply)
            if reply.at_s > deadline_s:
                done.append(Done(call, error=abandoned(call)))
                if call.method == "request" and faults.strike("late_reply", now_s) is not None:
                    self._again.append((reply.at_s, answer))
            else:
                done.append(answer)
                if call.method == "observe" and answer.error is None:
                    self.listed(answer.result)
                if call.method == "request" and faults.strike("doubled_reply", now_s) is not None:
                    self._again.append((now_s, answer))
            error = done[-1].error
            if call.method == "request" and error is not None:
                self.counts[f"refused_{refusal_of(error)}"] += 1
        self._start()
        return done

    def next_s(self) -> float:
        """When the next call is answered or passes its deadline; infinity if none is in progress."""
        due = [min(reply.at_s, deadline_s) for _, reply, deadline_s in self._under_way.values()]
        return min([*due, *(at_s for at_s, _ in self._again)], default=math.inf)

    def drop(self, key: str) -> bool:
        """Remove a call from the queue."""
        return self._line.drop(key)

    def busy(self, what: str) -> bool:
        """Whether such a call is in progress or queued."""
        return is_under_way(what, self._under_way, self._line)

    def wait(self, call: Call) -> Any:
        """Make the call and advance the virtual clock to its reply. Raises ProviderError."""
        if call.method == "collect":
            return str(_FOLDER / "vms" / call.arguments[0])  # simulated peers write no logs
        reply = self._cloud.begin(call.method, *call.arguments)
        deadline_s = self._clock.now_s + call.deadline_s
        self._clock.advance_to(min(reply.at_s, deadline_s))
        self._world.advance_to(self._clock.now_s)
        done = _answer(call, reply) if reply.at_s <= deadline_s else Done(call, error=abandoned(call))
        if done.error is not None:
            raise done.error
        return done.result


def _answer(call: Call, reply: Reply) -> Done:
    """Convert a reply as a Ray worker would: unexpected exceptions of the provider's code become `broken`."""
    if reply.error is None or isinstance(reply.error, ProviderError):
        return Done(call, reply.result, reply.error)
    return Done(call, error=broken(call, reply.error, reply.error))


class SimMonitor:
    """The monitor's log: the peers in the DHT at each scrape, and the last epoch of each peer."""

    def __init__(self, world: SimWorld, peers: Peers, run: str, last_epoch: int) -> None:
        self._world, self._peers, self._run, self._last_epoch = world, peers, run, last_epoch
        self._log = bytearray()
        self._written: set[str] = set()  # finished peers whose last epoch is in the log
        self._at_s = float("-inf")

    def read(self, offset: int, most_bytes: int) -> bytes | None:
        """Read the log from an offset. If the monitor's VM is running, the swarm is scraped just before."""
        now_s = self._world.now_s
        if now_s > self._at_s and self._world.monitors(self._run):
            self._at_s = now_s
            self._scrape(now_s)
        return bytes(self._log[offset : offset + most_bytes])

    def _scrape(self, now_s: float) -> None:
        for vm in self._peers.finished():
            if vm not in self._written:
                self._written.add(vm)
                epoch = EpochRecord(
                    vm, self._last_epoch, now_s, now_s, 1, 0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0,
                    None, 1, "", "simulated",
                )  # fmt: skip
                # A peer that trained with others sent something; the amount is not simulated.
                sent = EgressRecord(vm, self._last_epoch, "", "comm", 0.0, 0)
                self._line(
                    {"kind": "epoch", "epoch": asdict(epoch), "egress": [asdict(sent)], "ingress": None}
                )
        self._line({"kind": "swarm", "at_s": now_s, "alive": self._peers.visible()})

    def _line(self, entry: Mapping[str, Any]) -> None:
        self._log += json.dumps(entry).encode() + b"\n"


class SimRoster:
    """The controller's orders to its peers, received immediately by all connected ones."""

    def __init__(self, peers: Peers, disk: Disk) -> None:
        self._peers, self._disk, self._time = peers, disk, OrdersTime()

    def public_key(self) -> str:
        """Return a placeholder: nothing is signed in the simulation."""
        return "simulated"

    def write(self, state: RunState, vms: Iterable[tuple[str, str, int]], now_s: float) -> None:
        """Renew leases, pause or resume, and tell waiting peers which peer to join; nothing once the run stops."""
        if state.ended or state.stop_status:
            return
        peers, lease_s = self._peers, state.spec.lease_s
        last_s = peers.issued_s
        if last_s is None or peers.paused != state.paused or self._time.due(now_s, last_s, lease_s):
            self._disk.write_file()
            peers.renew(state.paused, self._time.give(now_s, last_s, lease_s))
        if self._peers.waiting:
            self._peers.tell(state.seed, any_joinable(state))


class SimRequests:
    """Launch requests for slots and the monitor."""

    evaluates = checkpoints = False
    most_checkpoint_bytes = 10**9

    def __init__(self, spec: RunSpec, last_epoch: int) -> None:
        self._spec, self.last_epoch = spec, last_epoch

    def peer(self, request: ev.RequestVm, place: Place) -> LaunchRequest:
        """Request a slot's VM at a place."""
        return _request(request.vm, place, self._labels(request.slot))

    def monitor(self, vm: str) -> LaunchRequest:
        """Request the monitor's VM, at the place of the first slot."""
        return _request(vm, self._spec.slots[0].places[0], self._labels(""))

    def nodes(self) -> dict[str, tuple[str, str]]:
        """Return no further nodes."""
        return {}

    def _labels(self, slot: str) -> dict[str, str]:
        return {"orch-run": self._spec.run_id, "orch-slot": slot, "orch-owner": OWNER}


def _request(vm: str, place: Place, labels: dict[str, str]) -> LaunchRequest:
    offer = Offer(
        place.location, place.instance, place.accelerator, place.use_spot, place.usd_per_h, place.price_source
    )
    ceiling = place.max_usd_per_h if place.max_usd_per_h is not None else place.usd_per_h
    return LaunchRequest(vm, offer, "simulated:peer", {}, labels=labels, max_usd_per_h=ceiling)


class Escaped(BaseException):
    """A tick raised an exception that no simulated disk fault explains."""


class _Ticks:
    """A shell's ticks. The loop sees only the exceptions it would see without the simulation."""

    def __init__(self, shells: Shells, disk: Disk) -> None:
        self._shells, self._disk = shells, disk

    def next(self, raised: Exception | None) -> _Ticks:
        self._shells.next(raised)
        return self

    def tick(self) -> bool:
        try:
            return self._shells.shell.tick()
        except ProviderError:
            raise
        except Exception as error:
            if self._disk.has_failed() and isinstance(error, StoreError | OSError):
                raise
            raise Escaped from error


class SimController:
    """A controller, from its start until it is killed or the run ends."""

    def __init__(
        self,
        store: MemoryStore,
        cloud: SimCloud,
        world: SimWorld,
        clock: VirtualClock,
        peers: Peers,
        monitor: SimMonitor,
        disk: Disk,
        *,
        spec: RunSpec,
        last_epoch: int,
        seed: str,
        wall_s: float,
        check: bool,
        sparse: bool = False,
    ) -> None:
        """Resume from the store. `wall_s`: the machine's clock. `check`: check the core's invariants at each change.

        `sparse`: lists without news are requested once in a lease only, and invariants are checked now and then.
        """
        self._store, self._clock, self._peers, self._disk, self._check = store, clock, peers, disk, check
        # As `cloud.clock` after a boot: the machine's time or the last time in the store, whichever is later. The
        # clock is not set after that.
        self._offset_s = max(wall_s, written_until_s(store, store.records("events"))) - clock.now_s
        store.take_over()
        self.calls = SimCalls(cloud, world, clock, spec.lease_s if sparse else 0.0)
        make_shell = partial(
            Shell, store, self.calls, SimRequests(spec, last_epoch), _FOLDER, now_s=self.now_s,
            jitter=Random(f"jitter {seed}").random, spent=spent_of, pace=_PACE, log=monitor.read,
            roster=SimRoster(peers, disk),
        )  # fmt: skip
        self._shells = Shells(
            make_shell, _FOLDER, asked_to_stop=lambda _: "", free_reserve=lambda _: disk.free_reserve()
        )
        self.calls.needs_lists = self._misses_a_vm
        self._validated_each = _VALIDATED_EACH if sparse else 1
        self._ticks = ticks(_Ticks(self._shells, disk).next)
        self.ticks = 0
        self.retry_s: float | None = None  # delay until the retry of a tick that raised an error
        self.ended = False  # nothing left to do
        self.failure = ""  # why it gave up

    @property
    def state(self) -> RunState:
        """The state of the core."""
        return self._shells.shell.state

    def stop(self, status: str, cause: str) -> None:
        """End the run at the next tick."""
        self._shells.stop(status, cause)

    def now_s(self) -> float:
        """The time of its clock."""
        return self._clock.now_s + self._offset_s

    @property
    def busy(self) -> bool:
        """Whether ticks should be more frequent than in quiet times."""
        slots = self.state.slots
        return self._peers.working_count < len(slots) or any(s.ending for s in slots)

    def _misses_a_vm(self) -> bool:
        """Whether a VM may or must be gone, which lists without it prove."""
        state = self.state
        return bool(state.stop_status) or any(slot.ending or slot.ambiguous for slot in state.slots)

    def due_s(self, now_s: float, soon_s: float) -> float:
        """When a tick has something to do if no VM changes; `soon_s` from now if that depends on the tick itself.

        Deadlines of VMs are left out: they are noticed at the next tick that takes place for another reason.
        """
        state, own_s = self.state, self.now_s()
        waiting = [s for s in state.slots if s.state is SlotState.WAITING and not s.blocked]
        ending = bool(state.stop_status) or state.finishing_s is not None
        monitored = state.monitor in ("wanted", "ending") or (
            state.monitor == "absent" and any_joinable(state)
        )
        soon = (
            ending
            or monitored
            or self._misses_a_vm()
            or bool(state.held_back)
            or any(s.retry_at_s <= own_s for s in waiting)
        )
        soon = soon or any(s.state is SlotState.DONE for s in state.slots) or self._peers.waiting
        times = [now_s + soon_s] if soon else []
        # A little later than due, so that rounding does not make it a tick too early.
        times += [now_s + s.retry_at_s - own_s + _ROUNDING_S for s in waiting if s.retry_at_s > own_s]
        return max(now_s + _SOON_S, min([*times, self.calls.next_s()], default=math.inf))

    def tick(self) -> None:
        """Run one round. Raises Crashed, Escaped."""
        shell, before = self._shells.shell, self.state
        self.ticks += 1
        try:
            pause_s = next(self._ticks)
            self.retry_s = pause_s if self._disk.has_failed() else None
        except StopIteration:
            self.ended = True
        except ProviderError as error:  # the run has ended, but its cloud could not be closed
            self.ended, self.failure = True, str(error)
        except Exception as error:  # noqa: BLE001 - like the actor
            self.ended = True
            self._disk.free_reserve()
            self.failure = abort(self._store, self.calls, _FOLDER, self.now_s(), str(error), 120.0)
        due = self.ticks % self._validated_each == 0
        if self._check and due and shell is self._shells.shell and self.state is not before:
            validate_step(before, self.state)


def stops(rows: Iterable[EventRecord]) -> bool:
    """Whether one of these journal rows stops the run."""
    return any(row.kind == "run" and json.loads(row.data_json)["stop_status"] for row in rows)
