"""The simulated cloud itself, in virtual time: places with prices and capacity; VMs that boot, cost and are preempted."""

from __future__ import annotations

import heapq
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from random import Random
from typing import Any, Literal

from cloud.provider import LaunchRequest, NoCapacityError, Observed, VmState, is_monitor
from cloud.sim.meter import Meter
from cloud.sim.traces import TraceEvent

Change = Literal["created", "ready", "noticed", "ended"]
_REMEMBERED_S = 900.0  # how long a VM stays in lists after its end


class VirtualClock:
    """A clock that advances only on request."""

    def __init__(self, now_s: float = 0.0) -> None:
        self.now_s = now_s

    def advance_to(self, at_s: float) -> None:
        """Move forward to `at_s`; never back."""
        self.now_s = max(self.now_s, at_s)


@dataclass(frozen=True, slots=True)
class SimPlace:
    """One kind of VM in one place of the market."""

    location: str  # "cloud/region/zone"
    instance: str = "sim-8"
    accelerator: str = "T4:1"
    spot_usd_per_h: Decimal = Decimal("0.20")
    on_demand_usd_per_h: Decimal = Decimal("0.60")
    capacity: float = math.inf  # spot VMs at the same time
    boot_s: tuple[float, float] = (45.0, 120.0)  # range, from the request to the program's start
    preempt_per_h: float = 0.0  # rate, for each spot VM
    notice_s: float | None = 30.0  # time between notice and preemption; None: no notice


@dataclass(slots=True, eq=False)
class SimVm:
    """The actual state of one VM. Times are seconds of the simulated world."""

    run: str
    vm: str
    id: str
    place: SimPlace
    spot: bool
    labels: Mapping[str, str]
    ceiling: Decimal | None
    created_s: float
    visible_s: float
    address: str
    billed: bool
    state: VmState = "pending"
    ready_s: float | None = None
    notice_s: float | None = None
    ended_s: float | None = None
    cause: str = ""
    ending: bool = False  # a delayed termination is pending

    @property
    def alive(self) -> bool:
        """Whether it is rented: it is billed and counts towards capacity."""
        return self.ended_s is None


def _nothing(_: SimVm) -> Mapping[str, Any]:
    return {}


def _ignore(_change: Change, _vm: SimVm, _at_s: float) -> None:
    pass


