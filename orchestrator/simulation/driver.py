"""Run a scenario: the events of the cloud and the rounds of the controller, in order of a virtual clock."""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from pathlib import Path
from typing import Any

from cloud.local.host import faults
from cloud.provider import is_monitor
from cloud.sim import Faults, SimCloud, SimVm, SimWorld, VirtualClock
from metrics.records import EventRecord
from orchestrator.controller.spending import spent_of
from orchestrator.core.journal import replay
from orchestrator.simulation.checks import Checks, SimulationError
from orchestrator.simulation.controller import (
    OWNER,
    Crashed,
    CrashPoint,
    Escaped,
    SimController,
    SimMonitor,
    launched,
    stops,
)
from orchestrator.simulation.disk import SimDisk
from orchestrator.simulation.peers import Peers
from orchestrator.simulation.scenario import AUTODOWN_S, BEGAN_S, FaultClass, Scenario

_RECEIVE_S = 3.0  # a tick requests a listing and another one, this much later, receives it
_NOTICED_S = (
    5.0  # with sparse ticks: from a change of a VM to the tick that requests the listing which shows it
)
_OF_A_LEASE = 0.75  # with sparse ticks: the most between two of them, so that leases are renewed in time
_BOOKS_S = 300.0  # period of comparing the controller's costs with the provider's bill
_SPARSE_BOOKS_S = 86400.0  # the same with sparse ticks: it takes time proportional to all VMs so far
_LISTING_S = 60.0  # between the listings that verify that nothing is left
_NEVER = 10**9  # the last epoch of peers that train until they are stopped
_END_WITHIN_S = 6 * 3600.0  # the controller must end the run this soon after the stop and the last fault


@dataclass(frozen=True)
class Outcome:
    """The result of a simulation."""

    seed: int
    status: str  # done, stopped, budget, failed, no_capacity; "lost": its controller never came back
    cause: str
    simulated_s: float
    dead_after_s: float  # from the stop (or the controller's loss) to the last VM's end
    vms: int
    vm_hours: float
    spent_usd: Decimal
    budget_usd: Decimal | None
    preemptions: int
    replacements: int
    refusals: int
    epochs: int  # without those that were lost with all peers
    samples: float
    lost_epochs: int  # with all peers, and trained again or never
    training_share: float  # of the VM hours
    restarts: int  # of the controller
    writes: int  # journal transactions
    rounds: int
    fired: dict[FaultClass, int]  # number of faults per class
    median_joining_s: float | None  # from request to training
    fault_free_checks: int  # progress checks of slots without a fault
    trained_s: float  # sum over all peers, until the run was stopped
    below_min_peers_s: float  # with fewer than min_peers training, until the run was stopped
    lost_samples: float  # with all peers, those of unfinished epochs included
    journal: tuple[EventRecord, ...]


def simulate(scenario: Scenario, *, check: bool = True, write_late: bool = False) -> Outcome:
    """Run a scenario to its end. Raises SimulationError if an invariant is violated.

    `check`: also check the core's own invariants and the bill, which takes time proportional to the slots.
    `write_late`: use a controller that acts before it writes, to test that the checks fail.
    """
    return Simulation(scenario, check=check, write_late=write_late).run()


