"""A simulated run: its spec, the market and the history of faults, all drawn from one seed."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from random import Random
from typing import Literal, get_args

from cloud.local.options import PreemptOptions
from cloud.sim import Fault, SimPlace, TraceEvent, Window
from orchestrator.core.state import Place, Policy, Replace, RunSpec, SlotSpec
from orchestrator.simulation.controller import CrashPoint
from orchestrator.simulation.peers import PeerModel

BEGAN_S = 1_763_000_000.0  # launch time of every simulated run
AUTODOWN_S = 60.0  # a VM ends this long after its program
_HOUR = 3600.0
_NONE_PLANNED = PreemptOptions()

FaultClass = Literal[
    "preemption",  # single VMs, as on every spot market
    "storm",  # many VMs of a place at once
    "zone_lost",  # all VMs of a zone preempted, and no capacity there for a while
    "drought",  # no capacity in some zones for a while
    "price",  # prices rise and fall, also above ceilings
    "outage",  # the provider's API does not respond
    "lost_reply",  # the outcome of a call is unknown
    "slow_reply",  # replies arrive after the deadline
    "transient",  # calls fail without an effect
    "created_but_error",  # calls fail although the VM was created
    "hidden",  # new VMs are missing from listings for a while
    "undead",  # terminated VMs keep running for a while
    "stale",  # listings are stale, duplicated or out of order
    "skew",  # the provider's clock is wrong
    "partial",  # some VMs are missing from listings
    "broken",  # the provider's code raises KeyError, TypeError etc.
    "late",  # launches without a reply continue; replies to requests arrive late or twice
    "partition",  # a peer is unreachable while its VM is running
    "crash",  # the controller is killed and restarts
    "clock_jump",  # the controller's machine reboots with a different time
    "controller_lost",  # the controller is killed and never restarts
    "store",  # the controller's database is locked or its disk fails
    "disk_full",  # the disk of the controller and the monitor is full
    "monitor_death",  # the monitor's program dies
    "all_lost",  # all peers preempted at once; they store checkpoints, and their replacements resume
    "vm_clock",  # VM clocks are wrong by up to an hour and are changed during the run
]
FAULT_CLASSES: tuple[FaultClass, ...] = get_args(FaultClass)

_OF_THE_API: dict[FaultClass, tuple[Fault, ...]] = {
    "outage": ("outage",),
    "lost_reply": ("lost_reply", "lost_request"),
    "slow_reply": ("slow_reply",),
    "transient": ("transient",),
    "created_but_error": ("created_but_error", "created_but_refused"),
    "hidden": ("hidden",),
    "undead": ("undead",),
    "stale": ("stale", "duplicate"),
    "skew": ("skew",),
    "partial": ("partial",),
    "broken": ("broken",),
    "late": ("late_request", "late_reply", "doubled_reply", "slow_reply"),
    "store": ("store_busy", "store_io"),
}
_ZONES = (
    ("gcp/us-central1/us-central1-a", "0.11"),
    ("gcp/europe-west1/europe-west1-b", "0.13"),
    ("aws/us-east-1/us-east-1a", "0.16"),
    ("gcp/asia-east1/asia-east1-a", "0.14"),
    ("aws/eu-west-1/eu-west-1b", "0.18"),
)


@dataclass(frozen=True, slots=True)
class Crash:
    """The controller is killed at `point` in the first round that reaches it after `at_s` and `writes` journal writes."""

    at_s: float  # after the launch
    point: CrashPoint
    down_s: float | None  # None: it never restarts
    jump_s: float = 0.0  # change of the machine's clock meanwhile
    writes: int = 0


@dataclass(frozen=True, slots=True)
class Cut:
    """A training peer is unreachable for a while."""

    at_s: float
    for_s: float


@dataclass(frozen=True, slots=True)
class ClockSet:
    """The clock of a training peer's machine is changed."""

    at_s: float  # after the launch
    by_s: float


