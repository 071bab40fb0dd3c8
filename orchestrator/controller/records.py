"""What the shell writes down: the journal's rows, one row a VM, the nodes of the traffic matrix."""

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
from orchestrator.core.journal import preempted_vm
from orchestrator.core.state import RunState, SlotState

_log = logging.getLogger("orchestrator.controller")


class Nodes(Protocol):
    """Who knows the nodes that are no VMs of a slot."""

    def nodes(self) -> Mapping[str, tuple[str, str]]:
        """Address and location by name."""
        ...


class Rows:
    """One run's rows. Goes on after those already in the store."""

    def __init__(self, store: RunStore, events: Sequence[EventRecord], nodes: Nodes) -> None:
        self._store, self._nodes = store, nodes
        self._seq = events[-1].seq + 1
        self._wished: dict[str, tuple[str, int, int]] = {}  # by VM: slot, generation, place
        self._intended_s: dict[str, float] = {}  # by VM: when it was journalled, by our clock
        self._shift_s: dict[str, float] = {}  # by VM: from the provider's clock to ours
        self._preempted: set[str] = set()
        self._taken: set[str] = set()  # VMs of which the provider said that it took their request
        self._no_place: list[str] = []  # VMs whose place is in no row of the store yet
        for event in events:
            self._remember(event, event.at_s)
        self._rows: dict[str, VmRecord] = {r.vm: r for r in store.records("vms")}
        self._skews: dict[str, float] = dict(store.meta("clock_skew_s", {}))
        self._internal: dict[str, dict[str, str]] = dict(store.meta("internal_addresses", {}))
        self._prices: dict[str, list[list[Any]]] = dict(store.meta("price_changes", {}))
        self._list: object = None  # the provider's last list
        self._slots: object = None  # those of the state whose rows are written
        # Where an earlier controller read no list for a while, the journal may be newer than its last one.
        self._listed_s = self._listed_before_s = min(
            events[-1].at_s, float(store.meta("listed_s", events[-1].at_s))
        )

    @property
    def vms(self) -> list[VmRecord]:
        """The rows of all VMs the provider ever said anything of."""
        return list(self._rows.values())

    def wished(self) -> list[tuple[str, str, int]]:
        """Name, slot and generation of every VM ever wished for."""
        return [(vm, slot, generation) for vm, (slot, generation, _) in self._wished.items()]

    def journal(self, facts: Iterable[Fact], now_s: float) -> None:
        """Append the facts; they are on the disk when this returns. Each is logged, here and nowhere else."""
        rows: list[EventRecord] = []
        for fact in facts:
            rows.append(
                EventRecord(
                    seq=self._seq + len(rows), at_s=now_s, kind=fact.kind, slot=fact.slot,
                    generation=fact.generation, vm=fact.vm, from_state=fact.from_state,
                    to_state=fact.to_state, cause=fact.cause, data_json=fact.data_json,
                )
            )  # fmt: skip
            self._remember(fact, now_s)
            _log.info(
                "%s %s %s -> %s: %s", fact.kind, fact.vm, fact.from_state, fact.to_state, fact.cause,
                extra=about(fact.slot, fact.generation, fact.vm, fact.cause),
            )  # fmt: skip
        self._store.append("events", rows)
        self._seq += len(rows)

    def write_clock(self, now_s: float) -> None:
        """What another controller cannot know when nothing happened for long: how late it was, and when the last list was read."""
        with self._store.transaction():
            self._store.set_meta("clock_s", now_s)
            self._store.set_meta("listed_s", self._listed_s)

    def write_vms(self, state: RunState, seen: Iterable[Observed] | None, now_s: float) -> None:
        """Rows of the VMs the provider has said anything of; one no longer listed has ended. None: no list was read yet."""
        fresh = seen is not None and seen is not self._list
        if fresh:
            self._list, self._listed_before_s, self._listed_s = seen, self._listed_s, now_s
        seen = list(seen or ())
        if fresh or state.slots is not self._slots:  # else the rows say all of it already
            self._write_rows(state, seen, now_s)
            self._slots = state.slots
        self._write_nodes(state, seen)

    def _write_rows(self, state: RunState, seen: Iterable[Observed], now_s: float) -> None:
        listed = {o.vm: o for o in seen if o.vm in self._wished}
        held = {vm for s in state.slots for vm in (s.vm, s.ending) if vm}
        fresh = {vm: self._row(state, o) for vm, o in listed.items()}
        for vm, row in self._rows.items():
            if vm not in listed and row.ended_s is None and vm not in held:
                fresh[vm] = replace(row, ended_s=now_s, end_cause=self._end_cause(vm, VmEnd.UNLISTED))
        self._taken -= self._rows.keys()
        for vm in sorted(self._taken - held - listed.keys()):
            fresh[vm] = self._never_listed(state, vm, now_s)
        changed = [row for vm, row in fresh.items() if self._rows.get(vm) != row]
        if changed:
            with self._store.transaction():
                self._note_prices(changed)
                for row in changed:
                    self._store.upsert_vm(row)
                    self._rows[row.vm] = row

    def _note_prices(self, changed: Iterable[VmRecord]) -> None:
        """Keep what a VM cost until its price changed: spot prices move, and the past is billed as it was.

        When it changed between two lists nobody knows: a rise counts from the first one, a fall from the second.
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

    def _row(self, state: RunState, o: Observed) -> VmRecord:
        """What was read back after creation wins over what was planned."""
        slot, generation, index = self._wished[o.vm]
        place = state.slot_spec(slot).places[index]
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
        """The provider took its request, no list ever showed it, and it has been ended: billed from its wish, at the most."""
        slot, generation, index = self._wished[vm]
        place = state.slot_spec(slot).places[index]
        return VmRecord(
            vm=vm, slot=slot, generation=generation, location=place.location, instance=place.instance,
            accelerator=place.accelerator, use_spot=place.use_spot, usd_per_h=place.ceiling_usd_per_h,
            price_source="the ceiling of its place: the provider never listed it", address="",
            requested_s=self._intended_s[vm], ready_s=None, ended_s=now_s, end_cause=self._end_cause(vm, VmEnd.NEVER_LISTED),
        )  # fmt: skip

    def _end_cause(self, vm: str, end: VmEnd | None, detail: str = "") -> str:
        """A VM that went after its notice was preempted, whatever its end looked like. `end`: None while it lives."""
        if end is None:
            return ""
        return end_cause(VmEnd.PREEMPTED) if vm in self._preempted else end_cause(end, detail)

    def _timed(self, o: Observed) -> tuple[float, float | None, float | None]:
        """When a VM was requested, ready and ended, by the controller's clock.

        The provider's clock, and ours after it was set between two controllers, may be off. A VM cannot have been
        requested before its intent was journalled, nor after it was first listed: where the provider says so, its
        times are moved to make both agree. Otherwise the running VM would be billed by two clocks.
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
            self._wished[row.vm] = (row.slot, row.generation, json.loads(row.data_json)["place"])
            self._no_place.append(row.vm)
        elif row.kind == "transition" and row.to_state == SlotState.BOOTING:
            self._taken.add(row.vm)
        self._preempted.add(preempted_vm(row))

    def _write_nodes(self, state: RunState, seen: Iterable[Observed]) -> None:
        """Who has which address, and where it is; the monitor too, whose own row nobody keeps. And how far clocks are off."""
        skews = {o.vm: round(o.clock_skew_s, 1) for o in seen if o.clock_skew_s is not None}
        if skews != self._skews:
            self._store.set_meta("clock_skew_s", skews)
            self._skews = skews
        before = self._store.meta("addresses", {}), self._store.meta("locations", {})
        addresses, locations = dict(before[0]), dict(before[1])
        for vm in self._no_place:  # its records may be read, and are to be priced, before any list shows it
            slot, _, index = self._wished[vm]
            locations.setdefault(vm, state.slot_spec(slot).places[index].location)
        monitors = state.monitor_vms()  # one node of the traffic matrix, whichever lives
        nodes = [(name, *node) for name, node in self._nodes.nodes().items()]
        nodes += [(MONITOR if o.vm in monitors else o.vm, o.address or "", o.location) for o in seen]
        for name, address, location in nodes:
            if location:
                locations[name] = location
            if address:
                addresses[address] = name
        internal = internal_nodes(self._internal, (o for o in seen if o.vm not in monitors))
        if internal != self._internal:
            self._store.set_meta("internal_addresses", internal)
            self._internal = internal
        if (addresses, locations) != before:
            with self._store.transaction():
                self._store.set_meta("addresses", addresses)
                self._store.set_meta("locations", locations)
        self._no_place.clear()


