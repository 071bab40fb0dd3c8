"""The controller's state of a run: the specification, the slots, and the run's own status."""

from __future__ import annotations

from dataclasses import dataclass, field
from decimal import Decimal
from enum import StrEnum
from typing import Literal

from experiments.schema.limits import Limits
from orchestrator.core.events import MONITOR
from orchestrator.core.until import Goals

Replace = Literal["same_place", "next_place", "cheapest_place", "any_place_up", "wait", "never"]


class SlotState(StrEnum):
    """States of a slot; see docs/design.md, "The controller"."""

    WAITING = "WAITING"  # no VM; one is requested at `retry_at_s`
    PROVISIONING = "PROVISIONING"  # the intent is in the journal, the request is in progress
    BOOTING = "BOOTING"  # the provider accepted the request
    JOINING = "JOINING"  # the VM runs its program, which is not training yet
    TRAINING = "TRAINING"
    DONE = "DONE"  # the peer finished training
    ENDED = "ENDED"  # the run was stopped before the peer finished
    FAILED = "FAILED"  # given up: no VM available, or too many lost


# A slot in one of these has a VM, or may have one.
LIVE = frozenset({SlotState.PROVISIONING, SlotState.BOOTING, SlotState.JOINING, SlotState.TRAINING})
# A slot in one of these needs no more VMs.
OVER = frozenset({SlotState.DONE, SlotState.ENDED, SlotState.FAILED})


@dataclass(frozen=True, slots=True)
class Place:
    """One place for a slot's VM, with the instance rented there."""

    location: str
    instance: str
    accelerator: str
    use_spot: bool
    usd_per_h: Decimal | None  # None: unknown
    price_source: str
    max_usd_per_h: Decimal | None = None  # no VM is accepted there above this price; None: any price

    @property
    def ceiling_usd_per_h(self) -> Decimal | None:
        """The maximum price of a VM there; None: unknown."""
        return self.usd_per_h if self.max_usd_per_h is None else self.max_usd_per_h

    @property
    def market(self) -> str:
        """The unit of capacity, e.g. "gcp/europe-west1/europe-west1-b T4:1 spot"."""
        return f"{self.location} {self.accelerator} {'spot' if self.use_spot else 'on demand'}"

    @property
    def zone(self) -> str:
        """The last part of the location, e.g. "europe-west1-b"."""
        return self.location.rpartition("/")[2]


@dataclass(frozen=True, slots=True)
class Policy:
    """What to do when a slot's VM is refused or lost.

    `same_place` and `wait` retry the same place (`wait` without limit). `next_place` cycles through the list.
    `cheapest_place` starts with the cheapest and moves up in price with each refusal. `any_place_up` moves to the
    place with the fewest recent failures (`policy.zone_rank`), at once after a preemption or a refusal, without limit
    of refusals; after a refusal by all places it waits. `never` replaces no lost VM (but tries every place
    of the list for the first one).
    """

    replace: Replace = "same_place"
    max_replacements: int = 5
    max_refusals: int = 8  # in a row
    backoff_s: float = 1.0
    backoff_max_s: float = 60.0


@dataclass(frozen=True, slots=True)
class SlotSpec:
    """Specification of one peer: places in order of preference."""

    name: str
    places: tuple[Place, ...]
    policy: Policy = Policy()


