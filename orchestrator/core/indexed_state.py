"""A mutable, indexed copy of a run's state, so that an event costs time proportional to what it changes."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterator, KeysView
from dataclasses import replace
from decimal import Decimal

from orchestrator.core.events import RequestVm
from orchestrator.core.limits import record_request
from orchestrator.core.policy import Rank, zone_rank
from orchestrator.core.state import LIVE, OVER, Place, RunState, Slot, SlotSpec, SlotState, Zone

READY = frozenset({"ready", "training", "leaving", "done"})  # phases of a peer that has joined
WAITS = "waiting"  # phase of a VM that waits for initial peers

MAX_ADDRESSES = 16  # addresses given to a new peer; one that answers is enough


def working_state(state: RunState) -> WorkingState:
    """The state's own indexes if they are still valid, or else new ones."""
    index = state.index
    return (
        index
        if isinstance(index, WorkingState) and index.newest is state and index.consistent
        else WorkingState(state)
    )


def held_vms(state: RunState) -> KeysView[str]:
    """The VMs that belong to a slot, alive or being terminated. Valid until the state is advanced."""
    return working_state(state).held_vms()


def any_waiting(state: RunState) -> bool:
    """Whether any slot waits for a VM."""
    return working_state(state).any_waiting()


def any_joinable(state: RunState) -> bool:
    """Whether any peer can be joined."""
    return working_state(state).joinable()