@dataclass(frozen=True, slots=True)
class Scenario:
    """The complete input of a simulation; the same scenario gives the same run."""

    seed: int
    spec: RunSpec
    places: tuple[SimPlace, ...]
    peers: PeerModel
    duration_s: float
    trace: tuple[TraceEvent, ...] = ()
    windows: tuple[Window, ...] = ()
    crashes: tuple[Crash, ...] = ()
    cuts: tuple[Cut, ...] = ()
    monitor_deaths: tuple[float, ...] = ()  # seconds after the launch
    clocks_set: tuple[ClockSet, ...] = ()
    planned: PreemptOptions = _NONE_PLANNED  # preemptions that the experiment plans
    at_stop: tuple[Window, ...] = ()  # times relative to the moment the run is to stop
    crash_at_stop: Crash | None = None  # its `at_s` is relative to that moment, too
    tick_s: float = 60.0
    busy_tick_s: float = 10.0  # while something is in progress
    # Ticks only when something is due or has changed, or leases must be renewed: for weeks of history.
    sparse: bool = False
    command: str = ""  # reproduces it

    @property
    def death_bound_s(self) -> float:
        """Seconds after the stop, or the loss of the controller, within which all VMs must end: lease, autodown, boot."""
        boot_s = max(place.boot_s[1] for place in self.places)
        return self.peers.lease_s + AUTODOWN_S + boot_s + self.tick_s


def scenario(
    seed: int, *, days: float = 1.0, peers: int = 8, faults: Collection[FaultClass] = FAULT_CLASSES
) -> Scenario:
    """Draw a run of `peers` slots in five zones from the seed: budget, limits and fault history."""
    random = Random(f"scenario {seed}")
    model = PeerModel()
    spec = _spec(random, peers, days, model)
    if Random(f"first {seed}").random() < 0.5:  # as on rented VMs
        spec, model = replace(spec, first_alone=False), replace(model, waits=True)
    hazard = random.choice((0.02, 0.05, 0.1, 0.3)) if "preemption" in faults else 0.0
    places = tuple(
        SimPlace(
            location, spot_usd_per_h=Decimal(usd), on_demand_usd_per_h=3 * Decimal(usd), preempt_per_h=hazard,
            notice_s=random.choice((None, 30.0, 120.0)),
        )
        for location, usd in _ZONES
    )  # fmt: skip
    if random.random() < 0.2:
        model = replace(model, max_epochs=int(random.uniform(0.2, 1.0) * days * 86400 / 65))
    made = Scenario(seed, spec, places, model, days * 86400.0)
    command = f"orch simulate --seed {seed} --days {days:g} --peers {peers}{faults_option(faults)}"
    return replace(with_history(made, faults), command=command)


def faults_option(faults: Collection[FaultClass]) -> str:
    """Return the option of `orch simulate` that selects these classes; "" for all."""
    return "" if set(faults) == set(FAULT_CLASSES) else f" --faults {','.join(faults) or 'none'}"