@dataclass(frozen=True, slots=True)
class RunSpec(Limits):
    """Everything the core knows of a run in advance, including the experiment's `limits`.

    Times are wall-clock seconds.
    """

    run_id: str
    slots: tuple[SlotSpec, ...]
    budget_usd: Decimal | None = None
    boot_deadline_s: float = (
        300.0  # from the accepted request to the start of the program, or to the first of the next two phases
    )
    setup_deadline_s: float = 300.0  # for a VM that reports running its setup
    install_deadline_s: float = 300.0  # for a VM that reports installing its software
    join_deadline_s: float = (
        300.0  # from the start of the program to the ready peer; the same again until it trains
    )
    # in addition, for the download of a checkpoint and the compilation of the model before the peer is ready
    restore_s: float = 0.0
    barrier_s: float | None = None  # how long ready peers wait for each other; None: 60 s plus 10 s per slot
    silent_deadline_s: float = 120.0  # for a training peer not seen in the DHT
    missing_deadline_s: float = 30.0  # an unlisted VM counts as lost after this
    straggler_s: float = 90.0  # how long the others may take to finish after the first peer is done
    drain_s: float = 15.0  # time for the monitor to read the last records
    min_peers: int = 1  # the run pauses while fewer can train
    max_usd_per_h: Decimal | None = None  # no VM is requested that would exceed it
    max_wall_s: float | None = None  # the run stops this long after its launch
    first_alone: bool = True  # no other VM is requested before the first peer's address is known
    lease_s: float = 600.0  # peers exit after this long without contact with the controller
    breaker_failures: int = 3  # consecutive refusals that close a zone
    breaker_open_s: float = 300.0  # after this, a closed zone is probed by one request
    metering_period_s: float = 10.0  # delay until spending is known
    decision_s: float = 5.0  # from then to the first termination
    teardown_s: float = 60.0  # upper bound of the termination itself
    first_s: float = 120.0  # a VM is requested only if the budget pays for it this long
    egress_usd_per_h: Decimal = Decimal(0)  # upper bound of the hourly cost of traffic
    epochs: int | None = None  # the planned ones; None: written by a version that did not store them
    until: Goals | None = None  # goals that end the run before its last epoch
    max_monitor_restarts: int = 5
    monitor_backoff_s: float = 1.0  # 0, 1, 3, 7 ... times this after each monitor's death

    def boot_within_s(self, phase: str) -> float:
        """How long a VM may boot after it reported this phase. Phases only advance, so each counts once."""
        return {"setup": self.setup_deadline_s, "installing": self.install_deadline_s}.get(
            phase, self.boot_deadline_s
        )

    @property
    def start_deadline_s(self) -> float:
        """From the program's start to training: becoming ready, waiting for the others, loading the swarm's state."""
        barrier_s = 60.0 + 10.0 * len(self.slots) if self.barrier_s is None else self.barrier_s
        return 2 * (self.join_deadline_s + self.restore_s) + barrier_s


@dataclass(frozen=True, slots=True)
class Slot:
    """The current state of one slot. Every change is one row of the journal."""

    name: str
    state: SlotState = SlotState.WAITING
    generation: int = 0  # of its VM, or of its next VM while it waits
    place: int = 0
    vm: str = ""  # its VM; "": none
    # A VM being terminated. It must be gone before another is requested, unless its preemption was announced.
    ending: str = ""
    confirmed: bool = False  # the provider is known to have accepted the request
    ambiguous: bool = False  # a request got no answer: the VM may exist
    since_s: float = 0.0  # when it entered this state
    retry_at_s: float = 0.0  # nothing is requested before this time
    phase: str = (
        ""  # as reported by the peer; before that "setup", "installing", "waiting" (for initial peers)
    )
    maddr: str = ""
    address: str = ""
    lost: int = 0  # VMs lost so far
    refusals: int = 0  # consecutive
    notice_at_s: float | None = None  # announced preemption time of `ending`
    ending_trained: bool = False  # whether `ending` trained when its preemption was announced
    cause: str = ""
    preempted: str = ""  # the last of its VMs that was preempted, or whose preemption was announced

    @property
    def leaves(self) -> bool:
        """Whether a VM that trained is announced to go, and may finish or hand on its state before that."""
        return bool(self.ending) and self.notice_at_s is not None and self.ending_trained

    @property
    def blocked(self) -> bool:
        """Whether a VM of the slot must be gone before another is requested."""
        return bool(self.ending) and self.notice_at_s is None


