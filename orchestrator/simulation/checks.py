"""What must hold whatever happens: checked at every change of the cloud and every round of the controller."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from itertools import pairwise

from cloud.provider import Observed, is_monitor
from cloud.sim import SimVm, SimWorld
from orchestrator.core.journal import story
from orchestrator.core.state import LIVE, OVER, RunState, SlotState
from orchestrator.simulation.scenario import Scenario
from orchestrator.simulation.store import MemoryStore

_LATE_H = Decimal("0.05")
_WRITTEN_S = 30.0  # the run's clock is written down so often
_LOOK_S = 600.0  # progress is looked at so often
_DENIED_S = 300.0  # a VM that is listed again, and that nothing disturbs, is ended within this where it is one too many


class SimulationError(AssertionError):
    """A promise was broken: a fault of ours. Says which, how to see it again, and what the slot went through."""


@dataclass(slots=True)
class _Slot:
    calm_since_s: float
    judged: int = 0


class Checks:
    """The invariants of one simulation."""

    def __init__(
        self, scenario: Scenario, world: SimWorld, store: MemoryStore, denied: Mapping[str, float]
    ) -> None:
        """`denied`: VMs that the provider said, against its contract, were not there; until when."""
        self._scenario, self._world, self._store, self._denied = scenario, world, store, denied
        spec = scenario.spec
        self._slots = {s.name: _Slot(world.now_s) for s in spec.slots}
        self._born: set[tuple[str, int]] = set()
        self._disturbed_s = world.now_s
        self._looked_s = world.now_s
        backoff_s = max(s.policy.backoff_max_s for s in spec.slots)
        # One request nobody answers, one back-off, one closed zone, one boot, one join, and a listing told again.
        self._wait_s = (
            900.0 + 2 * backoff_s + spec.breaker_open_s + spec.boot_deadline_s + spec.join_deadline_s
        )
        if not spec.first_alone:
            self._wait_s += spec.boot_deadline_s  # to be told whom to join
        self._wait_s += (
            30 * scenario.tick_s + spec.missing_deadline_s + spec.silent_deadline_s + 4 * scenario.tick_s
        )
        self._lag_s = 0.0  # of the controller's clock
        self._unseen_usd = Decimal(0)  # what VMs cost at most in the time that its clock lacks
        self._burns: list[tuple[float, Decimal]] = []  # dollars an hour, since when
        self._told: dict[str, set[Decimal]] = {}  # prices that any list told, by VM
        self._prices: dict[str, list[tuple[float, Decimal]]] = {  # spot, by location, since when
            place.location: [(world.now_s, place.spot_usd_per_h)] for place in scenario.places
        }
        for event in sorted(scenario.trace, key=lambda e: e.at_s):
            if event.event == "price":
                for location in [event.location] if event.location != "*" else self._prices:
                    if location in self._prices:
                        self._prices[location].append((world.now_s + event.at_s, event.value))
        self.calm_looks = 0  # at a slot for which progress was due

    def changed(self, change: str, vm: SimVm, at_s: float) -> None:
        """A VM was created or ended."""
        if is_monitor(vm.vm):
            return
        if change == "created":
            if vm.vm not in self._store.intents:
                self.fail(f"{vm.vm} lives, and the journal does not say so")
            who = self._store.intents[vm.vm]
            if who in self._born:
                self.fail(f"slot {who[0]} has a second VM of generation {who[1]}", who[0])
            self._born.add(who)
        if change == "ended" and vm.vm in self._store.intents:
            self._slots[self._store.intents[vm.vm][0]].calm_since_s = at_s

    def started(self, clock_s: float, since_s: float) -> None:
        """A controller begins, and its clock says `clock_s`; the last one's last whole round was at `since_s`.

        On a machine that started again with its time of day set back, the run's clock goes on from where it was last written
        down, at most `_WRITTEN_S` before `since_s`, as if the machine had been away for less time than it was: it lacks the
        rest. VMs are billed until the clock's time, so what is unseen now is what they cost in as many seconds before now.
        It is made good when their ends are told, which are by the provider's clock, and never grows.
        """
        now_s = self._world.now_s
        lacks_s, self._lag_s = now_s - clock_s - self._lag_s, now_s - clock_s
        away_s = now_s - since_s + _WRITTEN_S
        if lacks_s > away_s + 1e-3:
            self.fail(f"the run's clock lacks {lacks_s:.0f} s after {away_s:.0f} s without a controller")
        self._unseen_usd += self._spent_usd(now_s - max(0.0, lacks_s), now_s)
        self.disturbed()

    def _spent_usd(self, from_s: float, until_s: float) -> Decimal:
        """What the provider billed meanwhile."""
        usd = Decimal(0)
        for (at_s, burn), (next_s, _) in pairwise([*self._burns, (until_s, Decimal(0))]):
            usd += burn * Decimal(repr(max(0.0, next_s - max(at_s, from_s)))) / 3600
        return usd

    def listed(self, seen: Sequence[Observed]) -> None:
        """The controller is told a list."""
        for o in seen:
            if o.usd_per_h is not None:
                self._told.setdefault(o.vm, set()).add(o.usd_per_h)

    def _untold_usd(self) -> Decimal:
        """What VMs cost at spot prices that rose and fell again between two lists: a list tells the price of its moment
        only, so nobody can know more than the least that was ever told of the VM."""
        usd = Decimal(0)
        for vm in self._world.vms.values():
            told, prices = self._told.get(vm.vm), self._prices.get(vm.place.location, [])
            if not told or not vm.spot or not vm.billed or len(prices) < 2:
                continue
            ends_s = vm.ended_s or self._world.now_s
            for (from_s, price), (until_s, _) in pairwise([*prices, (ends_s, Decimal(0))]):
                for_s = min(until_s, ends_s) - max(from_s, vm.created_s)
                if price not in told and for_s > 0:
                    usd += max(Decimal(0), price - min(told)) * Decimal(repr(for_s)) / 3600
        return usd

    def disturbed(self) -> None:
        """Something is wrong with the provider or the controller: no progress is owed while that lasts."""
        self._disturbed_s = self._world.now_s

    def money(self) -> None:
        """spent <= budget, as the provider bills it.

        Beside that only what a clock that lacks time hides (`started`): the run stops once what it knows of, and the
        reserve, reach the budget, and what it knows of is as much too little.
        """
        budget = self._scenario.spec.budget_usd
        spent, burn = self._world.meter.spent(self._scenario.spec.run_id, self._world.now_s)
        if not self._burns or self._burns[-1][1] != burn:
            self._burns.append((self._world.now_s, burn))
        if budget is not None and spent > budget + self._unseen_usd:
            self.fail(f"{spent:.4f} USD are spent of a budget of {budget}")

    def one_vm_a_slot(self) -> None:
        """At most one VM of a slot lives that was not announced to go. One that the provider denied may live beside it,
        until it has been listed for a while and nothing disturbs its end."""
        stay: dict[str, int] = {}
        for vm in self._world.alive("sim"):
            if vm.notice_s is not None or is_monitor(vm.vm):
                continue
            denied_s = self._denied.get(vm.vm)
            if denied_s is not None and self._world.now_s - max(denied_s, self._disturbed_s) <= _DENIED_S:
                continue
            slot = self._store.intents[vm.vm][0]
            stay[slot] = stay.get(slot, 0) + 1
            if stay[slot] > 1:
                self.fail(f"slot {slot} has two VMs", slot)

    def one_swarm(self, beside: list[str]) -> None:
        """Nobody begins a swarm `beside` VMs of another one, but for those that the provider denied."""
        known = [vm for vm in beside if vm not in self._denied]
        if known:
            self.fail(f"a second swarm was begun beside {', '.join(known)}")

    def leases(self, ended_early: list[str]) -> None:
        """No lease ends under a controller that gives orders, as long as its peer hears them."""
        if ended_early:
            self.fail(f"the lease of {', '.join(ended_early)} ended although its peer heard the controller")

    def progress(self, state: RunState) -> None:
        """Where a slot's places have room and nothing disturbs it, it trains within a bounded time."""
        now_s = self._world.now_s
        if now_s - self._looked_s < _LOOK_S:
            return
        self._looked_s = now_s
        spec = state.spec
        waits = bool(state.stop_status or state.held_back or state.finishing_s is not None)
        if waits or spec.max_usd_per_h is not None:
            self.disturbed()
        done = any(s.state is SlotState.DONE for s in state.slots)
        for wish, slot in zip(spec.slots, state.slots, strict=True):
            mine = self._slots[slot.name]
            room = all(
                self._world.room(p.location)
                and (
                    p.ceiling_usd_per_h is None or self._world.price(p.location, True) <= p.ceiling_usd_per_h
                )
                for p in wish.places
            )
            if not room or slot.state is SlotState.TRAINING or slot.state in OVER or done:
                mine.calm_since_s = now_s
                continue
            calm_s = now_s - max(mine.calm_since_s, self._disturbed_s)
            self.calm_looks += calm_s > 0
            if calm_s > self._wait_s:
                where = "has a VM that does not train" if slot.state in LIVE else "has no VM"
                self.fail(
                    f"{slot.name} {where} after {calm_s:.0f} s without a fault ({slot.cause})", slot.name
                )

    def books(self, known: Decimal | None) -> None:
        """No dollar is lost: what the controller knows of covers what the provider bills, but for what an old list
        hides for a round or two, VMs that the provider does not list yet, a clock that lacks time (`started`), and prices
        that no list told (`_untold_usd`)."""
        now_s = self._world.now_s
        spent, burn = self._world.meter.spent(self._scenario.spec.run_id, now_s)
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
            self.fail("the controller does not know what it has spent")
            return
        missing_usd = spent - known - spent / 200 - burn * _LATE_H - self._unseen_usd - hidden_usd
        if missing_usd > 0 and missing_usd > self._untold_usd():
            self.fail(f"the provider bills {spent:.4f} USD, the controller knows of {known:.4f}")

    def dead(self, since_s: float) -> None:
        """Everything is dead within the bound after the end."""
        alive = [vm for vm in self._world.alive("sim") if not is_monitor(vm.vm)]
        if alive and self._world.now_s - since_s > self._scenario.death_bound_s:
            slot = self._store.intents.get(alive[0].vm, ("", 0))[0]
            self.fail(f"{alive[0].vm} lives {self._world.now_s - since_s:.0f} s after the end", slot)

    def fail(self, what: str, slot: str = "") -> None:
        """Raise SimulationError."""
        journal = self._store.records("events")
        at_s = self._world.now_s - journal[0].at_s
        lines = "\n  ".join(story(journal, slot)[-40:])
        raise SimulationError(f"+{at_s:.0f} s: {what}\nreplay it: {self._scenario.command}\n  {lines}")