def _spec(random: Random, peers: int, days: float, model: PeerModel) -> RunSpec:
    places = tuple(
        Place(
            location,
            "sim-8",
            "T4:1",
            True,
            Decimal(usd),
            "made up",
            (Decimal(usd) * Decimal("1.5")).quantize(Decimal("0.0001")),
        )
        for location, usd in _ZONES
    )
    kinds: tuple[Replace, ...] = ("same_place", "next_place", "cheapest_place", "wait")
    slots: list[SlotSpec] = []
    for n in range(peers):
        first = random.randrange(len(places))
        chosen = tuple(places[(first + k) % len(places)] for k in range(random.randint(1, 4)))
        policy = Policy(random.choice(kinds), 10**6, 10**6, backoff_s=5.0, backoff_max_s=300.0)
        slots.append(SlotSpec(f"p{n}", chosen, policy))
    full = Decimal(repr(peers * 0.15 * days * 24))
    budget = (
        (full * Decimal(repr(random.uniform(0.3, 1.5)))).quantize(Decimal("0.01"))
        if random.random() < 0.6
        else None
    )
    return RunSpec(
        run_id="sim",
        slots=tuple(slots),
        budget_usd=budget,
        missing_deadline_s=120.0,
        min_peers=random.choice((1, 1, 2, max(1, peers // 2))),
        max_usd_per_h=Decimal(repr(round(peers * 0.2, 2))) if random.random() < 0.15 else None,
        lease_s=model.lease_s,
        vms_per_min=max(30, peers),
        replacements_per_h=max(60, 8 * peers),
        metering_period_s=60.0,
        decision_s=60.0,
        # Whatever fails, a peer exits when its lease expires, and its VM ends with it.
        teardown_s=model.lease_s + AUTODOWN_S + 120.0 + 60.0,
    )


def with_history(made: Scenario, faults: Collection[FaultClass]) -> Scenario:
    """Add faults of these classes, drawn from the scenario's seed."""
    trace: list[TraceEvent] = []
    windows: list[Window] = []
    crashes: list[Crash] = []
    cuts: list[Cut] = []
    monitor_deaths: list[float] = []
    clocks_set: list[ClockSet] = []
    at_stop: list[Window] = []
    crash_at_stop = made.crash_at_stop
    zones = [place.location for place in made.places]
    days = made.duration_s / 86400.0
    for kind in FAULT_CLASSES:
        if kind not in faults:
            continue
        if kind == "all_lost":
            made, lost = _all_lost(made)
            trace += lost
            continue
        random = Random(f"{kind} {made.seed}")  # the history of a class does not depend on the other classes
        if random.random() < 0.15:
            if kind in _OF_THE_API:
                at_stop += _api(random, kind, -BEGAN_S)
            elif kind in ("crash", "clock_jump"):
                crash_at_stop = _crash(random, kind, 0.0)
            elif kind == "controller_lost":
                crash_at_stop = Crash(0.0, _point(random), None)
        for at_s in _times(random, made.duration_s, days):
            if kind in _OF_THE_API:
                windows += _api(random, kind, at_s)
            elif kind in ("crash", "clock_jump"):
                crashes.append(_crash(random, kind, at_s))
            elif kind == "monitor_death":
                monitor_deaths.append(at_s)
            elif kind == "disk_full":
                if random.random() < 0.05:
                    began_s, helps = BEGAN_S + at_s, float(random.random() < 0.7)
                    windows.append(
                        Window("disk_full", began_s, began_s + random.choice((60.0, 3600.0)), 1.0, helps)
                    )
            elif kind == "partition":
                cuts.append(Cut(at_s, random.choice((60.0, 300.0, 2000.0))))
            elif kind == "vm_clock":
                clocks_set.append(ClockSet(at_s, random.uniform(-_HOUR, _HOUR)))
            elif kind == "controller_lost":
                if random.random() < 0.03:
                    crashes.append(Crash(at_s, _point(random), None))
            else:
                trace += _market(random, kind, at_s, made.places, zones)
    return replace(
        made,
        trace=(*made.trace, *sorted(trace, key=lambda e: e.at_s)),
        windows=(*made.windows, *windows),
        crashes=tuple(sorted((*made.crashes, *crashes), key=lambda c: c.at_s)),
        at_stop=(*made.at_stop, *at_stop),
        crash_at_stop=crash_at_stop,
        cuts=tuple(sorted((*made.cuts, *cuts), key=lambda c: c.at_s)),
        monitor_deaths=(*made.monitor_deaths, *monitor_deaths),
        clocks_set=(*made.clocks_set, *clocks_set),
        peers=replace(made.peers, skew_s=_HOUR) if "vm_clock" in faults else made.peers,
    )


def _all_lost(made: Scenario) -> tuple[Scenario, list[TraceEvent]]:
    """Draw checkpoints and losses of all peers. Most seeds have none, and so the history that they had before this class."""
    random = Random(f"all_lost {made.seed}")
    if random.random() >= 0.3:
        return made, []
    every = random.choice((1, 2, 5, 20))
    upload_s = random.choice(((5.0, 20.0), (20.0, 120.0)))
    times = sorted(random.uniform(0.05, 0.95) * made.duration_s for _ in range(random.choice((1, 2, 4))))
    everything = Decimal("Infinity")
    model = replace(made.peers, checkpoint_every=every, upload_s=upload_s)
    return replace(made, peers=model), [TraceEvent(at_s, "*", "preempt", everything) for at_s in times]


def _times(random: Random, duration_s: float, days: float) -> list[float]:
    count = max(1, round(random.choice((0, 1, 2, 4)) * days)) if random.random() < 0.8 else 0
    return sorted(random.uniform(0.0, 0.95) * duration_s for _ in range(count))


def _point(random: Random) -> CrashPoint:
    points: tuple[CrashPoint, ...] = get_args(CrashPoint)
    return random.choice(points)


def _crash(random: Random, kind: FaultClass, at_s: float) -> Crash:
    down_s = random.choice((1.0, 20.0, 120.0, 900.0))
    jump_s = (
        random.choice((-1.0, 1.0)) * random.uniform(5.0, random.choice((600.0, _HOUR)))
        if kind == "clock_jump"
        else 0.0
    )
    return Crash(at_s, _point(random), down_s, jump_s)


def _api(random: Random, kind: FaultClass, at_s: float) -> list[Window]:
    for_s = random.choice((120.0, 120.0, 300.0, 600.0, 900.0, 1800.0))
    chance = 1.0 if kind in ("outage", "skew") else random.choice((0.1, 0.5, 1.0))
    if kind in ("slow_reply", "lost_reply", "late"):
        chance = min(chance, 0.5)
    if kind == "store":  # per database access, of which a tick makes many
        for_s, chance = random.choice((5.0, 5.0, 10.0, 600.0)), random.choice((0.001, 0.02, 0.3))
    size_s = random.choice((-60.0, 60.0)) if kind == "skew" else random.choice((30.0, 120.0, 400.0))
    began_s = BEGAN_S + at_s
    return [
        Window(f, began_s, began_s + for_s + (2 * _HOUR if f == "late_reply" else 0.0), chance, size_s)
        for f in _OF_THE_API[kind]
    ]


def _market(
    random: Random, kind: FaultClass, at_s: float, places: Sequence[SimPlace], zones: Sequence[str]
) -> list[TraceEvent]:
    zone = random.choice(zones)
    later_s = at_s + random.choice((600.0, 3600.0, 3 * _HOUR))
    everything = Decimal("Infinity")
    match kind:
        case "storm":
            where = random.choice((zone, zone, "*"))
            count = Decimal(random.choice((2, 4, 10)))
            return [TraceEvent(at_s + 20.0 * n, where, "preempt", count) for n in range(random.randint(1, 5))]
        case "zone_lost":
            return [
                TraceEvent(at_s, zone, "capacity", Decimal(0)),
                TraceEvent(later_s, zone, "capacity", everything),
            ]
        case "drought":
            chosen = random.sample(zones, random.randint(1, len(zones)))
            return [
                event
                for z in chosen
                for event in (
                    TraceEvent(at_s, z, "refuse", Decimal(1)),
                    TraceEvent(later_s, z, "refuse", Decimal(0)),
                )
            ]
        case "price":
            usual = next(p.spot_usd_per_h for p in places if p.location == zone)
            factor = Decimal(repr(round(random.uniform(0.7, 2.0), 3)))
            return [
                TraceEvent(at_s, zone, "price", (usual * factor).quantize(Decimal("0.0001"))),
                TraceEvent(later_s, zone, "price", usual),
            ]
        case _:
            return []