@dataclass(frozen=True, slots=True)
class Zone:
    """A circuit breaker and a memory of failures, shared by all slots.

    One zone has one per market (accelerator, spot or on demand).
    """

    market: str
    refusals: int = 0  # consecutive ones for capacity or quota
    closed_until_s: float = 0.0  # no request before this; then only that of `probe`
    probe: str = ""  # the VM whose request tests the zone
    # Refusals, and preemptions of slots with `any_place_up`: each counts half as much after `policy.HALF_LIFE_S`.
    recent_failures: float = 0.0  # as of the next time
    recent_at_s: float = 0.0


@dataclass(frozen=True, slots=True)
class RunState:
    """The current state of a run: a pure function of its journal, except for the last four fields."""

    spec: RunSpec
    slots: tuple[Slot, ...]
    launched_s: float = 0.0  # when its journal began
    intents: frozenset[str] = frozenset()  # every VM ever requested; no other may exist
    monitor: Literal["absent", "wanted", "up", "ending", "gone"] = "absent"
    monitors_lost: int = 0
    monitor_retry_at_s: float = 0.0  # no monitor is started before this
    monitor_cause: str = ""  # why the last one was lost
    finishing_s: float | None = (
        None  # since when the last records are read: all peers are over, or stragglers too late
    )
    stop_status: str = ""  # "" while the run goes on
    stop_cause: str = ""
    ended: bool = False
    last_epoch: int | None = None  # ordered because a goal was reached; None: as the peers were configured
    ended_by: str = ""  # that goal, one of `until.Goal`, even if the last epoch is the planned one
    enough: bool = False  # whether min_peers could ever train
    paused_at_s: float | None = None  # since when fewer than min_peers can train
    paused_s: float = 0.0  # total of the earlier pauses
    held_back: str = ""  # why no VM is requested although slots wait
    seed: str = ""  # the VM chosen to start the swarm, until it is lost
    zones: tuple[Zone, ...] = ()  # zones that refused, sorted by market
    requested_s: tuple[float, ...] = ()  # request times in the minute before the last one
    replaced_s: tuple[float, ...] = ()  # replacement times in the hour before the last one
    checkpoint_epoch: int = 0  # the newest state that was stored, or that a peer began from; 0: none
    checkpoint_notes: frozenset[tuple[str, str, str]] = frozenset()  # (kind, VM, key) of those in the journal
    # From the last bill; computed again after a restart. None: not yet known.
    spent_usd: Decimal | None = field(default=None, compare=False)
    burn_usd_per_h: Decimal | None = field(default=None, compare=False)
    egress_usd_per_h: Decimal | None = field(default=None, compare=False)
    # The indexes that `machine.advance` built for this state; a cache only.
    index: object = field(default=None, compare=False, repr=False)

    @property
    def paused(self) -> bool:
        """Whether the peers must wait for others."""
        return self.paused_at_s is not None

    def slot(self, name: str) -> Slot:
        """The slot of this name. Raises KeyError."""
        for slot in self.slots:
            if slot.name == name:
                return slot
        raise KeyError(name)

    def slot_spec(self, name: str) -> SlotSpec:
        """The specification of the slot of this name. Raises KeyError."""
        for spec in self.spec.slots:
            if spec.name == name:
                return spec
        raise KeyError(name)

    def vm_name(self, slot: Slot) -> str:
        """The name of the slot's VM of this generation; never reused."""
        return f"{self.spec.run_id}-{slot.name}-{slot.generation}"

    def monitor_vm(self, lost: int | None = None) -> str:
        """The name of the current monitor's VM, or of the one after `lost` losses; never reused."""
        number = self.monitors_lost if lost is None else lost
        return f"{MONITOR}-{number}" if number else MONITOR

    def monitor_vms(self) -> tuple[str, ...]:
        """The names of all monitors this run has had."""
        return tuple(self.monitor_vm(n) for n in range(self.monitors_lost + 1))

    def maddrs(self) -> tuple[str, ...]:
        """Addresses of the peers that can be joined now."""
        up = (s for s in self.slots if s.maddr and s.vm and s.state in LIVE and s.phase != "leaving")
        return tuple(s.maddr for s in up)