class SimWorld:
    """A provider's zones and the VMs of all runs. `advance_to` processes events that are due, in order."""

    def __init__(
        self,
        places: Sequence[SimPlace],
        *,
        seed: int | str = 0,
        autodown_s: float = 60.0,
        began_s: float = 0.0,
    ) -> None:
        """`autodown_s`: how long after its program's end a VM ends itself."""
        self.now_s = self._began_s = began_s
        self.places = {place.location: place for place in places}
        self.vms: dict[tuple[str, str], SimVm] = {}
        self.meter = Meter(began_s)
        self.skew_s = 0.0
        self.status_of: Callable[[SimVm], Mapping[str, Any]] = _nothing
        self.on_change: Callable[[Change, SimVm, float], None] = _ignore
        self.counts: Counter[str] = Counter()  # events of VMs and requests, by kind
        self.alive_count = 0  # billed VMs of all runs
        self._autodown_s = autodown_s
        self._random = Random(f"world {seed}")
        self._agenda: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._count = 0
        self._prices = {place.location: place.spot_usd_per_h for place in places}
        self._capacity = {place.location: place.capacity for place in places}
        self._refusing: set[str] = set()
        self._there: dict[str, dict[str, SimVm]] = {place.location: {} for place in places}
        self._spots: Counter[str] = Counter()  # spot VMs by location
        self._alive: dict[str, dict[str, SimVm]] = {}  # by run and name, like the next two
        self._unlisted: dict[str, dict[str, SimVm]] = {}  # VMs whose entry in the list is outdated
        self._lists: dict[str, dict[str, Observed]] = {}
        self._forgotten_s = began_s

    # time

    def next_s(self) -> float:
        """Time of the next event; infinity if there is none."""
        return self._agenda[0][0] if self._agenda else math.inf

    def advance_to(self, now_s: float) -> None:
        """Process every event that is due by `now_s`."""
        while self._agenda and self._agenda[0][0] <= now_s:
            at_s, _, do, arguments = heapq.heappop(self._agenda)
            self.now_s = max(self.now_s, at_s)
            do(*arguments)
        self.now_s = max(self.now_s, now_s)

    def at(self, at_s: float, do: Callable[..., None], *arguments: Any) -> None:
        """Schedule a call."""
        self._count += 1
        heapq.heappush(self._agenda, (max(at_s, self.now_s), self._count, do, arguments))

    def schedule(self, trace: Iterable[TraceEvent]) -> None:
        """Schedule the events of a trace, counted from the world's start; unknown places are ignored."""
        for event in trace:
            self.at(self._began_s + event.at_s, self._happen, event)

    def _happen(self, event: TraceEvent) -> None:
        places = list(self.places) if event.location == "*" else [event.location]
        for location in places:
            if location in self.places:
                self._happen_at(location, event)

    def _happen_at(self, location: str, event: TraceEvent) -> None:
        match event.event:
            case "price":
                self._prices[location] = event.value
                self.meter.price(location, event.value, self.now_s)
                for vm in self._spot(location):
                    self.touch(vm)
                    if vm.ceiling is not None and event.value > vm.ceiling:
                        self.counts["price"] += 1
                        self._preempt(vm, f"the spot price rose to {event.value} USD/h, above its ceiling")
            case "capacity":
                self._capacity[location] = float(event.value)
                surplus = len(self._spot(location)) - self._capacity[location]
                self._take_back("capacity", location, surplus, "the zone has no capacity for it any more")
            case "preempt":
                self._take_back("storm", location, float(event.value), "the provider took the VM back")
            case "refuse":
                (self._refusing.add if event.value else self._refusing.discard)(location)

    def _take_back(self, why: str, location: str, count: float, cause: str) -> None:
        youngest_first = self._spot(location)[::-1]
        for vm in youngest_first[: min(len(youngest_first), int(min(max(count, 0.0), 1e9)))]:
            self.counts[why] += 1
            self._preempt(vm, cause)

    def _spot(self, location: str) -> list[SimVm]:
        return [vm for vm in self._there[location].values() if vm.spot]

    # the market

    def room(self, location: str) -> bool:
        """Whether a spot VM could be rented there now."""
        return location not in self._refusing and self._spots[location] < self._capacity[location]

    def price(self, location: str, spot: bool) -> Decimal:
        """Current price there in US dollars per hour."""
        return self._prices[location] if spot else self.places[location].on_demand_usd_per_h

    # VMs

    def create(self, run: str, request: LaunchRequest, hidden_s: float = 0.0) -> SimVm:
        """Rent a VM. Raises NoCapacityError and then leaves nothing."""
        location, spot = request.offer.location, request.offer.use_spot
        place, usd = self.places[location], self.price(location, spot)
        monitor = is_monitor(request.vm)
        if not monitor and spot and not self.room(location):
            self.counts["refused_drought" if location in self._refusing else "refused_capacity"] += 1
            raise NoCapacityError(f"{location} has no {place.instance} to rent now")
        if not monitor and request.max_usd_per_h is not None and usd > request.max_usd_per_h:
            self.counts["refused_price"] += 1
            raise NoCapacityError(f"{location}: {usd} USD/h is above the ceiling of {request.max_usd_per_h}")
        number = len(self.vms) + 1
        vm = SimVm(
            run=run, vm=request.vm, id=f"i-{number:08x}", place=place, spot=spot, labels=dict(request.labels),
            ceiling=request.max_usd_per_h, created_s=self.now_s, visible_s=self.now_s + hidden_s,
            address=f"10.{number >> 16 & 255}.{number >> 8 & 255}.{number & 255}", billed=not monitor,
        )  # fmt: skip
        self.vms[run, vm.vm] = vm
        self._alive.setdefault(run, {})[vm.vm] = vm
        self.touch(vm)
        self.alive_count += vm.billed
        if vm.billed:
            self._there[location][vm.id] = vm
            self._spots[location] += spot
            self.meter.began(run, location, usd, spot, self.now_s)
        if request.max_life_s is not None:
            self.at(
                self.now_s + request.max_life_s, self.end, vm, "terminated", "it reached its maximum lifetime"
            )
        self.at(self.now_s + (self._random.uniform(*place.boot_s) if vm.billed else 1.0), self._boot, vm)
        self.on_change("created", vm, self.now_s)
        return vm

    def _boot(self, vm: SimVm) -> None:
        if not vm.alive:
            return
        vm.state, vm.ready_s = "running", self.now_s
        self.touch(vm)
        rate = vm.place.preempt_per_h
        if vm.spot and vm.billed and rate > 0:
            dies_s = self.now_s + self._random.expovariate(rate) * 3600.0
            notice_s = vm.place.notice_s
            if notice_s is not None:
                self.at(dies_s - notice_s, self._notice, vm, max(dies_s, self.now_s + notice_s))
            else:
                self.at(dies_s, self._take, vm, "the provider took the VM back")
        self.on_change("ready", vm, self.now_s)

    def _notice(self, vm: SimVm, dies_s: float) -> None:
        if vm.alive:
            vm.notice_s = dies_s
            self.touch(vm)
            self.at(dies_s, self._take, vm, "the provider took the VM back, as it had announced")
            self.on_change("noticed", vm, self.now_s)

    def _take(self, vm: SimVm, cause: str) -> None:
        self.counts["preemption"] += vm.alive
        self._preempt(vm, cause)

    def _preempt(self, vm: SimVm, cause: str) -> None:
        self.end(vm, "preempted", cause)

    def take_back(self, vm: SimVm, notice_s: float | None) -> None:
        """Preempt a VM `notice_s` after announcing it; None: now, without notice."""
        if notice_s is None:
            self._take(vm, "the provider took the VM back")
        else:
            self._notice(vm, self.now_s + notice_s)

    def touch(self, vm: SimVm) -> None:
        """Mark a VM as changed, so that the next list shows it anew."""
        self._unlisted.setdefault(vm.run, {})[vm.vm] = vm

    def has_news(self, run: str) -> bool:
        """Whether the next list of the run's VMs differs from the last one."""
        return bool(self._unlisted.get(run))

    def program_ended(self, vm: SimVm) -> None:
        """Report that a VM's program has ended; the VM ends itself a little later."""
        self.touch(vm)
        self.at(self.now_s + self._autodown_s, self.end, vm, "terminated", "its program had ended")

    def monitor_dies(self, run: str, cause: str) -> bool:
        """Make a run's monitor fail; returns whether one was running."""
        living = self.monitors(run)
        for vm in living:
            self.end(vm, "failed", cause)
        return bool(living)

    def monitors(self, run: str) -> list[SimVm]:
        """A run's monitors that run."""
        return [vm for vm in self._alive.get(run, {}).values() if not vm.billed and vm.state == "running"]

    def end(self, vm: SimVm, state: VmState, cause: str) -> None:
        """End a VM and stop billing it; do nothing if it has ended."""
        if not vm.alive:
            return
        vm.state, vm.ended_s, vm.cause = state, self.now_s, cause
        self.touch(vm)
        del self._alive[vm.run][vm.vm]
        self.alive_count -= vm.billed
        if vm.billed:
            del self._there[vm.place.location][vm.id]
            self._spots[vm.place.location] -= vm.spot
            self.meter.ended(
                vm.run, vm.place.location, self.price(vm.place.location, vm.spot), vm.spot, self.now_s
            )
        self.on_change("ended", vm, self.now_s)

    def alive(self, run: str) -> list[SimVm]:
        """VMs of a run that actually exist, including its monitor."""
        return list(self._alive.get(run, {}).values())

    def listing(self, run: str) -> list[Observed]:
        """The run's list of VMs; returns the same object for a VM that has not changed."""
        shown, unlisted = self._lists.setdefault(run, {}), self._unlisted.get(run, {})
        for vm in list(unlisted.values()):
            if vm.visible_s <= self.now_s:
                shown[vm.vm] = self._show(vm)
                del unlisted[vm.vm]
        if self.now_s - self._forgotten_s > _REMEMBERED_S:
            self._forgotten_s = self.now_s
            for (owner, name), vm in self.vms.items():
                if vm.ended_s is not None and self.now_s - vm.ended_s > _REMEMBERED_S:
                    self._lists.get(owner, {}).pop(name, None)
        return list(shown.values())

    def _show(self, vm: SimVm) -> Observed:
        def theirs(at_s: float | None) -> float | None:
            return None if at_s is None else at_s + self.skew_s

        return Observed(
            vm=vm.vm, state=vm.state, location=vm.place.location, address=vm.address,
            requested_at_s=vm.created_s + self.skew_s, ready_at_s=theirs(vm.ready_s), ended_at_s=theirs(vm.ended_s),
            cause=vm.cause, notice_at_s=theirs(vm.notice_s), status=self.status_of(vm), instance=vm.place.instance,
            usd_per_h=self.price(vm.place.location, vm.spot), price_source="the simulated market",
            link=f"sim://{vm.id}",
        )  # fmt: skip
