"""The controller's invariants, checked at every change of the cloud and every round of the controller."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from itertools import pairwise

from cloud.provider import Observed, is_monitor
from cloud.sim import SimVm, SimWorld
from metrics.epochs.restarts import training
from metrics.events.checkpoints import checkpoints_of
from orchestrator.core.journal import story
from orchestrator.core.state import LIVE, OVER, RunState, SlotState
from orchestrator.simulation.checkpoints import SimCheckpoints
from orchestrator.simulation.scenario import Scenario
from orchestrator.simulation.store import MemoryStore

_LATE_H = Decimal("0.05")
_WRITTEN_S = 30.0  # period of recording the run's clock
_PROGRESS_PERIOD_S = 600.0  # period of the progress check
_DENIED_S = 300.0  # a surplus VM must end within this after it is listed again and no fault is active


class SimulationError(AssertionError):
    """An invariant was violated. The message has the command that reproduces it and the history of the slot."""


@dataclass(slots=True)
class _Slot:
    calm_since_s: float
    judged: int = 0


class Checks:
    """The invariants of one simulation."""

    def __init__(
        self, scenario: Scenario, world: SimWorld, store: MemoryStore, denied: Mapping[str, float]
    ) -> None:
        """`denied`: VMs that the provider wrongly reported as missing, and until when."""
        self._scenario, self._world, self._store, self._denied = scenario, world, store, denied
        spec = scenario.spec
        self._slots = {s.name: _Slot(world.now_s) for s in spec.slots}
        self._created: set[tuple[str, int]] = set()
        self._disturbed_s = world.now_s
        self._progress_checked_s = world.now_s
        backoff_s = max(s.policy.backoff_max_s for s in spec.slots)
        # One unanswered request, one back-off, one open circuit breaker, one boot, one join, and a stale listing.
        self._wait_s = (
            900.0 + 2 * backoff_s + spec.breaker_open_s + spec.boot_deadline_s + spec.join_deadline_s
        )
        if not spec.first_alone:
            self._wait_s += spec.boot_deadline_s  # waiting for the peer to join
        self._wait_s += (
            30 * scenario.tick_s + spec.missing_deadline_s + spec.silent_deadline_s + 4 * scenario.tick_s
        )
        self._lag_s = 0.0  # by which the controller's clock is behind
        self._unseen_usd = Decimal(0)  # upper bound of VM costs during the time missing from its clock
        self._burns: list[tuple[float, Decimal]] = []  # (since when, dollars per hour)
        self._listed_prices: dict[str, set[Decimal]] = {}  # by VM
        self._prices: dict[
            str, list[tuple[float, Decimal]]
        ] = {  # spot prices by location: (since when, price)
            place.location: [(world.now_s, place.spot_usd_per_h)] for place in scenario.places
        }
        for event in sorted(scenario.trace, key=lambda e: e.at_s):
            if event.event == "price":
                for location in [event.location] if event.location != "*" else self._prices:
                    if location in self._prices:
                        self._prices[location].append((world.now_s + event.at_s, event.value))
        self.fault_free_checks = 0  # progress checks of slots without a fault

    def changed(self, change: str, vm: SimVm, at_s: float) -> None:
        """Check the creation or end of a VM."""
        if is_monitor(vm.vm):
            return
        if change == "created":
            if vm.vm not in self._store.intents:
                self.fail(f"{vm.vm} exists but is not in the journal")
            owner = self._store.intents[vm.vm]
            if owner in self._created:
                self.fail(f"slot {owner[0]} has a second VM of generation {owner[1]}", owner[0])
            self._created.add(owner)
        if change == "ended" and vm.vm in self._store.intents:
            self._slots[self._store.intents[vm.vm][0]].calm_since_s = at_s

    def started(self, clock_s: float, since_s: float) -> None:
        """Check a new controller's clock. `since_s`: time of the last complete round of its predecessor.

        If the machine restarts with its clock set back, the run's clock continues from its last recorded value, at most
        `_WRITTEN_S` before `since_s`, and misses the rest of the time. VMs are billed up to the run's clock, so the
        unseen cost is what they cost in that many seconds before now. It is corrected when the provider reports their
        ends, and never grows.
        """
        now_s = self._world.now_s
        missing_s, self._lag_s = now_s - clock_s - self._lag_s, now_s - clock_s
        away_s = now_s - since_s + _WRITTEN_S
        if missing_s > away_s + 1e-3:
            self.fail(
                f"the run's clock is {missing_s:.0f} s behind after {away_s:.0f} s without a controller"
            )
        self._unseen_usd += self._spent_usd(now_s - max(0.0, missing_s), now_s)
        self.disturbed()

    def _spent_usd(self, from_s: float, until_s: float) -> Decimal:
        """What the provider billed in this interval."""
        usd = Decimal(0)
        for (at_s, burn), (next_s, _) in pairwise([*self._burns, (until_s, Decimal(0))]):
            usd += burn * Decimal(repr(max(0.0, next_s - max(at_s, from_s)))) / 3600
        return usd

    def listed(self, seen: Sequence[Observed]) -> None:
        """Record the prices of a listing that the controller received."""
        for o in seen:
            if o.usd_per_h is not None:
                self._listed_prices.setdefault(o.vm, set()).add(o.usd_per_h)

    def _unreported_usd(self) -> Decimal:
        """Cost of VMs at spot prices that rose and fell again between two listings.

        A listing has the current price only, so the controller can know no more than the lowest price listed for the VM.
        """
        usd = Decimal(0)
        for vm in self._world.vms.values():
            listed, prices = self._listed_prices.get(vm.vm), self._prices.get(vm.place.location, [])
            if not listed or not vm.spot or not vm.billed or len(prices) < 2:
                continue
            ends_s = vm.ended_s or self._world.now_s
            for (from_s, price), (until_s, _) in pairwise([*prices, (ends_s, Decimal(0))]):
                for_s = min(until_s, ends_s) - max(from_s, vm.created_s)
                if price not in listed and for_s > 0:
                    usd += max(Decimal(0), price - min(listed)) * Decimal(repr(for_s)) / 3600
        return usd

    def disturbed(self) -> None:
        """Record a fault of the provider or the controller; no progress is expected meanwhile."""
        self._disturbed_s = self._world.now_s

    def money(self) -> None:
        """Check spent <= budget, as billed by the provider.

        The only exception is the cost hidden by a clock that misses time (`started`): the run stops once the known cost
        and the reserve reach the budget, and the known cost is too low by that amount.
        """
        budget = self._scenario.spec.budget_usd
        spent, burn = self._world.meter.spent(self._scenario.spec.run_id, self._world.now_s)
        if not self._burns or self._burns[-1][1] != burn:
            self._burns.append((self._world.now_s, burn))
        if budget is not None and spent > budget + self._unseen_usd:
            self.fail(f"{spent:.4f} USD spent, above the budget of {budget} USD")

    def one_vm_a_slot(self) -> None:
        """Check that each slot has at most one VM without a preemption notice.

        A VM that the provider wrongly reported as missing may exist in addition, until it has been listed for a while
        and no fault delays its end.
        """
        staying: dict[str, int] = {}
        for vm in self._world.alive("sim"):
            if vm.notice_s is not None or is_monitor(vm.vm):
                continue
            denied_s = self._denied.get(vm.vm)
            if denied_s is not None and self._world.now_s - max(denied_s, self._disturbed_s) <= _DENIED_S:
                continue
            slot = self._store.intents[vm.vm][0]
            staying[slot] = staying.get(slot, 0) + 1
            if staying[slot] > 1:
                self.fail(f"slot {slot} has two VMs", slot)

    def one_swarm(self, others: list[str]) -> None:
        """Check that no second swarm was started while VMs of another one existed, except denied ones."""
        known = [vm for vm in others if vm not in self._denied]
        if known:
            self.fail(f"a second swarm was started while {', '.join(known)} existed")

    def leases(self, ended_early: list[str]) -> None:
        """Check that no lease expires while its peer receives the orders of a live controller."""
        if ended_early:
            self.fail(
                f"the lease of {', '.join(ended_early)} expired although its peer was in contact with the controller"
            )

    def progress(self, state: RunState) -> None:
        """Check that a slot trains within a bounded time while its places have capacity and there is no fault."""
        now_s = self._world.now_s
        if now_s - self._progress_checked_s < _PROGRESS_PERIOD_S:
            return
        self._progress_checked_s = now_s
        spec = state.spec
        waits = bool(state.stop_status or state.held_back or state.finishing_s is not None)
        if waits or spec.max_usd_per_h is not None:
            self.disturbed()
        done = any(s.state is SlotState.DONE for s in state.slots)
        for slot_spec, slot in zip(spec.slots, state.slots, strict=True):
            mine = self._slots[slot.name]
            room = all(
                self._world.room(p.location)
                and (
                    p.ceiling_usd_per_h is None or self._world.price(p.location, True) <= p.ceiling_usd_per_h
                )
                for p in slot_spec.places
            )
            if not room or slot.state is SlotState.TRAINING or slot.state in OVER or done:
                mine.calm_since_s = now_s
                continue
            calm_s = now_s - max(mine.calm_since_s, self._disturbed_s)
            self.fault_free_checks += calm_s > 0
            if calm_s > self._wait_s:
                where = "has a VM that does not train" if slot.state in LIVE else "has no VM"
                self.fail(
                    f"{slot.name} {where} after {calm_s:.0f} s without a fault ({slot.cause})", slot.name
                )

    def books(self, known: Decimal | None) -> None:
        """Check that the controller's costs cover the provider's bill.

        Exceptions: what a stale listing hides for a round or two, VMs not listed yet, a clock that misses time
        (`started`), and prices that no listing reported (`_unreported_usd`).
        """
        now_s = self._world.now_s
        spent, burn = self._world.meter.spent(self._scenario.spec.run_id, now_s)
        late_s = now_s - float(_LATE_H) * 3600  # all VMs may have ended since then
        untils_s = [since_s for since_s, _ in self._burns[1:]] + [now_s]
        burn = max(
            [
                burn,
                *(usd for (_, usd), until_s in zip(self._burns, untils_s, strict=True) if until_s >= late_s),
            ]
        )
        hidden = [vm for vm in self._world.vms.values() if vm.billed and vm.visible_s > (vm.ended_s or now_s)]
        hidden_usd = sum(
            (
                self._world.price(vm.place.location, vm.spot)
                * Decimal(repr((vm.ended_s or now_s) - vm.created_s))
                / 3600
                for vm in hidden
            ),
            Decimal(0),
        )
        if known is None:
            self.fail("the controller's spending is unknown")
            return
        missing_usd = spent - known - spent / 200 - burn * _LATE_H - self._unseen_usd - hidden_usd
        if missing_usd > 0 and missing_usd > self._unreported_usd():
            self.fail(f"the provider bills {spent:.4f} USD, but the controller accounts for {known:.4f} USD")

    def dead(self, since_s: float) -> None:
        """Check that all VMs have ended within the bound after the end of the run."""
        alive = [vm for vm in self._world.alive("sim") if not is_monitor(vm.vm)]
        if alive and self._world.now_s - since_s > self._scenario.death_bound_s:
            slot = self._store.intents.get(alive[0].vm, ("", 0))[0]
            self.fail(
                f"{alive[0].vm} is still running {self._world.now_s - since_s:.0f} s after the end", slot
            )

    def lost_work(self, store: SimCheckpoints) -> None:
        """Check that no loss of all peers cost more than an interval of checkpoints, and that no epoch counts twice.

        What counts is decided from the peers' records and the controller's VM rows, as in a report. The journal must have
        no checkpoint that was not stored, and none twice.
        """
        for loss in store.losses:
            if loss.lost > loss.most:
                self.fail(
                    f"{loss.lost} epochs were lost with all peers, with a checkpoint every {loss.every}"
                )
        found = training(store.records, self._store.records("vms"))
        lost = {(record.vm, record.epoch) for record in found.lost}
        if lost != store.lost:
            wrong = sorted(lost ^ store.lost, key=lambda one: (one[1], one[0]))[:8]
            self.fail(f"lost and counted epochs are told apart wrongly: {wrong}")
        counted = {record.epoch for record in found.kept}
        if counted != set(range(1, store.counted + 1)):
            self.fail(
                f"{store.counted} epochs remain, but {len(counted)} count, up to {max(counted, default=0)}"
            )
        notes = checkpoints_of(self._store.records("events"))
        names = [one.name for one in notes.stored]
        if len(names) != len(set(names)) or not set(names) <= store.names:
            self.fail("the journal has a checkpoint twice, or one that was not stored")

    def fail(self, what: str, slot: str = "") -> None:
        """Raise SimulationError with the reproducing command and the last journal entries of the slot."""
        journal = self._store.records("events")
        at_s = self._world.now_s - journal[0].at_s
        lines = "\n  ".join(story(journal, slot)[-40:])
        raise SimulationError(f"+{at_s:.0f} s: {what}\nreproduce with: {self._scenario.command}\n  {lines}")