class WorkingState:
    """A run's state with indexes.

    `run` holds the run's own fields; the current slots, intents, zones and request times are attributes of
    this object.
    """

    def __init__(self, state: RunState) -> None:
        self.run = state
        self.newest: RunState | None = None  # the state that these indexes describe
        self.consistent = False  # whether the last batch was applied completely
        self.slots = list(state.slots)
        self.zones = {z.market: z for z in state.zones}
        self.requested_s = deque(state.requested_s)
        self.replaced_s = deque(state.replaced_s)
        self.over = self.done = self.live = self.held = self.able = self.taken = self.training = 0
        self.first_done_s = float("inf")
        self.unconfirmed: set[int] = set()  # requested, not yet confirmed by the provider
        self.ending: set[int] = set()
        self.waiting: set[int] = set()  # waiting for initial peers
        self.joining = 0  # given initial peers, without an address yet
        self.ready: list[int] = []  # heap of waiting slots whose retry time has come
        self.all_ended = False  # after a stop: every slot has been ended
        self._due: list[tuple[float, int]] = []  # heap of times at which a slot must be checked
        self._at: dict[str, int] = {}  # slot index by VM, including VMs being terminated
        self._joinable: dict[int, str] = {}
        self._join_at: tuple[str, ...] | None = None
        self._requests: dict[int, RequestVm] = {}  # the last one of each slot that has not changed since
        self._held_usd = Decimal(0)
        self._held_unpriced = 0
        self._intents: set[str] = set()  # new since the last freeze
        self._touched: dict[int, Slot] = {}  # slots before their changes
        self._changed = False
        self._zones_touched: dict[str, Zone] = {}
        for i, slot in enumerate(self.slots):
            self._count(i, slot, 1)
            self._schedule(i, slot)

    # Queries

    def spec(self, i: int) -> SlotSpec:
        """The specification of slot `i`."""
        return self.run.spec.slots[i]

    def of_vm(self, vm: str) -> Iterator[tuple[int, Slot]]:
        """The slot whose current VM this is, if any."""
        i = self._at.get(vm) if vm else None
        if i is not None and self.slots[i].vm == vm:
            yield i, self.slots[i]

    def of_ending(self, vm: str) -> Iterator[tuple[int, Slot]]:
        """The slot that is terminating this VM, if any."""
        i = self._at.get(vm) if vm else None
        if i is not None and self.slots[i].ending == vm:
            yield i, self.slots[i]

    def of_announced(self, vm: str) -> Iterator[tuple[int, Slot]]:
        """The slot whose VM this was until its preemption was announced."""
        return ((i, slot) for i, slot in self.of_ending(vm) if slot.notice_at_s is not None)

    def holds(self, vm: str) -> bool:
        """Whether the VM belongs to a slot, alive or being terminated."""
        return vm in self._at

    def held_vms(self) -> KeysView[str]:
        """All VMs of which `holds` is true."""
        return self._at.keys()

    def any_waiting(self) -> bool:
        """Whether any slot waits for a VM."""
        return self.over + self.live < len(self.slots)

    def zone(self, place: Place) -> Zone:
        """The circuit breaker of a place."""
        return self.zones.get(place.market) or Zone(place.market)

    def rank(self, now_s: float) -> Rank:
        """The rank of a place at this time."""
        return lambda place: zone_rank(self.zone(place), now_s)

    def is_unconfirmed(self, vm: str) -> bool:
        """Whether the VM's request has no answer yet."""
        return any(i in self.unconfirmed for i, _ in self.of_vm(vm))

    def held_usd_per_h(self) -> Decimal | None:
        """The maximum hourly cost of all VMs together; None: unknown."""
        return None if self._held_unpriced else self._held_usd

    def addresses(self, exclude: str = "") -> tuple[str, ...]:
        """Addresses of peers to join, in slot order, without `exclude`."""
        if self._join_at is None:
            chosen = heapq.nsmallest(MAX_ADDRESSES + 1, self._joinable)
            self._join_at = tuple(self._joinable[i] for i in chosen)
        if exclude not in self._join_at:  # of almost all slots
            return self._join_at[:MAX_ADDRESSES]
        return tuple(m for m in self._join_at if m != exclude)[:MAX_ADDRESSES]

    def request(self, i: int, initial_peers: tuple[str, ...]) -> RequestVm:
        """The instruction to request slot `i`'s VM, which is repeated at each tick until the request is answered."""
        known = self._requests.get(i)
        if known is None or known.initial_peers != initial_peers:
            slot = self.slots[i]
            known = RequestVm(slot.vm, slot.name, slot.generation, slot.place, initial_peers)
            self._requests[i] = known
        return known

    def join_within_s(self, slot: Slot) -> float:
        """How long a slot may be JOINING.

        While it waits for the swarm's first peer, the boot deadline applies if longer.
        """
        spec = self.run.spec
        waits = slot.phase == WAITS and slot.vm != self.run.seed
        join_s = spec.join_deadline_s + spec.restore_s
        return max(spec.boot_deadline_s, join_s) if waits else join_s

    def joinable(self) -> bool:
        """Whether any peer can be joined."""
        return bool(self._joinable)

    # Changes

    def set(self, i: int, slot: Slot) -> None:
        """Replace slot `i`."""
        old = self.slots[i]
        if old == slot:
            return
        self._touched.setdefault(i, old)
        self._requests.pop(i, None)
        self._changed = True
        self._count(i, old, -1)
        self.slots[i] = slot
        self._count(i, slot, 1)
        self._schedule(i, slot)

    def intend(self, i: int, slot: Slot) -> None:
        """Replace slot `i` by one with a new VM, requested at its `since_s`."""
        self._intents.add(slot.vm)
        self.set(i, slot)
        record_request(self.requested_s, self.replaced_s, slot)

    def set_zone(self, zone: Zone) -> None:
        """Replace the circuit breaker of a zone."""
        old = self.zones.get(zone.market) or Zone(zone.market)
        if old != zone:
            self._zones_touched.setdefault(zone.market, old)
            self._changed = True
            self.zones[zone.market] = zone

    def pop_due(self, now_s: float) -> list[int]:
        """Slots whose deadline has passed, each once. Slots that wait for a VM are also added to `ready`."""
        due: set[int] = set()
        while self._due and self._due[0][0] <= now_s:
            at_s, i = heapq.heappop(self._due)
            if at_s == self._due_s(self.slots[i]):
                due.add(i)
        for i in due:
            if self.slots[i].state is SlotState.WAITING:
                heapq.heappush(self.ready, i)
        return sorted(due)

    def reschedule(self, i: int) -> None:
        """Schedule slot `i` for its next deadline again."""
        self._schedule(i, self.slots[i])

    def touched(self) -> tuple[list[tuple[Slot, Slot]], list[tuple[Zone, Zone]]]:
        """Changes since the last call: slots and zones (before, after)."""
        changed = sorted(self._touched.items())
        slots = [(old, self.slots[i]) for i, old in changed if old != self.slots[i]]
        touched = self._zones_touched.items()
        zones = [(old, self.zones[name]) for name, old in touched if old != self.zones[name]]
        self._touched, self._zones_touched = {}, {}
        return slots, zones

    def freeze(self) -> RunState:
        """The current state.

        Only the newest one has indexes; `slots` is the same object while no slot changed.
        """
        self.consistent, run = True, self.run
        if run is self.newest and not self._changed:
            return run
        self.run = self.newest = replace(
            run,
            slots=tuple(self.slots) if self._changed else run.slots,
            intents=run.intents | self._intents if self._intents else run.intents,
            zones=tuple(self.zones[name] for name in sorted(self.zones)),
            requested_s=tuple(self.requested_s) if self._intents else run.requested_s,
            replaced_s=tuple(self.replaced_s) if self._intents else run.replaced_s,
            index=self,
        )
        self._intents, self._changed = set(), False
        return self.run

    # Indexes

    def _count(self, i: int, slot: Slot, by: int) -> None:
        state = slot.state
        self.over += by * (state in OVER)
        self.done += by * (state is SlotState.DONE)
        self.live += by * (state in LIVE)
        self.taken += by * (state in LIVE and state is not SlotState.PROVISIONING)
        self.held += by * bool(slot.vm or slot.ending)
        self.training += by * (state is SlotState.TRAINING or slot.leaves)
        able = state is SlotState.TRAINING or (state is SlotState.JOINING and slot.phase in READY)
        self.able += by * (able and slot.phase != "leaving")
        if state is SlotState.DONE and by > 0:
            self.first_done_s = min(self.first_done_s, slot.since_s)
        _member(self.unconfirmed, i, by > 0 and state is SlotState.PROVISIONING and not slot.confirmed)
        _member(self.ending, i, by > 0 and bool(slot.ending))
        waits = state is SlotState.JOINING and slot.phase == WAITS
        _member(self.waiting, i, by > 0 and waits)
        self.joining += by * (
            state in (SlotState.JOINING, SlotState.TRAINING) and not slot.maddr and not waits
        )
        for vm in (slot.vm, slot.ending):
            if vm and by > 0:
                self._at[vm] = i
            elif vm and self._at.get(vm) == i:
                del self._at[vm]
        if slot.maddr and slot.vm and state in LIVE and slot.phase != "leaving":
            if by > 0:
                self._joinable[i] = slot.maddr
            else:
                del self._joinable[i]
            self._join_at = None
        if slot.vm or slot.ending:
            usd = _held_usd(self.spec(i), slot)
            self._held_unpriced += by * (usd is None)
            self._held_usd += by * (usd or Decimal(0))

    def _schedule(self, i: int, slot: Slot) -> None:
        due_s = self._due_s(slot)
        if due_s is not None:
            heapq.heappush(self._due, (due_s, i))

    def _due_s(self, slot: Slot) -> float | None:
        spec = self.run.spec
        if slot.state is SlotState.WAITING:
            return None if slot.blocked else slot.retry_at_s
        if slot.state is SlotState.BOOTING:
            return slot.since_s + spec.boot_within_s(slot.phase)
        if slot.state is SlotState.JOINING:
            return slot.since_s + (spec.start_deadline_s if slot.phase in READY else self.join_within_s(slot))
        return None


def _held_usd(spec: SlotSpec, slot: Slot) -> Decimal | None:
    """Maximum hourly cost of a slot's VMs; None: unknown.

    The place of a VM that is being terminated is no longer recorded, so the most expensive one is assumed.
    """
    ceilings = [place.ceiling_usd_per_h for place in spec.places]
    known = [usd for usd in ceilings if usd is not None]
    most_expensive = max(known) if len(known) == len(ceilings) else None
    held = [ceilings[slot.place]] if slot.vm else []
    held += [most_expensive] if slot.ending else []
    counted = [usd for usd in held if usd is not None]
    return sum(counted, Decimal(0)) if len(counted) == len(held) else None


def _member(group: set[int], i: int, wanted: bool) -> None:
    if wanted:
        group.add(i)
    else:
        group.discard(i)
