"""The thin shell around the core: look, think, write down, act; once a second until the run has ended."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from decimal import Decimal
from pathlib import Path
from typing import Protocol

from cloud.provider import LaunchRequest, Observed
from metrics.records import EventRecord, VmRecord
from metrics.store import RunStore
from orchestrator.controller.calls import Call, Calls, Done, refusal_of
from orchestrator.controller.closing import close_run
from orchestrator.controller.keys import vm_keys
from orchestrator.controller.tail import MonitorTail
from orchestrator.core import events as ev
from orchestrator.core.journal import replay
from orchestrator.core.machine import step
from orchestrator.core.policy import Jitter
from orchestrator.core.state import Place, RunState, SlotState
from orchestrator.core.watch import Swarm, missing, roster, silent

__all__ = ["Requests", "Shell", "Spent"]

_log = logging.getLogger("orchestrator.controller")

_SPENDING_PERIOD_S = 5.0


@dataclass(frozen=True)
class Spent:
    """Dollars at the study's scale; None: unknown."""

    spent_usd: Decimal | None
    usd_per_h: Decimal | None


class Requests(Protocol):
    """What is asked of the provider for a slot or the monitor (`launching.RunRequests`)."""

    last_epoch: int  # the epoch after which peers are done
    evaluates: bool

    def peer(self, wish: ev.RequestVm, place: Place) -> LaunchRequest: ...

    def monitor(self, vm: str) -> LaunchRequest: ...

    def nodes(self) -> dict[str, tuple[str, str]]:
        """Address and location of nodes that are no VMs of a slot."""
        ...