class Simulation:
    """A scenario in progress."""

    def __init__(self, scenario: Scenario, *, check: bool = True, write_late: bool = False) -> None:
        self._scenario, self._check, self._write_late = scenario, check, write_late
        self._clock = VirtualClock(BEGAN_S)
        self._world = SimWorld(scenario.places, seed=scenario.seed, autodown_s=AUTODOWN_S, began_s=BEGAN_S)
        self._world.schedule(scenario.trace)
        self._world.on_change = self._changed
        self._faults = Faults(scenario.windows, scenario.seed)
        self._peers = Peers(self._world, scenario.peers, scenario.seed)
        run = Path(scenario.spec.run_id)
        self._cloud = SimCloud(run, self._world, self._clock, self._faults, scenario.seed)
        self._store = launched(scenario.spec, BEGAN_S)
        self._store.before_commit = self._committing
        self._store.after_commit = self._committed
        self._last_epoch = scenario.peers.max_epochs or _NEVER
        self._monitor = SimMonitor(self._world, self._peers, scenario.spec.run_id, self._last_epoch)
        self._checks = Checks(scenario, self._world, self._store, self._cloud.denied)
        self._disk = SimDisk(self._faults, lambda: self._world.now_s, self._filled)
        self._store.refuse = self._disk.use_database
        self._wall_s = 0.0  # error of the machine's clock
        self._controller: SimController | None = None
        self._returns_s = math.inf
        self._whole_s = BEGAN_S  # the last round without a disk fault or a crash
        self._starts = self._rounds = 0
        self._crashes = list(scenario.crashes)
        self._crash_at_stop = scenario.crash_at_stop
        self._stops = False  # the controller decided to stop, whether or not it survived to write that down
        self._counts: Counter[str] = Counter()
        self._struck = 0
        self._created = self._ended = self._preempted = 0
        self._slots_created: set[str] = set()
        self._crash: CrashPoint | None = None  # where to crash in this tick, if it writes
        self._books_s = BEGAN_S
        self._books_period_s = _SPARSE_BOOKS_S if scenario.sparse else _BOOKS_S
        self._over_s: float | None = None  # when the run was stopped or its controller was lost
        self._at_stop_s = (0.0, 0.0)  # by then: training of all peers, time below min_peers
        self._last_death_s = BEGAN_S
        self._lost = False
        self._failure = ""  # why the controller gave up
        self._planned = False  # whether the planned preemptions are scheduled
        self._peers.on_training = self._training_began
        for cut in scenario.cuts:
            self._world.at(BEGAN_S + cut.at_s, self._cut, cut.for_s)
        for at_s in scenario.monitor_deaths:
            self._world.at(BEGAN_S + at_s, self._monitor_dies, "its program ended with exit code -9")
        for clock in scenario.clocks_set:
            self._world.at(BEGAN_S + clock.at_s, self._peers.set_clock, clock.by_s)

    def run(self) -> Outcome:
        """Run to the end of the last VM."""
        log = logging.getLogger("orchestrator.controller")
        level = log.level
        log.setLevel(logging.CRITICAL)  # faults cause tens of thousands of warnings
        try:
            return self._run()
        finally:
            log.setLevel(level)

    def _run(self) -> Outcome:
        scenario, world = self._scenario, self._world
        ends_s = BEGAN_S + scenario.duration_s
        self._start()
        tick_s = BEGAN_S
        receives = False  # the next tick only receives what the last one requested
        while True:
            rounds_s = tick_s if self._controller else self._returns_s
            now_s = min(rounds_s, world.next_s())
            if self._over_s is not None and world.now_s < self._over_s + scenario.death_bound_s + 1.0:
                now_s = min(
                    now_s, self._over_s + scenario.death_bound_s + 1.0
                )  # to check for VMs that are still running
            if not math.isfinite(now_s):
                break
            self._clock.advance_to(now_s)
            world.advance_to(now_s)
            now_s = world.now_s
            self._checks.money()
            if self._over_s is not None:
                self._checks.dead(self._over_s)
                if self._lost and not world.alive_count:
                    break
            if now_s < rounds_s:
                if scenario.sparse and self._controller is not None and world.has_news(scenario.spec.run_id):
                    tick_s = min(tick_s, now_s + _NOTICED_S)
                continue
            if self._controller is None:
                self._start()
            controller = self._controller
            assert controller is not None
            if now_s >= ends_s:
                controller.stop("stopped", "the simulated time is over")
            self._round(controller)
            now_s = world.now_s
            if self._controller is not None:
                if controller.ended:
                    self._failure = controller.failure
                    break
                period_s = scenario.busy_tick_s if controller.busy else scenario.tick_s
                receives = not receives
                if controller.retry_s:
                    tick_s = now_s + controller.retry_s
                elif scenario.sparse:
                    tick_s = self._sparse_tick_s(controller, now_s, ends_s)
                else:
                    tick_s = now_s + (_RECEIVE_S if receives else period_s - _RECEIVE_S)
            else:
                receives = False
            if self._over_s is not None and now_s - max(self._over_s, self._calm_s()) > _END_WITHIN_S:
                self._checks.fail("the controller does not end the run")
        self._prove_nothing_left()
        return self._outcome()

    def _sparse_tick_s(self, controller: SimController, now_s: float, ends_s: float) -> float:
        """The next time at which a tick has something to do."""
        scenario = self._scenario
        at_s = min(now_s + _OF_A_LEASE * scenario.spec.lease_s, controller.due_s(now_s, scenario.busy_tick_s))
        if self._world.has_news(scenario.spec.run_id):
            at_s = min(at_s, now_s + _NOTICED_S)
        return min(at_s, ends_s) if now_s < ends_s else at_s

    # the controller

    def _start(self) -> None:
        now_s = self._world.now_s
        self._controller = SimController(
            self._store, self._cloud, self._world, self._clock, self._peers, self._monitor, self._disk,
            spec=self._scenario.spec, last_epoch=self._last_epoch, seed=f"{self._scenario.seed} {self._starts}",
            wall_s=now_s + self._wall_s, check=self._check, sparse=self._scenario.sparse,
        )  # fmt: skip
        self._controller.calls.called = self._called
        if self._check:
            self._controller.calls.listed = self._checks.listed
        self._starts += 1
        self._returns_s = math.inf
        self._checks.started(self._controller.now_s(), self._whole_s)

    def _round(self, controller: SimController) -> None:
        self._rounds += 1
        self._crash = None
        if self._write_late:
            self._store.held = []
        self._disk.begin()
        try:
            controller.tick()
            if self._write_late:
                self._store.release()
        except Crashed:
            self._kill(self._world.now_s)
        except Escaped as escaped:
            cause = escaped.__cause__
            if isinstance(cause, SimulationError):
                raise cause from None
            self._checks.fail(f"a tick raised {cause!r}")
        finally:
            self._disk.end()
        now_s = self._world.now_s
        if self._controller is not None and not self._disk.has_failed():
            self._whole_s = now_s
        self._counts.update(controller.calls.counts)
        controller.calls.counts.clear()
        over = controller.state.stop_status or controller.ended
        if over and self._over_s is None and self._controller is not None:
            self._over_s = self._last_death_s = now_s
            self._at_stop_s = self._peers.counted_s()
        struck = sum(self._faults.counts.values())
        if struck != self._struck or self._calm_s() > now_s:
            self._struck = struck
            self._checks.disturbed()
        if self._check:
            self._checks.one_vm_a_slot()
            self._checks.one_swarm(self._peers.second)
            self._checks.leases(self._peers.ended_early)
            self._checks.progress(controller.state)
            # A controller that has just restarted needs a listing first.
            if (
                now_s - self._books_s >= self._books_period_s
                and self._controller is not None
                and controller.ticks > 2
            ):
                self._books_s = now_s
                self._checks.books(spent_of(self._store, controller.now_s(), controller.state).spent_usd)

    # where a controller may be killed

    def _committing(self, rows: Sequence[EventRecord]) -> None:
        now_s = self._world.now_s
        self._crash = self._crash_due(now_s)
        if stops(rows) and not self._stops:
            self._stopping()
            if self._crash_at_stop is not None:
                self._crash = self._crash_at_stop.point
                self._crashes.insert(0, self._crash_at_stop)
                self._crash_at_stop = None
        if self._crash == "before_write":
            raise Crashed

    def _committed(self, _: Sequence[EventRecord]) -> None:
        if self._crash == "after_write":
            raise Crashed

    def _called(self) -> None:
        if self._crash == "before_reply":
            raise Crashed

    def _stopping(self) -> None:
        """Activate the faults of the moment at which the controller decides to stop, before any VM is told."""
        if not self._stops:
            self._stops = True
            now_s = self._world.now_s
            for w in self._scenario.at_stop:
                self._faults.add(replace(w, from_s=now_s + w.from_s, until_s=now_s + w.until_s))

    def _crash_due(self, now_s: float) -> CrashPoint | None:
        for crash in self._crashes[:1]:
            if now_s - BEGAN_S >= crash.at_s and self._store.commits >= crash.writes:
                return crash.point
        return None

    def _kill(self, now_s: float) -> None:
        crash = self._crashes.pop(0)
        self._controller = None
        self._wall_s += crash.jump_s
        self._checks.disturbed()
        self._counts["clock_jump"] += bool(crash.jump_s)
        if crash.down_s is None:
            self._counts["controller_lost"] += 1
            self._lost = True
            if self._over_s is None:
                self._over_s = now_s
                self._at_stop_s = self._peers.counted_s()
        else:
            self._counts["crash"] += 1
            self._returns_s = now_s + crash.down_s

    def _calm_s(self) -> float:
        return self._faults.any_until(self._world.now_s)

    # the world

    def _changed(self, change: Any, vm: SimVm, at_s: float) -> None:
        self._peers.changed(change, vm, at_s)
        self._checks.changed(change, vm, at_s)
        if is_monitor(vm.vm):
            return
        planned = self._scenario.planned
        if change == "ready" and faults.belongs(vm.vm, planned.slot):
            lifetime_s = faults.lifetime_s(planned.seed, vm.vm, planned.rate_per_h)
            if lifetime_s is not None:
                lead_s = planned.notice_s or 0.0
                self._world.at(at_s + lifetime_s - lead_s, self._world.take_back, vm, planned.notice_s)
        if change == "created":
            self._created += 1
            self._slots_created.add(vm.labels["orch-slot"])
        elif change == "ended":
            self._ended += 1
            self._last_death_s = at_s
            self._preempted += vm.state == "preempted"

    def _training_began(self, vm: SimVm) -> None:
        """Start the clock of the planned preemptions when the first VM of their slot, or any VM, trains."""
        planned = self._scenario.planned
        if self._planned or not faults.belongs(vm.vm, planned.slot):
            return
        self._planned = True
        for at_s in planned.at_s:
            begins_s = self._world.now_s + at_s - (planned.notice_s or 0.0)
            self._world.at(begins_s, self._preempt_one, at_s)

    def _preempt_one(self, at_s: float) -> None:
        """Preempt the VM that the emulated cloud would choose among those that run."""
        planned = self._scenario.planned
        running = {vm.vm: vm for vm in self._world.alive(self._scenario.spec.run_id) if vm.state == "running"}
        names = [name for name in running if not is_monitor(name) and faults.belongs(name, planned.slot)]
        chosen = faults.victim(planned.seed, at_s, names)
        if chosen:
            self._world.take_back(running[chosen], planned.notice_s)

    def _cut(self, for_s: float) -> None:
        working = self._peers.working()
        if working:
            self._peers.cut(self._world.vms[self._scenario.spec.run_id, working[0]], for_s)
            self._checks.disturbed()

    def _filled(self) -> None:
        """Kill the monitor, which writes to the same disk."""
        self._world.at(self._world.now_s, self._monitor_dies, "[Errno 28] No space left on device")

    def _monitor_dies(self, cause: str) -> None:
        if self._world.monitor_dies(self._scenario.spec.run_id, cause):
            self._counts["monitor_death"] += 1
            self._checks.disturbed()

    # the end

    def _prove_nothing_left(self) -> None:
        """Do what `orch down` does: close, and list until two listings are empty, within the bound."""
        empty = 0
        began_s = self._over_s if self._over_s is not None else self._world.now_s
        while empty < 2:
            self._clock.advance_to(self._world.now_s + _LISTING_S)
            self._world.advance_to(self._clock.now_s)
            if not self._lost:
                self._cloud.begin("close")
                listed = self._cloud.begin("list_ours", OWNER)
                for owned in listed.result or ():
                    self._cloud.begin("release", owned)
                empty = empty + 1 if listed.error is None and not listed.result else 0
            else:
                empty += 1
            self._checks.dead(began_s)
            self._checks.money()
            if self._world.now_s > began_s + _END_WITHIN_S + self._scenario.duration_s:
                self._checks.fail("the listings never became empty")
        if self._created != self._ended:
            self._checks.fail(f"{self._created} VMs were created, {self._ended} ended")

    def _outcome(self) -> Outcome:
        scenario, world = self._scenario, self._world
        self._peers.settle()
        journal = self._store.records("events")
        if self._peers.checkpoints is not None and self._peers.checkpoints.keeps_records:
            self._checks.lost_work(self._peers.checkpoints)
        state = replay(journal)
        spent, _ = world.meter.spent(scenario.spec.run_id, world.now_s)
        hours = world.meter.vm_hours(scenario.spec.run_id, world.now_s)
        joining = sorted(self._peers.joined_after_s)
        fired = self._fired()
        over_s = self._over_s if self._over_s is not None else world.now_s
        return Outcome(
            seed=scenario.seed,
            status="lost" if self._lost else state.stop_status or "failed",
            cause="its controller was killed and never came back"
            if self._lost
            else state.stop_cause or self._failure,
            simulated_s=over_s - BEGAN_S,
            dead_after_s=max(0.0, self._last_death_s - over_s),
            vms=self._created,
            vm_hours=hours,
            spent_usd=spent.quantize(Decimal("0.000001")),
            budget_usd=scenario.spec.budget_usd,
            preemptions=self._preempted,
            replacements=self._created - len(self._slots_created),
            refusals=self._counts["refused_no_capacity"],
            epochs=self._peers.epochs,
            samples=self._peers.samples,
            lost_epochs=sum(one.lost for one in self._peers.checkpoints.losses)
            if self._peers.checkpoints
            else 0,
            training_share=self._peers.working_s / 3600.0 / hours if hours else 0.0,
            restarts=self._starts - 1,
            writes=self._store.commits,
            rounds=self._rounds,
            fired=fired,
            median_joining_s=joining[len(joining) // 2] if joining else None,
            fault_free_checks=self._checks.fault_free_checks,
            trained_s=self._at_stop_s[0],
            below_min_peers_s=self._at_stop_s[1],
            lost_samples=self._peers.lost_samples,
            journal=tuple(journal),
        )

    def _fired(self) -> dict[FaultClass, int]:
        api, market, own = self._faults.counts, self._world.counts, self._counts
        return {
            "preemption": market["preemption"],
            "storm": market["storm"],
            "zone_lost": market["capacity"],
            "drought": market["refused_drought"],
            "price": market["price"] + market["refused_price"],
            "outage": api["outage"],
            "lost_reply": api["lost_reply"] + api["lost_request"],
            "slow_reply": api["slow_reply"],
            "transient": api["transient"],
            "created_but_error": api["created_but_error"] + api["created_but_refused"],
            "hidden": api["hidden"],
            "undead": api["undead"],
            "stale": api["stale"] + api["duplicate"],
            "skew": api["skew"],
            "partial": api["partial"],
            "broken": api["broken"],
            "late": min(api["late_request"], api["late_reply"], api["doubled_reply"]),
            "store": min(api["store_busy"], api["store_io"]),
            "disk_full": api["disk_full"],
            "monitor_death": own["monitor_death"],
            "partition": self._peers.counts["partition"],
            "crash": own["crash"],
            "clock_jump": own["clock_jump"],
            "controller_lost": own["controller_lost"],
            "all_lost": self._peers.counts["all_lost"],
            "vm_clock": self._peers.counts["vm_clock"],
        }
