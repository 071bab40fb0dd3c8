"""The controller's rows in the store: the journal, one row per VM, and the nodes of the traffic matrix."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from decimal import Decimal
from typing import Any, Protocol

from cloud.prices.classes import network_of
from cloud.provider import Observed
from cloud.vm_report import printable
from metrics.records import EventRecord, VmEnd, VmRecord, end_cause
from metrics.store.database import RunStore
from orchestrator.controller.json_log import about
from orchestrator.core.events import MONITOR, Fact
from orchestrator.core.indexed_state import held_vms
from orchestrator.core.journal import preempted_vm, taken_over
from orchestrator.core.state import Place, RunState, SlotState

_log = logging.getLogger("orchestrator.controller")


class Nodes(Protocol):
    """Source of the nodes that are not VMs of a slot."""

    def nodes(self) -> Mapping[str, tuple[str, str]]:
        """Address and location by node name."""
        ...


class Rows:
    """Writes the rows of one run, continuing after those already in the store."""

    def __init__(self, store: RunStore, events: Sequence[EventRecord], nodes: Nodes) -> None:
        self._store, self._nodes = store, nodes
        self._seq = events[-1].seq + 1
        self._requested: dict[str, tuple[str, int, int]] = {}  # by VM: slot, generation, place
        self._in_order: list[tuple[str, str, int]] = []  # of the same: VM, slot, generation
        self._intended_s: dict[
            str, float
        ] = {}  # by VM: when its intent was journalled, by the controller's clock
        self._shift_s: dict[str, float] = {}  # by VM: from the provider's clock to the controller's
        self._preempted: set[str] = set()
        self._taken: set[str] = set()  # VMs whose request the provider accepted
        self._unlocated: list[str] = []  # VMs whose location is not in the store yet
        self._written: dict[str, Observed] = {}  # the observations that the rows are of
        for event in events:
            self._remember(event, event.at_s)
        self._rows: dict[str, VmRecord] = {r.vm: r for r in store.records("vms")}
        self._living = {vm for vm, row in self._rows.items() if row.ended_s is None}
        self._skews: dict[str, float] = dict(store.meta("clock_skew_s", {}))
        self._internal: dict[str, dict[str, str]] = dict(store.meta("internal_addresses", {}))
        self._prices: dict[str, list[list[Any]]] = dict(store.meta("price_changes", {}))
        self._list: object = None  # the last provider list
        self._listed: dict[str, Observed] = {}  # its VMs that were requested
        self._slots: object = None  # slots of the last state whose rows were written
        self._spec: object = None  # that `_places` is of
        self._places: dict[str, tuple[Place, ...]] = {}  # by slot
        # The journal may be newer than the last list that an earlier controller read.
        self._listed_s = self._listed_before_s = min(
            events[-1].at_s, float(store.meta("listed_s", events[-1].at_s))
        )

    @property
    def vms(self) -> list[VmRecord]:
        """The rows of all VMs that the provider ever reported."""
        return list(self._rows.values())

    def requested(self) -> Sequence[tuple[str, str, int]]:
        """Name, slot and generation of every VM ever requested."""
        return self._in_order

    def journal(self, facts: Iterable[Fact], now_s: float) -> None:
        """Append facts durably, and log each of them."""
        rows: list[EventRecord] = []
        for fact in facts:
            rows.append(_event(fact, self._seq + len(rows), now_s))
            self._remember(fact, now_s)
            _log.info(
                "%s %s %s -> %s: %s", fact.kind, fact.vm, fact.from_state, fact.to_state, fact.cause,
                extra=about(fact.slot, fact.generation, fact.vm, fact.cause),
            )  # fmt: skip
        self._store.append("events", rows)
        self._seq += len(rows)

    def write_clock(self, now_s: float) -> None:
        """Store the current time and that of the last list, which a quiet journal does not contain."""
        with self._store.transaction():
            self._store.set_meta("clock_s", now_s)
            self._store.set_meta("listed_s", self._listed_s)

    def write_vms(self, state: RunState, seen: Iterable[Observed] | None, now_s: float) -> None:
        """Update the rows of reported VMs; an unlisted one has ended. `seen` None: no list was read yet."""
        fresh = seen is not None and seen is not self._list
        if fresh:
            self._list, self._listed_before_s, self._listed_s = seen, self._listed_s, now_s
        new = list(seen or ()) if fresh else []
        if fresh:
            self._listed = {o.vm: o for o in new if o.vm in self._requested}
        if fresh or state.slots is not self._slots:  # otherwise the rows are up to date
            self._write_rows(state, now_s)
            self._slots = state.slots
        if fresh:
            self._write_reported(state, new)
        self._write_nodes(state, new)

    def _write_rows(self, state: RunState, now_s: float) -> None:
        listed, held = self._listed, held_vms(state)
        fresh = {vm: self._row(state, o) for vm, o in listed.items() if self._written.get(vm) is not o}
        for vm in sorted(vm for vm in self._living if vm not in listed and vm not in held):
            end_cause = self._end_cause(vm, VmEnd.UNLISTED)
            fresh[vm] = replace(self._rows[vm], ended_s=now_s, end_cause=end_cause)
        self._taken = {vm for vm in self._taken if vm not in self._rows}
        for vm in sorted(vm for vm in self._taken if vm not in held and vm not in listed):
            fresh[vm] = self._never_listed(state, vm, now_s)
        changed = [row for vm, row in fresh.items() if self._rows.get(vm) != row]
        if changed:
            with self._store.transaction():
                self._note_prices(changed)
                for row in changed:
                    self._store.upsert_vm(row)
                    self._rows[row.vm] = row
        for vm, row in fresh.items():
            (self._living.add if row.ended_s is None else self._living.discard)(vm)
            if vm in listed:
                self._written[vm] = listed[vm]
            else:
                self._written.pop(vm, None)

    def _note_prices(self, changed: Iterable[VmRecord]) -> None:
        """Record a VM's earlier prices: spot prices change, and the past is billed at the price of its time.

        The exact time of a change between two lists is unknown: a rise counts from the first list, a fall
        from the second.
        """
        fresh = dict(self._prices)
        for row in changed:
            known = self._rows.get(row.vm)
            if known is None or known.usd_per_h is None or row.usd_per_h is None:
                continue
            if row.vm in fresh and known.ended_s is None and row.ended_s is not None:
                fresh[row.vm] = rises_moved_back(fresh[row.vm], known.usd_per_h, self._listed_s - row.ended_s)
            if known.usd_per_h == row.usd_per_h:
                continue
            rose = row.usd_per_h > known.usd_per_h
            until_s = self._listed_before_s if rose else self._listed_s
            fresh[row.vm] = [*fresh.get(row.vm, []), [until_s, str(known.usd_per_h)]]
        if fresh != self._prices:
            self._store.set_meta("price_changes", fresh)
            self._prices = fresh

    def place(self, state: RunState, slot: str, index: int) -> Place:
        """A place of a slot, by its number."""
        if self._spec is not state.spec:
            self._spec, self._places = state.spec, {spec.name: spec.places for spec in state.spec.slots}
        return self._places[slot][index]

    def _row(self, state: RunState, o: Observed) -> VmRecord:
        """The row of a VM. Values reported after creation take precedence over planned ones."""
        slot, generation, index = self._requested[o.vm]
        place = self.place(state, slot, index)
        usd_per_h, source = place.usd_per_h, place.price_source
        if o.usd_per_h is not None:
            usd_per_h, source = o.usd_per_h, o.price_source or "as the provider said after creation"
        requested_s, ready_s, ended_s = self._timed(o)
        return VmRecord(
            vm=o.vm, slot=slot, generation=generation, location=o.location or place.location,
            instance=o.instance or place.instance, accelerator=place.accelerator, use_spot=place.use_spot,
            usd_per_h=usd_per_h, price_source=source, address=o.address or "",
            requested_s=requested_s, ready_s=ready_s, ended_s=ended_s,
            end_cause=self._end_cause(o.vm, *_end_of(o)),
        )  # fmt: skip

    def _never_listed(self, state: RunState, vm: str, now_s: float) -> VmRecord:
        """The row of an accepted, never listed, terminated VM: billed from its intent at its ceiling."""
        slot, generation, index = self._requested[vm]
        place = self.place(state, slot, index)
        return VmRecord(
            vm=vm, slot=slot, generation=generation, location=place.location, instance=place.instance,
            accelerator=place.accelerator, use_spot=place.use_spot, usd_per_h=place.ceiling_usd_per_h,
            price_source="the ceiling of its place: the provider never listed it", address="",
            requested_s=self._intended_s[vm], ready_s=None, ended_s=now_s, end_cause=self._end_cause(vm, VmEnd.NEVER_LISTED),
        )  # fmt: skip

    def _end_cause(self, vm: str, end: VmEnd | None, detail: str = "") -> str:
        """The end cause; a VM that ended after its preemption notice was preempted.

        `end`: None while it lives.
        """
        if end is None:
            return ""
        return end_cause(VmEnd.PREEMPTED) if vm in self._preempted else end_cause(end, detail)

    def _timed(self, o: Observed) -> tuple[float, float | None, float | None]:
        """When a VM was requested, ready and ended, by the controller's clock.

        The provider's clock may differ from the controller's, which may also have been set between two
        controllers. A VM cannot have been requested before its intent was journalled, nor after it was first
        listed. If the provider's times contradict that, they are shifted; otherwise the running VM would be
        billed by two clocks.
        """
        if o.vm not in self._shift_s:
            known, intended_s = self._rows.get(o.vm), self._intended_s[o.vm]
            if known is not None:
                self._shift_s[o.vm] = known.requested_s - o.requested_at_s
            elif intended_s - _CLOCKS_S <= o.requested_at_s <= self._listed_s:
                self._shift_s[o.vm] = 0.0
            else:
                self._shift_s[o.vm] = intended_s - o.requested_at_s
        shift_s = self._shift_s[o.vm]
        ready_s = None if o.ready_at_s is None else o.ready_at_s + shift_s
        ended_s = None if o.ended_at_s is None else o.ended_at_s + shift_s
        return o.requested_at_s + shift_s, ready_s, ended_s

    def _remember(self, row: Fact | EventRecord, at_s: float) -> None:
        if row.kind == "intent":
            self._intended_s[row.vm] = at_s
            if row.vm not in self._requested:
                self._in_order.append((row.vm, row.slot, row.generation))
            self._requested[row.vm] = (row.slot, row.generation, json.loads(row.data_json)["place"])
            self._unlocated.append(row.vm)
        elif row.kind == "transition" and row.to_state == SlotState.BOOTING:
            self._taken.add(row.vm)
        preempted = preempted_vm(row)
        self._preempted.add(preempted)
        self._written.pop(preempted, None)  # it may have ended already, and the cause is part of the row

    def _write_reported(self, state: RunState, seen: Iterable[Observed]) -> None:
        """Store the clock skews and internal addresses of a list."""
        skews = {o.vm: round(o.clock_skew_s, 1) for o in seen if o.clock_skew_s is not None}
        if skews != self._skews:
            self._store.set_meta("clock_skew_s", skews)
            self._skews = skews
        monitors = state.monitor_vms()
        internal = internal_nodes(self._internal, (o for o in seen if o.vm not in monitors))
        if internal != self._internal:
            self._store.set_meta("internal_addresses", internal)
            self._internal = internal

    def _write_nodes(self, state: RunState, seen: Iterable[Observed]) -> None:
        """Store addresses and locations of all nodes (including the monitor, which has no row).

        `seen`: a new list, or nothing.
        """
        before = self._store.meta("addresses", {}), self._store.meta("locations", {})
        addresses: dict[str, str] = {}
        locations: dict[str, str] = {}
        for vm in self._unlocated:  # its records may be read and priced before any list contains it
            slot, _, index = self._requested[vm]
            if vm not in before[1]:
                locations[vm] = self.place(state, slot, index).location
        names = dict.fromkeys(state.monitor_vms(), MONITOR)  # all monitors are one node of the traffic matrix
        for name, (address, location) in self._nodes.nodes().items():
            if location:
                locations[name] = location
            if address:
                addresses[address] = name
        locations |= {names.get(o.vm, o.vm): o.location for o in seen if o.location}
        addresses |= {o.address: names.get(o.vm, o.vm) for o in seen if o.address}
        # There is one entry for each VM ever requested, so they are copied only if one is new.
        if not (addresses.items() <= before[0].items() and locations.items() <= before[1].items()):
            with self._store.transaction():
                self._store.set_meta("addresses", {**before[0], **addresses})
                self._store.set_meta("locations", {**before[1], **locations})
        self._unlocated.clear()


def rises_moved_back(changes: Sequence[Sequence[Any]], usd_per_h: Decimal, late_s: float) -> list[list[Any]]:
    """Adjust a VM's price changes when its end is reported `late_s` after it by the controller's clock.

    `usd_per_h`: its last price. Changes were recorded by the controller's clock, the VM's lifetime is by the
    provider's. A late report may mean that the controller's clock was set forward between two controllers, so
    rises are moved back by `late_s` and falls are not: the bill errs on the high side.
    """
    moved_s = late_s if late_s > _LATE_S else 0.0
    prices = [Decimal(str(price)) for _, price in changes] + [usd_per_h]
    return [
        [until_s - moved_s if prices[n + 1] > prices[n] else until_s, price]
        for n, (until_s, price) in enumerate(changes)
    ]


def internal_nodes(
    known: Mapping[str, Mapping[str, str]], seen: Iterable[Observed]
) -> dict[str, dict[str, str]]:
    """VM by internal address, by network; "" for an address that two live VMs share, which identifies neither.

    Clouds reuse the address of a VM that is gone. `known`: the previous result.
    """
    held: dict[tuple[str, str], list[Observed]] = {}
    for o in seen:
        network = network_of(o.location) if o.internal_address else None
        if network and o.internal_address:
            held.setdefault((network, o.internal_address), []).append(o)
    found = {network: dict(addresses) for network, addresses in known.items()}
    for (network, address), vms in held.items():
        living = [o for o in vms if o.state in ("pending", "running")]
        addresses = found.setdefault(network, {})
        if living:
            addresses[address] = living[0].vm if len(living) == 1 else ""
        elif address not in addresses:
            addresses[address] = max(vms, key=lambda o: o.requested_at_s).vm
    return found


def journal_takeover(
    store: RunStore, events: Sequence[EventRecord], earlier_pid: int, pid: int, now_s: float
) -> None:
    """Append to the journal `events` that a controller continues for an earlier one. Raises StoreError."""
    store.append("events", [_event(taken_over(earlier_pid, pid), events[-1].seq + 1, now_s)])


def _event(fact: Fact, seq: int, at_s: float) -> EventRecord:
    return EventRecord(
        seq=seq, at_s=at_s, kind=fact.kind, slot=fact.slot, generation=fact.generation, vm=fact.vm,
        from_state=fact.from_state, to_state=fact.to_state, cause=fact.cause, data_json=fact.data_json,
    )  # fmt: skip


def written_until_s(store: RunStore, events: Sequence[EventRecord]) -> float:
    """The latest time of the run's clock in its store (0: none).

    A later clock of the run must not start before it.
    """
    return max(events[-1].at_s if events else 0.0, float(store.meta("clock_s", 0.0)))


_LATE_S = 60.0  # from a VM's end to the list that reports it; longer than a list takes
_CLOCKS_S = 5.0  # clocks that differ by no more count as equal


def _end_of(o: Observed) -> tuple[VmEnd | None, str]:
    if o.state == "failed":
        return VmEnd.FAILED, printable(str(o.cause or o.status.get("error") or "no cause given"))
    return (VmEnd(o.state) if o.state in ("preempted", "terminated") else None), ""
