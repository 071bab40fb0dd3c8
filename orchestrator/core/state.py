"""What a run's controller knows: the slots wished for, what became of each, and how the run stands."""

from __future__ import annotations

from dataclasses import dataclass, field
from decimal import Decimal
from enum import StrEnum
from typing import Literal

from experiments.schema.limits import Limits
from orchestrator.core.events import MONITOR

Replace = Literal["same_place", "next_place", "cheapest_place", "wait", "never"]


class SlotState(StrEnum):
    """A slot's life; see docs/design.md, "The controller"."""

    WAITING = "WAITING"  # no VM; one is requested when its time has come
    PROVISIONING = "PROVISIONING"  # the intent is in the journal, the request is on its way
    BOOTING = "BOOTING"  # the provider took the request
    JOINING = "JOINING"  # the VM runs its program, which is not training yet
    TRAINING = "TRAINING"
    DONE = "DONE"  # the peer finished by itself
    ENDED = "ENDED"  # the run was stopped before the peer finished
    FAILED = "FAILED"  # given up: no VM to be had, or too many lost


# A slot in one of these has a VM, or may have one.
LIVE = frozenset({SlotState.PROVISIONING, SlotState.BOOTING, SlotState.JOINING, SlotState.TRAINING})
# A slot in one of these wishes for nothing any more.
OVER = frozenset({SlotState.DONE, SlotState.ENDED, SlotState.FAILED})


@dataclass(frozen=True, slots=True)
class Place:
    """One place a slot's VM may be in, with what is rented there."""

    location: str
    instance: str
    accelerator: str
    use_spot: bool
    usd_per_h: Decimal | None  # None: unknown
    price_source: str
    max_usd_per_h: Decimal | None = None  # no VM dearer than this is taken there; None: any price

    @property
    def ceiling_usd_per_h(self) -> Decimal | None:
        """The most a VM there may cost; None: unknown."""
        return self.usd_per_h if self.max_usd_per_h is None else self.max_usd_per_h

    @property
    def market(self) -> str:
        """What has capacity or has none: "gcp/europe-west1/europe-west1-b T4:1 spot"."""
        return f"{self.location} {self.accelerator} {'spot' if self.use_spot else 'on demand'}"

    @property
    def zone(self) -> str:
        """The last word of its location: "europe-west1-b"."""
        return self.location.rpartition("/")[2]


@dataclass(frozen=True, slots=True)
class Policy:
    """What to do when a slot's VM is refused or lost.

    `same_place` and `wait` ask where they asked before (`wait` for ever), `next_place` goes down the list and
    around, `cheapest_place` takes the cheapest and goes up in price with each refusal, `never` replaces no VM
    that was lost (a refused first one is still sought in every place of the list).
    """

    replace: Replace = "same_place"
    max_replacements: int = 5
    max_refusals: int = 8  # in a row
    backoff_s: float = 1.0
    backoff_max_s: float = 60.0


@dataclass(frozen=True, slots=True)
class SlotSpec:
    """The wish for one peer: places in the order of preference."""

    name: str
    places: tuple[Place, ...]
    policy: Policy = Policy()


@dataclass(frozen=True, slots=True)
class RunSpec(Limits):
    """All the core is told of a run, the experiment's `limits` among it. Times in wall seconds."""

    run_id: str
    slots: tuple[SlotSpec, ...]
    budget_usd: Decimal | None = None
    boot_deadline_s: float = 300.0  # request accepted to program started, or to the first of the next two
    setup_deadline_s: float = 300.0  # a VM that reports that its setup runs
    install_deadline_s: float = 300.0  # a VM that reports that its software is installed
    join_deadline_s: float = 300.0  # program started to the peer being ready; as long again to train
    barrier_s: float | None = None  # ready peers wait so long for each other; None: 60 s and 10 s each
    silent_deadline_s: float = 120.0  # a training peer nobody has seen in the DHT
    missing_deadline_s: float = 30.0  # a VM the provider does not list is lost only after this
    straggler_s: float = 90.0  # the others may still finish so long after the first peer is done
    drain_s: float = 15.0  # for the monitor to read the last records
    min_peers: int = 1  # with fewer that can train, the run pauses
    max_usd_per_h: Decimal | None = None  # no VM is requested that would pass it
    max_wall_s: float | None = None  # the run stops so long after its launch
    first_alone: bool = True  # no other VM is requested before the first peer's address is known
    lease_s: float = 600.0  # a peer that has not heard of the controller for so long ends itself
    breaker_failures: int = 3  # refusals in a row that close a zone
    breaker_open_s: float = 300.0  # a closed zone is asked again after this, by one VM
    metering_period_s: float = 10.0  # what was spent is known so late
    decision_s: float = 5.0  # from knowing to the first termination
    teardown_s: float = 60.0  # what termination itself takes, at worst
    first_s: float = 120.0  # a VM is requested only if it can be paid for so long
    egress_usd_per_h: Decimal = Decimal(0)  # the most that traffic may cost an hour
    max_monitor_restarts: int = 5
    monitor_backoff_s: float = 1.0  # 0, 1, 3, 7 ... times this after each monitor's death

    def boot_within_s(self, phase: str) -> float:
        """How long a VM may boot after it reported this phase. Phases only go forward: each counts once."""
        return {"setup": self.setup_deadline_s, "installing": self.install_deadline_s}.get(
            phase, self.boot_deadline_s
        )

    @property
    def start_deadline_s(self) -> float:
        """Program started to training: ready, waiting for the others, then taking over the swarm's state."""
        barrier_s = 60.0 + 10.0 * len(self.slots) if self.barrier_s is None else self.barrier_s
        return 2 * self.join_deadline_s + barrier_s


