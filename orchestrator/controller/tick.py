"""The imperative shell around the core: observe, decide, journal, act, once per tick."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from pathlib import Path
from typing import Protocol

from cloud.provider import LaunchRequest, LostError, Observed
from cloud.vm_report import parse_notice, printable
from metrics.store.database import RunStore
from orchestrator.controller.bad_samples import BadSamples
from orchestrator.controller.calls import Call, Calls, Done, refusal_of
from orchestrator.controller.checkpoints import checkpoint_events
from orchestrator.controller.coverage import Coverage
from orchestrator.controller.data_positions import DataPositions
from orchestrator.controller.finish import close_provider, close_run
from orchestrator.controller.goals import trained
from orchestrator.controller.input_sums import InputSums
from orchestrator.controller.joins import Joins
from orchestrator.controller.json_log import about
from orchestrator.controller.monitor_log import MonitorTail, Source
from orchestrator.controller.peer_warnings import PeerWarnings
from orchestrator.controller.records import Rows
from orchestrator.controller.roster_file import RosterFile
from orchestrator.controller.utilisation import Utilisation
from orchestrator.core import events as ev
from orchestrator.core.finished import finished, lost_vms
from orchestrator.core.indexed_state import any_waiting, held_vms
from orchestrator.core.journal import replay
from orchestrator.core.machine import Step, advance
from orchestrator.core.observations import (
    Swarm,
    Unlisted,
    changed_observations,
    corroborated,
    missing,
    silent,
)
from orchestrator.core.policy import Jitter
from orchestrator.core.state import Place, RunState, Slot, SlotState
from orchestrator.launch.own_paths import OwnPaths

_log = logging.getLogger("orchestrator.controller")

_SPENDING_PERIOD_S = 5.0
# Maximum time the run's clock loses if the machine reboots with its clock set back.
_CLOCK_PERIOD_S = 30.0
_GONE_AFTER_LEASE_S = (
    420.0  # after lease and this, every VM without orders has ended itself (docs/promises.md)
)
_WHOLE_EACH = 30  # after this many lists, unchanged observations are passed to the core as well


@dataclass(frozen=True)
class Spent:
    """Dollars at full scale: so far, per hour for VMs, per hour for traffic; None: unknown."""

    spent_usd: Decimal | None
    usd_per_h: Decimal | None
    egress_usd_per_h: Decimal | None = Decimal(0)


@dataclass(frozen=True)
class Pace:
    """Deadlines and period of provider calls, in seconds."""

    request_deadline_s: float = 120.0
    observe_deadline_s: float = 30.0
    observe_period_s: float = 0.0  # 0: at every tick, once the last list has arrived
    terminate_deadline_s: float = 60.0


@dataclass(frozen=True, slots=True)
class _Reading:
    """One VM of a provider list."""

    raw: Observed | None  # as the provider gave it; None: the event depends on the time as well
    seen: Observed  # the same, with the user's own paths
    event: ev.Observed


class Requests(Protocol):
    """Launch requests for slots and the monitor (see `peer_request.RunRequests`)."""

    last_epoch: int  # the epoch after which peers are done
    evaluates: bool  # held-out data, after the last epoch
    checkpoints: bool  # whether the peers store checkpoints
    most_checkpoint_bytes: int  # reports of larger ones are wrong

    def peer(self, request: ev.RequestVm, place: Place) -> LaunchRequest: ...

    def monitor(self, vm: str) -> LaunchRequest: ...

    def nodes(self) -> dict[str, tuple[str, str]]:
        """Address and location of nodes that are not VMs of a slot."""
        ...


class Roster(Protocol):
    """Publishes the VMs to the monitor and the peers (see `roster_file.RosterFile`)."""

    def public_key(self) -> str: ...

    def write(self, state: RunState, vms: Iterable[tuple[str, str, int]], now_s: float) -> None: ...


class Shell:
    """The controller of one run, without Ray. Clock, calls, requests and files are passed in."""

    def __init__(
        self,
        store: RunStore,
        calls: Calls,
        requests: Requests,
        run_folder: Path,
        *,
        now_s: Callable[[], float],
        jitter: Jitter,
        spent: Callable[[RunStore, float, RunState], Spent] | None = None,
        pace: Pace = Pace(),
        log: Source | None = None,
        roster: Roster | None = None,
        own_paths: OwnPaths = OwnPaths({}, ""),
    ) -> None:
        """Continue from the store's journal. Raises JournalError if there is none.

        `own_paths`: puts the user's files into what VMs report in place of their copies.
        `log`, `roster`: replacements for the monitor's log and the roster files, used by simulations.
        """
        events = store.records("events")
        self.state: RunState = _mark_unanswered(replay(events))
        self.finished = bool(events) and self.state.ended and store.meta("status") != "running"
        self._store, self._calls, self._requests, self._folder = store, calls, requests, run_folder
        self._now_s, self._jitter, self._spent, self._pace = now_s, jitter, spent, pace
        self._tail = MonitorTail(store, run_folder / "monitor" / "monitor.jsonl", log)
        self._rows = Rows(store, events, requests)
        self._joins, self._bad_samples = Joins(store), BadSamples(store)
        self._peer_warnings = PeerWarnings(store)
        self._data_positions = DataPositions(store)
        self._utilisation, self._coverage = Utilisation(store), Coverage(store)
        self._input_sums = InputSums(store)
        self._roster: Roster = roster or RosterFile(run_folder)
        self._own_paths = own_paths
        if not self.state.ended:
            store.set_meta("run_public_key", self._roster.public_key())
        self._seen: tuple[Observed, ...] | None = None  # the last list; None: none read yet
        self._readings: dict[str, _Reading] = {}  # of the same, by VM
        self._last_observed: dict[str, ev.Observed] = {}
        self._unlisted: dict[str, Unlisted] = {}
        self._lists = 0
        self._unrecoverable: frozenset[str] = (
            frozenset()
        )  # VMs that reported that any other VM would fail in the same way
        self._observed_at_s = self._spending_at_s = self._clock_at_s = float("-inf")
        self._goals_checked_at = -1  # `epochs_read` of the log when goals were last checked
        self._trained_last: set[str] = set()  # VMs whose record of the last epoch is in the store
        self._trained_last_at = (-1, 0)  # `epochs_read` of the log and the last epoch when that was read
        self._stop_wanted: tuple[str, str] | None = None
        self._unread_since_s: float | None = None  # since when no list could be read
        self._stopping_since_s: float | None = None

    def stop(self, status: str, cause: str) -> None:
        """Stop the run gracefully at the next tick. Thread-safe."""
        self._stop_wanted = self._stop_wanted or (status, cause)

    def tick(self) -> bool:
        """Do one round. Returns True once the run has ended and nothing is left to do."""
        if self.finished:
            return True
        now_s = self._now_s()
        if now_s - self._clock_at_s >= _CLOCK_PERIOD_S:  # a quiet run may journal nothing for hours
            self._rows.write_clock(now_s)
            self._clock_at_s = now_s
        self._tail.read(now_s)
        happened = [event for done in self._calls.poll() for event in self._events_of(done, now_s)]
        tail = self._tail
        swarm = Swarm(tail.swarm_at_s, tail.last_seen_s, tail.swarm_since_s)
        happened += silent(self.state, swarm, now_s)
        happened += self._run_events(now_s)
        happened += self._close_unlisted(now_s)
        step = self._advance([*self._finished(happened, now_s), *happened], now_s)
        self._rows.journal(step.facts, now_s)  # on the disk before any instruction is executed
        if step.state.monitors_lost > self.state.monitors_lost:
            died = f"the monitor died ({step.state.monitor_cause}) and was started again"
            with self._store.transaction():  # another thread writes the warnings of trackers
                self._store.set_meta("warnings", [*self._store.meta("warnings", []), died])
        self.state = step.state
        self._write_last_epoch()
        self._rows.write_vms(self.state, self._seen, now_s)
        self._roster.write(self.state, self._rows.requested(), now_s)
        for instruction in step.instructions:
            self._act(instruction)
        if not self.finished and now_s - self._observed_at_s >= self._pace.observe_period_s:
            self._observe(now_s)
        return self.finished

    def _advance(self, happened: Sequence[ev.Event], now_s: float) -> Step:
        """Advance the core.

        An event that makes it raise is logged and skipped, so that other VMs are not affected. Raises what
        the core raises without any event.
        """
        try:
            return advance(self.state, happened, now_s, self._jitter)
        except Exception:  # noqa: BLE001 - raised again below when no event is the cause
            _log.exception("an event cannot be processed; searching for it")
        kept: list[ev.Event] = []
        for event in happened:
            try:
                advance(self.state, [*kept, event], now_s, self._jitter)
                kept.append(event)
            except Exception:  # noqa: BLE001 - logged, and the other events are processed
                _log.exception("event skipped: %r", event, extra=about(vm=getattr(event, "vm", "")))
        return advance(self.state, kept, now_s, self._jitter)

    # Events

    def _events_of(self, done: Done, now_s: float) -> list[ev.Event]:
        method, _, vm = done.call.key.partition(" ")
        if method == "observe":
            if done.error is not None:
                _log.warning("the provider cannot be observed: %s", done.error)
                if not isinstance(done.error, LostError):
                    return self._list_failed(printable(str(done.error)), now_s)
                # The provider is permanently gone: the run is over, and its VMs are no longer listed.
                return [ev.StopWanted(now_s, "failed", printable(str(done.error))), *self._listed((), now_s)]
            self._unread_since_s = None
            return self._listed(done.result, now_s)
        if method == "request":
            if done.error is None:
                return [ev.Requested(now_s, vm)]
            why = printable(str(done.error))
            _log.warning("%s was refused: %s", vm, why, extra=about(vm=vm, cause=why))
            return [ev.OfferRefused(now_s, vm, refusal_of(done.error), why)]
        if done.error is not None:  # a later tick retries
            _log.warning("%s %s: %s", method, vm, done.error, extra=about(vm=vm, cause=done.error))
        return []

    def _list_failed(self, error: str, now_s: float) -> list[ev.Event]:
        """Handle a failed list.

        A short failure (e.g. one cloud's expired credentials) must not end peers that still train in
        other clouds; a failure for longer than `_patience_s` stops the run.
        """
        if self._unread_since_s is None:
            self._unread_since_s = now_s
        unread_s = now_s - self._unread_since_s
        if unread_s <= self._patience_s():
            return []
        return [ev.StopWanted(now_s, "failed", f"the VMs could not be listed for {unread_s:.0f} s: {error}")]

    def _close_unlisted(self, now_s: float) -> list[ev.Event]:
        """Close the provider of a stopping run that could not be listed for too long: this proves that all VMs are gone.

        Raises ProviderError if that cannot be proven.
        """
        if not self.state.stop_status or self.state.ended:
            return []
        if self._stopping_since_s is None:
            self._stopping_since_s = now_s
        if self._unread_since_s is None or self._calls.busy("request"):
            return []
        if now_s - max(self._unread_since_s, self._stopping_since_s) <= self._patience_s():
            return []
        close_provider(self._store, self._calls)
        self._seen = ()
        held = [vm for s in self.state.slots for vm in (s.ending, s.vm) if vm]
        return [ev.Missing(now_s, vm) for vm in (*held, self.state.monitor_vm())]

    def _patience_s(self) -> float:
        return self.state.spec.lease_s + _GONE_AFTER_LEASE_S

    def _listed(self, seen: Sequence[Observed], now_s: float) -> list[ev.Event]:
        """Events from one provider list: changed observations and missing VMs."""
        whole = self._lists % _WHOLE_EACH == 0
        before: dict[str, _Reading] = {} if whole else self._readings
        readings = {o.vm: self._reading(o, before.get(o.vm), now_s) for o in seen}
        new = [reading for vm, reading in readings.items() if before.get(vm) is not reading]
        news = [reading.seen for reading in new]
        self._unrecoverable |= {reading.event.vm for reading in new if reading.event.unrecoverable}
        observed = corroborated(self.state, [r.event for r in readings.values()], self._unrecoverable)
        fresh = changed_observations(self.state, observed, self._last_observed, whole)
        unlisted = held_vms(self.state) - readings.keys()
        in_progress = {vm for vm in unlisted if self._calls.busy(f"request {vm}")}
        lost, self._unlisted = missing(self.state, readings.keys(), now_s, self._unlisted, in_progress)
        self._readings, self._seen = readings, tuple([reading.seen for reading in readings.values()])
        self._last_observed = {event.vm: event for event in observed}
        self._lists += 1
        self._joins.write(news)
        self._bad_samples.write(news)
        monitors = self.state.monitor_vms()
        self._peer_warnings.write(o for o in news if o.vm not in monitors)
        self._data_positions.write(news, self.state.slots)
        self._utilisation.write(news)
        self._coverage.write(news)
        self._input_sums.write(news)
        # Before the VMs' ends: what all peers took with them depends on the newest checkpoint.
        stored = checkpoint_events(
            news, self.state, self._requests.last_epoch, now_s, self._requests.most_checkpoint_bytes
        )
        fresh = [event if event.now_s == now_s else replace(event, now_s=now_s) for event in fresh]
        return [*stored, *fresh, *lost]

    def _reading(self, o: Observed, before: _Reading | None, now_s: float) -> _Reading:
        """Read what a VM reports; return the last list's reading of it if nothing has changed."""
        if before is not None and (before.raw is o or before.raw == o):
            return before
        seen, paths = o, self._own_paths
        if paths:
            seen = replace(o, cause=paths.in_text(o.cause), status=paths.in_values(o.status))
        # Whether a program's notice is plausible depends on the time.
        return _Reading(None if "notice_at_s" in o.status else o, seen, _observed(seen, now_s))

    def _run_events(self, now_s: float) -> list[ev.Event]:
        found: list[ev.Event] = []
        if self._stop_wanted is not None:
            found.append(ev.StopWanted(now_s, *self._stop_wanted))
        spec = self.state.spec
        guarded = spec.budget_usd is not None or spec.max_usd_per_h is not None
        due = now_s - self._spending_at_s >= _SPENDING_PERIOD_S
        if self._spent is not None and guarded and due and not self.state.stop_status:
            self._spending_at_s = now_s
            spent = self._spent(self._store, now_s, self.state)
            found.append(ev.Spending(now_s, spent.spent_usd, spent.usd_per_h, spent.egress_usd_per_h))
        found += self._goals(now_s)
        if self.state.finishing_s is not None and not self.state.stop_status and self._all_read():
            found.append(ev.RunComplete(now_s))
        return found

    def _goals(self, now_s: float) -> list[ev.Event]:
        """What was trained, after each new epoch or evaluation of a run that a goal may end before its last epoch."""
        goals, read = self.state.spec.until, self._tail.epochs_read
        over = (
            self.state.last_epoch is not None or self.state.stop_status or self.state.finishing_s is not None
        )
        if goals is None or over or read == self._goals_checked_at:
            return []
        self._goals_checked_at = read
        usd = None
        if goals.usd is not None and self._spent is not None:
            usd = self._spent(self._store, now_s, self.state).spent_usd
        at = trained(self._store, goals, now_s, usd, self._requests.last_epoch)
        return [at] if at is not None and at.epoch < self._requests.last_epoch else []

    def _finished(self, happened: Sequence[ev.Event], now_s: float) -> list[ev.Event]:
        """Peers that were lost after the last epoch, before they could report that they are done."""
        lost = lost_vms(happened)
        if not lost and not any_waiting(self.state):
            return []
        last = self._last_epoch()
        if (self._tail.epochs_read, last) != self._trained_last_at:
            self._trained_last_at = (self._tail.epochs_read, last)
            self._trained_last = {e.vm for e in self._store.records("epochs") if e.epoch >= last}
        if not self._trained_last:
            return []
        noted = (event.epoch or 0 for event in happened if isinstance(event, ev.Checkpoint))
        stored = max((self.state.checkpoint_epoch, *noted)) >= last
        complete = self._evaluated(last) and (stored or not self._requests.checkpoints)
        return finished(self.state, lost, self._trained_last, complete, now_s)

    def _last_epoch(self) -> int:
        """The epoch after which the peers are done, as far as it is known."""
        return min(self.state.last_epoch or self._requests.last_epoch, self._requests.last_epoch)

    def _evaluated(self, last: int) -> bool:
        """Whether the store has an evaluation of the last epoch, or the run makes none."""
        if not self._requests.evaluates:
            return True
        return any(e.get("epoch", 0) >= last for e in self._store.meta("evaluations", []))

    def _write_last_epoch(self) -> None:
        """Store which goal ended the run before the planned epochs and after which one, unless it is stored already."""
        last = self.state.last_epoch
        early = last is not None and last < self._requests.last_epoch
        if early and self._store.meta("last_epoch") is None:
            with self._store.transaction():
                self._store.set_meta("last_epoch", last)
                self._store.set_meta("ended_by", self.state.ended_by)

    def _all_read(self) -> bool:
        """Whether the store has the last epoch of every finished peer, and its evaluation if the run evaluates."""
        last = self._last_epoch()
        done = [s for s in self.state.slots if s.state is SlotState.DONE]
        peers = {s.ending or s.vm for s in done if s.ending or s.vm}  # `ending`: done before its preemption
        read = {e.vm for e in self._store.records("epochs") if e.epoch >= last}
        return peers <= read and self._evaluated(last)

    # Instructions

    def _act(self, instruction: ev.Instruction) -> None:
        match instruction:
            case ev.RequestVm(vm=vm, slot=slot, place=place):
                if not self._calls.busy(f"request {vm}"):
                    chosen = self._rows.place(self.state, slot, place)
                    self._request(self._requests.peer(instruction, chosen))
            case ev.StartMonitor(vm=vm):
                if not self._calls.busy(f"request {vm}"):
                    self._request(self._requests.monitor(vm))
            case ev.TerminateVm(vm=vm):
                self._calls.drop(f"request {vm}")  # a queued request is never sent
                self._calls.submit(
                    Call(f"terminate {vm}", "terminate", (vm,), self._pace.terminate_deadline_s)
                )
            case ev.EndRun(status=status, cause=cause):
                # A request in progress could still create a VM, so wait for its answer.
                if not self._calls.busy("request"):
                    now_s = self._now_s()
                    self._tail.read(now_s)
                    self._rows.write_vms(self.state, self._seen, now_s)
                    close_run(self._store, self._calls, self._folder, self._rows.vms, now_s, status, cause)
                    self.finished = True

    def _observe(self, now_s: float) -> None:
        if self._calls.submit(Call("observe", "observe", deadline_s=self._pace.observe_deadline_s)):
            self._observed_at_s = now_s

    def _request(self, request: LaunchRequest) -> None:
        deadline_s = self._pace.request_deadline_s
        self._calls.submit(Call(f"request {request.vm}", "request", (request,), deadline_s))


def _mark_unanswered(state: RunState) -> RunState:
    """Mark unanswered requests of an earlier controller as ambiguous: their VMs may exist and be billed."""

    def mark(slot: Slot) -> Slot:
        unanswered = slot.state is SlotState.PROVISIONING and not slot.confirmed
        return replace(slot, ambiguous=True) if unanswered else slot

    return replace(state, slots=tuple(mark(slot) for slot in state.slots))


def _observed(o: Observed, now_s: float) -> ev.Observed:
    status = o.status
    own = printable(str(status.get("error") or ""))  # more specific than "it ended with exit code 1"
    failed = status.get("phase") == "failed"
    noticed_s = parse_notice(status.get("notice_at_s"), now_s) if o.notice_at_s is None else o.notice_at_s
    return ev.Observed(
        now_s=now_s,
        vm=o.vm,
        state=o.state,
        phase=str(status.get("phase") or ""),
        maddr=str(status.get("maddr") or ""),
        address=o.address or "",
        cause=own if failed and own else printable(o.cause) or own,
        unrecoverable=failed and status.get("hopeless") is True,
        ended=o.ended_at_s is not None,
        notice_at_s=noticed_s,
    )
