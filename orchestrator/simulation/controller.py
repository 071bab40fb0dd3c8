"""The controller of a simulated run: the real core, with calls, a journal and a clock that are simulated.

Its tick is the real shell's (`orchestrator.controller.shell`): hear, think, write down, act. It may be killed at
each of these points; what is on the `Disk` is what the next one finds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from decimal import Decimal
from random import Random
from typing import Any, Literal

from cloud import provider
from cloud.provider import AmbiguousError, LaunchRequest, Offer
from cloud.sim import Reply, SimCloud
from metrics.records import EventRecord
from orchestrator.controller.calls import refusal_of
from orchestrator.core import events as ev
from orchestrator.core.invariants import validate_step
from orchestrator.core.journal import created, replay
from orchestrator.core.machine import advance
from orchestrator.core.state import RunSpec, RunState
from orchestrator.core.watch import Swarm, Unlisted, missing, silent
from orchestrator.simulation.ledger import Ledger
from orchestrator.simulation.peers import Peers

OWNER = "simulated-00000000"
CrashPoint = Literal["before_write", "after_write", "before_reply"]

_DEADLINES_S = {"observe": 30.0, "request": 900.0, "terminate": 60.0}
_WHOLE_EACH = 30  # as in the shell: every so many lists, what is unchanged is told to the core as well
_READ_S = 5.0  # all peers done: their last records are read by then


class Crashed(Exception):
    """The controller was killed here."""


@dataclass
class Disk:
    """What outlives a controller: run.db."""

    journal: list[EventRecord]
    ledger: Ledger = field(default_factory=Ledger)
    intents: dict[str, tuple[str, int]] = field(default_factory=dict)  # slot, generation
    writes: int = 0  # transactions so far

    @classmethod
    def launched(cls, spec: RunSpec, at_s: float) -> Disk:
        """Of a run that was just launched."""
        fact = created(spec)
        return cls([EventRecord(0, at_s, fact.kind, "", -1, "", "", "", fact.cause, fact.data_json)])

    def write(self, facts: tuple[ev.Fact, ...], spec: RunSpec, at_s: float) -> None:
        """One transaction."""
        for f in facts:
            row = EventRecord(
                len(self.journal), at_s, f.kind, f.slot, f.generation, f.vm, f.from_state, f.to_state, f.cause,
                f.data_json,
            )  # fmt: skip
            self.journal.append(row)
            if f.kind == "intent":
                self.intents[f.vm] = (f.slot, f.generation)
        self.writes += 1


class SimController:
    """One controller's life, from its start to its death or the run's end."""

    def __init__(
        self,
        disk: Disk,
        cloud: SimCloud,
        peers: Peers,
        *,
        seed: str,
        wall_s: float,
        true_s: float,
        check: bool,
        write_late: bool = False,
    ) -> None:
        """Goes on from the disk. `wall_s`: what the machine's clock says at `true_s`. `check`: the core's
        invariants at each change. `write_late`: a fault of the controller, for the tests: it acts before it writes."""
        self.state: RunState = replay(disk.journal)
        self._disk, self._cloud, self._peers = disk, cloud, peers
        # As `cloud.steady_clock`: the machine's time of now, or the journal's last, and nobody sets it after that.
        self._offset_s = max(wall_s, disk.journal[-1].at_s) - true_s
        self._began_s = true_s + self._offset_s
        self._jitter: Callable[[], float] = Random(f"jitter {seed}").random
        self._check, self._write_late = check, write_late
        self._index = {s.name: i for i, s in enumerate(self.state.slots)}
        self._under_way: dict[str, tuple[float, Reply, str]] = {}  # by key: until, reply, VM
        self._told: dict[str, provider.Observed] = {}  # the last list
        self._unlisted: dict[str, Unlisted] = {}
        self._lists = 0
        self._listed_s = float("-inf")
        self._dying: set[str] = set()  # asked to end, and not seen ended
        self.ended = False
        self.crash_at_stop: CrashPoint | None = None
        self.stopping_s: float | None = None  # when it first thought of stopping
        self.on_stop: Callable[[], None] = lambda: None  # called then, before it acts
        self._stop_wanted: tuple[str, str] | None = None
        self.counts: Counter[str] = Counter()

    def stop(self, status: str, cause: str) -> None:
        """End the run at the next tick."""
        self._stop_wanted = (status, cause)

    def now_s(self, true_s: float) -> float:
        """What its clock says."""
        return true_s + self._offset_s

    @property
    def busy(self) -> bool:
        """Whether something is to be looked after more often than in quiet times."""
        return self._peers.working_count < len(self.state.slots) or bool(self._dying)

    def look(self, true_s: float) -> None:
        """Ask for the list, unless that was asked and not answered yet."""
        self._call("observe", "observe", "", true_s)

    def tick(self, true_s: float, crash: CrashPoint | None = None) -> bool:
        """One round. True when there was something to write down. Raises Crashed at the point wished for, if
        the round comes to it."""
        now_s = self.now_s(true_s)
        happened = self._replies(true_s, now_s)
        watched_s = now_s if self.state.monitor == "up" else 0.0
        swarm = Swarm(watched_s, self._peers.last_seen(now_s), self._began_s)
        happened += silent(self.state, swarm, now_s)
        if self.state.spec.budget_usd is not None and not self.state.stop_status:
            happened.append(ev.Spending(now_s, *self._disk.ledger.spent(now_s)))
        finishing_s = self.state.finishing_s
        if finishing_s is not None and not self.state.stop_status and now_s - finishing_s >= _READ_S:
            happened.append(ev.RunComplete(now_s))
        if self._stop_wanted is not None:
            happened.append(ev.StopWanted(now_s, *self._stop_wanted))
        before = self.state
        done = advance(before, happened, now_s, self._jitter)
        if done.state.stop_status and not before.stop_status:
            self.stopping_s = now_s
            self.on_stop()
            crash = self.crash_at_stop or crash
        if done.facts and self._check:
            validate_step(before, done.state)
        if crash == "before_write" and done.facts:
            raise Crashed
        if self._write_late:
            self._act_all(done.instructions, true_s, crash if done.facts else None)
        if done.facts:
            self._disk.write(done.facts, before.spec, now_s)
            for fact in done.facts:
                if fact.kind == "intent":
                    self._disk.ledger.wished(fact.vm, self._ceiling(done.state, fact), now_s)
        if crash == "after_write" and done.facts:
            raise Crashed
        self.state = done.state
        if not self.state.stop_status:
            self._peers.renew(self.state.paused)
            if self._peers.waiting:
                self._peers.tell(self.state.seed, bool(self.state.maddrs()))
        if not self._write_late:
            self._act_all(done.instructions, true_s, crash if done.facts else None)
        return bool(done.facts)

    # hearing

    def _replies(self, true_s: float, now_s: float) -> list[ev.Event]:
        out: list[ev.Event] = []
        for key, (until_s, reply, vm) in list(self._under_way.items()):
            if reply.at_s > true_s and until_s > true_s:
                continue
            del self._under_way[key]
            method = key.partition(" ")[0]
            late = reply.at_s > until_s
            error = AmbiguousError(f"{method}: no answer in time") if late else reply.error
            if late:
                self.counts["abandoned"] += 1
            if method == "observe" and error is None:
                out += self._listed(reply.result, now_s)
            elif method == "request":
                out.append(self._answered(vm, error, now_s))
        return out

    def _answered(self, vm: str, error: provider.ProviderError | None, now_s: float) -> ev.Event:
        if error is None:
            return ev.Requested(now_s, vm)
        kind = refusal_of(error)
        self.counts[f"refused_{kind}"] += 1
        if kind == "no_capacity":
            self._disk.ledger.refused(vm)
        return ev.OfferRefused(now_s, vm, kind, str(error))

    def _listed(self, seen: list[provider.Observed], now_s: float) -> list[ev.Event]:
        everything = self._lists % _WHOLE_EACH == 0
        self._lists += 1
        before, ledger, before_s = self._told, self._disk.ledger, self._listed_s
        ledger.heard(now_s)
        self._listed_s = now_s
        self._told = {o.vm: o for o in seen}
        out: list[ev.Event] = []
        dying = self._dying
        for o in seen if everything else [o for o in seen if before.get(o.vm) is not o or o.vm in dying]:
            out.append(_event(o, now_s))
            if o.ended_at_s is None:
                ledger.seen(o.vm, o.usd_per_h, now_s, before_s)
            else:
                ledger.ended(o.vm, now_s)
                dying.discard(o.vm)
        if everything:
            self._forget(now_s)
        asked = {vm for key, (_, _, vm) in self._under_way.items() if key.startswith("request ")}
        gone, self._unlisted = missing(self.state, self._told, now_s, self._unlisted, asked)
        return out + gone

    def _forget(self, now_s: float) -> None:
        """What nobody wishes for and the provider does not list is over."""
        held = {vm for s in self.state.slots for vm in (s.vm, s.ending) if vm}
        self._dying &= self._told.keys()
        for vm in self._disk.ledger.open():
            if vm not in self._told and vm not in held:
                self._disk.ledger.absent(vm, now_s)

    # acting

    def _act_all(self, wanted: tuple[ev.Instruction, ...], true_s: float, crash: CrashPoint | None) -> None:
        for instruction in wanted:
            self._act(instruction, true_s)
            if crash == "before_reply":
                raise Crashed

    def _act(self, instruction: ev.Instruction, true_s: float) -> None:
        match instruction:
            case ev.RequestVm(vm=vm, slot=slot, place=place):
                self._call(f"request {vm}", "request", vm, true_s, self._peer(vm, slot, place))
            case ev.StartMonitor(vm=vm):
                offer = self.state.spec.slots[0].places[0]
                self._call(
                    f"request {vm}",
                    "request",
                    vm,
                    true_s,
                    _request(vm, offer.location, offer, self._labels("")),
                )
            case ev.TerminateVm(vm=vm):
                self._dying.add(vm)
                self._call(f"terminate {vm}", "terminate", vm, true_s, vm)
            case ev.EndRun():
                if not any(key.startswith("request") for key in self._under_way):
                    self.ended = True

    def _ceiling(self, state: RunState, fact: ev.Fact) -> Decimal:
        """Of the VM wished for; a price nobody knows counts as nothing here: a budget refuses it anyway."""
        i = self._index[fact.slot]
        return state.spec.slots[i].places[state.slots[i].place].ceiling_usd_per_h or Decimal(0)

    def _peer(self, vm: str, slot: str, place: int) -> LaunchRequest:
        where = self.state.spec.slots[self._index[slot]].places[place]
        return _request(vm, where.location, where, self._labels(slot))

    def _labels(self, slot: str) -> dict[str, str]:
        return {"orch-run": self.state.spec.run_id, "orch-slot": slot, "orch-owner": OWNER}

    def _call(self, key: str, method: str, vm: str, true_s: float, *arguments: Any) -> None:
        if key not in self._under_way:
            reply = self._cloud.begin(method, *arguments)
            self._under_way[key] = (true_s + _DEADLINES_S[method], reply, vm)


def _request(vm: str, location: str, place: Any, labels: dict[str, str]) -> LaunchRequest:
    offer = Offer(
        location, place.instance, place.accelerator, place.use_spot, place.usd_per_h, place.price_source
    )
    ceiling = place.max_usd_per_h if place.max_usd_per_h is not None else place.usd_per_h
    return LaunchRequest(vm, offer, "simulated:peer", {}, labels=labels, max_usd_per_h=ceiling)


def _event(o: provider.Observed, now_s: float) -> ev.Observed:
    phase = str(o.status.get("phase", ""))
    cause = o.cause or str(o.status.get("error", ""))
    return ev.Observed(
        now_s, o.vm, o.state, phase, str(o.status.get("maddr", "")), o.address or "", cause,
        ended=o.ended_at_s is not None, notice_at_s=o.notice_at_s,
    )  # fmt: skip