class Shell:
    """One run's controller, without Ray. Everything that is not a decision is passed in."""

    def __init__(
        self,
        store: RunStore,
        calls: Calls,
        requests: Requests,
        run_folder: Path,
        *,
        now_s: Callable[[], float],
        jitter: Jitter,
        spent: Callable[[RunStore, float], Spent] | None = None,
    ) -> None:
        """Goes on from the store's journal. Raises JournalError when it has none."""
        events = store.records("events")
        self.state: RunState = replay(events)
        self.finished = bool(events) and self.state.ended and store.meta("status") != "running"
        self._store, self._calls, self._requests, self._folder = store, calls, requests, run_folder
        self._now_s, self._jitter, self._spent = now_s, jitter, spent
        self._seq = events[-1].seq + 1
        self._tail = MonitorTail(store, run_folder / "monitor" / "monitor.jsonl")
        self._vms: dict[str, tuple[str, int, int]] = {}  # by name: slot, generation, place
        for event in events:
            if event.kind == "intent":
                self._remember(event.vm, event.slot, event.generation, json.loads(event.data_json)["place"])
        self._rows: dict[str, VmRecord] = {r.vm: r for r in store.records("vms")}
        self._seen: tuple[Observed, ...] = ()
        self._roster = b""
        self._spending_at_s = 0.0
        self._stop_wanted: tuple[str, str] | None = None

    def stop(self, status: str, cause: str) -> None:
        """End the run at the next tick, gracefully. Safe to call from another thread."""
        self._stop_wanted = self._stop_wanted or (status, cause)

    def tick(self) -> bool:
        """One round. True once the run has ended and nothing is left to do."""
        if self.finished:
            return True
        now_s = self._now_s()
        self._tail.read()
        happened = [event for done in self._calls.poll() for event in self._events_of(done, now_s)]
        happened += silent(self.state, Swarm(self._tail.swarm_at_s, self._tail.last_seen_s), now_s)
        happened += self._run_events(now_s)
        instructions: list[ev.Instruction] = []
        facts: list[ev.Fact] = []
        state = self.state
        for event in (*happened, ev.Tick(now_s)):
            done = step(state, event, self._jitter)
            state = done.state
            facts += done.facts
            instructions += done.instructions
        self._write_down(facts, now_s)  # on the disk before anything is done
        if state.monitors_lost > self.state.monitors_lost:
            died = f"the monitor died ({state.monitor_cause}) and was started again"
            self._store.set_meta("warnings", [*self._store.meta("warnings", []), died])
        self.state = state
        self._write_vms(now_s)
        self._write_roster()
        for instruction in instructions:
            self._act(instruction)
        if not self.finished:
            self._calls.submit(Call("observe", "observe", deadline_s=30.0))
        return self.finished

    # What happened

    def _events_of(self, done: Done, now_s: float) -> list[ev.Event]:
        method, _, vm = done.call.key.partition(" ")
        if method == "observe":
            if done.error is not None:
                _log.warning("the provider cannot be observed: %s", done.error)
                if refusal_of(done.error) not in ("invalid", "credentials"):
                    return []
                # It will never answer again: the run is over, and what it held is nowhere to be seen.
                self._seen = ()
                stop = ev.StopWanted(now_s, "failed", str(done.error))
                return [stop, *missing(self.state, (), now_s)]
            self._seen = tuple(done.result)
            said: list[ev.Event] = [_observed(o, now_s) for o in self._seen]
            seen = [e for e in said if isinstance(e, ev.Observed)]
            return [*said, *missing(self.state, seen, now_s)]
        if method == "request":
            if done.error is None:
                return [ev.Requested(now_s, vm)]
            _log.warning("%s was refused: %s", vm, done.error)
            return [ev.OfferRefused(now_s, vm, refusal_of(done.error), str(done.error))]
        if done.error is not None:  # a later tick asks again
            _log.warning("%s %s: %s", method, vm, done.error)
        return []

    def _run_events(self, now_s: float) -> list[ev.Event]:
        found: list[ev.Event] = []
        if self._stop_wanted is not None:
            found.append(ev.StopWanted(now_s, *self._stop_wanted))
        guarded = self.state.spec.budget_usd is not None and not self.state.stop_status
        if self._spent is not None and guarded and now_s - self._spending_at_s >= _SPENDING_PERIOD_S:
            self._spending_at_s = now_s
            spent = self._spent(self._store, now_s)
            found.append(ev.Spending(now_s, spent.spent_usd, spent.usd_per_h))
        if self.state.finishing_s is not None and not self.state.stop_status and self._all_read():
            found.append(ev.RunComplete(now_s))
        return found

    def _all_read(self) -> bool:
        """Whether the store has every finished peer's last epoch, and its evaluation where there is one."""
        last = self._requests.last_epoch
        peers = {s.vm for s in self.state.slots if s.state is SlotState.DONE and s.vm}
        read = {e.vm for e in self._store.records("epochs") if e.epoch >= last}
        evaluated = any(e.get("epoch", 0) >= last for e in self._store.meta("evaluations", []))
        return peers <= read and (evaluated or not self._requests.evaluates)

    # What is written down

    def _write_down(self, facts: list[ev.Fact], now_s: float) -> None:
        rows: list[EventRecord] = []
        for fact in facts:
            rows.append(
                EventRecord(
                    seq=self._seq + len(rows), at_s=now_s, kind=fact.kind, slot=fact.slot,
                    generation=fact.generation, vm=fact.vm, from_state=fact.from_state,
                    to_state=fact.to_state, cause=fact.cause, data_json=fact.data_json,
                )
            )  # fmt: skip
            if fact.kind == "intent":
                self._remember(fact.vm, fact.slot, fact.generation, json.loads(fact.data_json)["place"])
            _log.info("%s %s %s -> %s: %s", fact.kind, fact.vm, fact.from_state, fact.to_state, fact.cause)
        self._store.append("events", rows)
        self._seq += len(rows)

    def _remember(self, vm: str, slot: str, generation: int, place: int) -> None:
        self._vms[vm] = (slot, generation, place)

    def _write_vms(self, now_s: float) -> None:
        """Rows of the VMs the provider has said anything of; one no longer listed has ended."""
        listed = {o.vm: o for o in self._seen if o.vm in self._vms}
        held = {vm for s in self.state.slots for vm in (s.vm, s.ending) if vm}
        fresh: dict[str, VmRecord] = {}
        for vm, o in listed.items():
            slot, generation, index = self._vms[vm]
            place = self.state.slot_spec(slot).places[index]
            fresh[vm] = VmRecord(
                vm=vm, slot=slot, generation=generation, location=o.location or place.location,
                instance=place.instance, accelerator=place.accelerator, use_spot=place.use_spot,
                usd_per_h=place.usd_per_h, price_source=place.price_source, address=o.address or "",
                requested_s=o.requested_at_s, ready_s=o.ready_at_s, ended_s=o.ended_at_s,
                end_cause=_end_cause(o),
            )  # fmt: skip
        for vm, row in self._rows.items():
            if vm not in listed and row.ended_s is None and vm not in held:
                fresh[vm] = replace(row, ended_s=now_s, end_cause="no longer listed by the provider")
        changed = [row for vm, row in fresh.items() if self._rows.get(vm) != row]
        if changed:
            with self._store.transaction():
                for row in changed:
                    self._store.upsert_vm(row)
                    self._rows[row.vm] = row
                self._write_nodes()

    def _write_nodes(self) -> None:
        addresses = dict(self._store.meta("addresses", {}))
        locations = dict(self._store.meta("locations", {}))
        monitors = self.state.monitor_vms()  # one node of the traffic matrix, whichever lives
        nodes = [(name, *node) for name, node in self._requests.nodes().items()]
        nodes += [(ev.MONITOR if o.vm in monitors else o.vm, o.address or "", o.location) for o in self._seen]
        for name, address, location in nodes:
            if location:
                locations[name] = location
            if address:
                addresses[address] = name
        self._store.set_meta("addresses", addresses)
        self._store.set_meta("locations", locations)

    def _write_roster(self) -> None:
        entries = roster(
            self.state, [(vm, slot, generation) for vm, (slot, generation, _) in self._vms.items()]
        )
        peers = [
            {
                "vm": e.vm,
                "slot": e.slot,
                "generation": e.generation,
                "record_public_key": vm_keys(self._folder, e.vm).record_public,
                "maddr": e.maddr,
            }
            for e in entries
        ]
        content = json.dumps({"peers": peers}).encode()
        if content == self._roster:
            return
        path = self._folder / "monitor" / "roster.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        fresh = path.with_suffix(".new")
        fresh.write_bytes(content)
        os.replace(fresh, path)
        self._roster = content

    # What is done

    def _act(self, instruction: ev.Instruction) -> None:
        match instruction:
            case ev.RequestVm(vm=vm, slot=slot, place=place):
                if not self._calls.busy(f"request {vm}"):
                    request = self._requests.peer(instruction, self.state.slot_spec(slot).places[place])
                    self._calls.submit(Call(f"request {vm}", "request", (request,), 120.0))
            case ev.StartMonitor(vm=vm):
                if not self._calls.busy(f"request {vm}"):
                    self._calls.submit(Call(f"request {vm}", "request", (self._requests.monitor(vm),), 120.0))
            case ev.TerminateVm(vm=vm):
                self._calls.submit(Call(f"terminate {vm}", "terminate", (vm,), 60.0))
            case ev.EndRun(status=status, cause=cause):
                # A request still under way could make a VM after the end: its answer comes first.
                if not self._calls.busy("request"):
                    self._tail.read()
                    self._write_vms(self._now_s())
                    close_run(
                        self._store,
                        self._calls,
                        self._folder,
                        list(self._rows.values()),
                        self._now_s(),
                        status,
                        cause,
                    )
                    self.finished = True


def _observed(o: Observed, now_s: float) -> ev.Event:
    status = o.status
    own = str(status.get("error") or "")  # why the program failed: more than "it ended with exit code 1"
    failed = status.get("phase") == "failed"
    return ev.Observed(
        now_s=now_s,
        vm=o.vm,
        state=o.state,
        phase=str(status.get("phase") or ""),
        maddr=str(status.get("maddr") or ""),
        address=o.address or "",
        cause=own if failed and own else o.cause or own,
        hopeless=failed and bool(status.get("hopeless")),
        ended=o.ended_at_s is not None,
    )


def _end_cause(o: Observed) -> str:
    if o.state == "failed":
        return f"failed: {o.cause or o.status.get('error') or 'no cause given'}"
    return o.state if o.state in ("preempted", "terminated") else ""