def rises_moved_back(changes: Sequence[Sequence[Any]], usd_per_h: Decimal, late_s: float) -> list[list[Any]]:
    """A VM's price changes once its end is told, `late_s` after it by our clock; `usd_per_h`: its last price.

    Changes are noted by our clock, its life is by the provider's. An end told late may mean that ours was set forward between
    two controllers: a rise counts from earlier by so much, a fall stays where it is. Rather too much than too little.
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
    """Which VM has which internal address, by network; "" where two that live have it: then it is nobody's.

    Clouds give an address to another VM once its holder is gone. `known`: what was so until now.
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


def written_until_s(store: RunStore, events: Sequence[EventRecord]) -> float:
    """The latest time of a run's clock that its store knows; 0: none. Before it no later clock of the run may begin."""
    return max(events[-1].at_s if events else 0.0, float(store.meta("clock_s", 0.0)))


_LATE_S = 60.0  # from a VM's end to the list that shows it: longer than a list takes
_CLOCKS_S = 5.0  # clocks that differ by no more are taken for the same


def _end_of(o: Observed) -> tuple[VmEnd | None, str]:
    if o.state == "failed":
        return VmEnd.FAILED, printable(str(o.cause or o.status.get("error") or "no cause given"))
    return (VmEnd(o.state) if o.state in ("preempted", "terminated") else None), ""