@dataclass(frozen=True, slots=True)
class Slot:
    """One slot now. Every change of it is one row of the journal."""

    name: str
    state: SlotState = SlotState.WAITING
    generation: int = 0  # of its VM, or of its next one while it waits
    place: int = 0
    vm: str = ""  # its VM; "" when it has none
    ending: str = ""  # a VM that must be gone before another is requested, but for one that goes by itself
    confirmed: bool = False  # the provider is known to have taken the request
    ambiguous: bool = False  # a request got no answer: the VM may exist
    since_s: float = 0.0  # when it came into this state
    retry_at_s: float = 0.0  # not before this is anything (again) requested
    phase: str = ""  # the peer's own; before it "setup", "installing", "waiting" (to be told whom to join)
    maddr: str = ""
    address: str = ""
    lost: int = 0  # VMs lost so far
    refusals: int = 0  # in a row
    notice_at_s: float | None = None  # its provider said it takes `ending` back then: that one goes by itself
    cause: str = ""
    preempted: str = ""  # the last of its VMs that its provider took back, or said that it would

    @property
    def blocked(self) -> bool:
        """Whether a VM must be gone before another is requested."""
        return bool(self.ending) and self.notice_at_s is None


@dataclass(frozen=True, slots=True)
class Zone:
    """A circuit breaker, over all slots: a zone that has no spot T4 may have others."""

    market: str
    refusals: int = 0  # of capacity or quota, in a row
    closed_until_s: float = 0.0  # not asked before this; then by one VM
    probe: str = ""  # that VM


@dataclass(frozen=True, slots=True)
class RunState:
    """A run now: a pure function of its journal, but for the last four."""

    spec: RunSpec
    slots: tuple[Slot, ...]
    launched_s: float = 0.0  # when its journal began
    intents: frozenset[str] = frozenset()  # every VM ever wished for: no other may exist
    monitor: Literal["absent", "wanted", "up", "ending", "gone"] = "absent"
    monitors_lost: int = 0
    monitor_retry_at_s: float = 0.0  # no monitor is started before this
    monitor_cause: str = ""  # why the last one was lost
    finishing_s: float | None = None  # all peers are over; the last records are being read
    stop_status: str = ""  # "" while the run goes on
    stop_cause: str = ""
    ended: bool = False
    enough: bool = False  # min_peers could train at some time
    paused_at_s: float | None = None  # fewer than min_peers can train since then
    paused_s: float = 0.0  # the earlier pauses together
    held_back: str = ""  # why no VM is requested although slots wait for one
    seed: str = ""  # the VM that was chosen to begin the swarm, until it is lost
    zones: tuple[Zone, ...] = ()  # those that refused, by market
    requested_s: tuple[float, ...] = ()  # when VMs were requested, in the minute up to the last one
    replaced_s: tuple[float, ...] = ()  # those in the place of lost ones, in the hour up to the last one
    # As last told, and told again after a restart; None: not yet.
    spent_usd: Decimal | None = field(default=None, compare=False)
    burn_usd_per_h: Decimal | None = field(default=None, compare=False)
    egress_usd_per_h: Decimal | None = field(default=None, compare=False)
    # The indexes `machine.advance` made of this state: only what is faster for it.
    index: object = field(default=None, compare=False, repr=False)

    @property
    def paused(self) -> bool:
        """Whether the peers are to wait for others."""
        return self.paused_at_s is not None

    def slot(self, name: str) -> Slot:
        """The slot of that name; KeyError when there is none."""
        for slot in self.slots:
            if slot.name == name:
                return slot
        raise KeyError(name)

    def slot_spec(self, name: str) -> SlotSpec:
        """Its wish; KeyError when there is none."""
        for spec in self.spec.slots:
            if spec.name == name:
                return spec
        raise KeyError(name)

    def vm_name(self, slot: Slot) -> str:
        """The name of the slot's VM of this generation; never used twice."""
        return f"{self.spec.run_id}-{slot.name}-{slot.generation}"

    def monitor_vm(self, lost: int | None = None) -> str:
        """The name of the monitor's VM, now or after so many were lost; never used twice."""
        number = self.monitors_lost if lost is None else lost
        return f"{MONITOR}-{number}" if number else MONITOR

    def monitor_vms(self) -> tuple[str, ...]:
        """Every name a monitor of this run has or had."""
        return tuple(self.monitor_vm(n) for n in range(self.monitors_lost + 1))

    def maddrs(self) -> tuple[str, ...]:
        """Addresses of the peers that can be joined now."""
        up = (s for s in self.slots if s.maddr and s.vm and s.state in LIVE and s.phase != "leaving")
        return tuple(s.maddr for s in up)
