"""What a run's controller knows: the slots wished for, what became of each, and how the run stands."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from enum import StrEnum
from typing import Literal

from orchestrator.core.events import MONITOR

__all__ = [
    "LIVE",
    "OVER",
    "Place",
    "Policy",
    "Replace",
    "RunSpec",
    "RunState",
    "Slot",
    "SlotSpec",
    "SlotState",
]

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
class RunSpec:
    """All the core is told of a run. Times in wall seconds."""

    run_id: str
    slots: tuple[SlotSpec, ...]
    budget_usd: Decimal | None = None
    boot_deadline_s: float = 300.0  # request accepted to program started
    join_deadline_s: float = 300.0  # program started to the peer being ready
    silent_deadline_s: float = 120.0  # a training peer nobody has seen in the DHT
    missing_deadline_s: float = 30.0  # a VM the provider does not list is lost only after this
    straggler_s: float = 90.0  # the others may still finish so long after the first peer is done
    drain_s: float = 15.0  # for the monitor to read the last records
    reserve_s: float = 30.0  # what termination itself takes, for the budget
    max_monitor_restarts: int = 5
    monitor_backoff_s: float = 1.0  # 0, 1, 3, 7 ... times this after each monitor's death


@dataclass(frozen=True, slots=True)
class Slot:
    """One slot now. Every change of it is one row of the journal."""

    name: str
    state: SlotState = SlotState.WAITING
    generation: int = 0  # of its VM, or of its next one while it waits
    place: int = 0
    vm: str = ""  # its VM; "" when it has none
    ending: str = ""  # a VM that must be gone before another is requested
    confirmed: bool = False  # the provider is known to have taken the request
    ambiguous: bool = False  # a request got no answer: the VM may exist
    since_s: float = 0.0  # when it came into this state
    retry_at_s: float = 0.0  # not before this is anything (again) requested
    phase: str = ""  # the peer's own
    maddr: str = ""
    address: str = ""
    lost: int = 0  # VMs lost so far
    refusals: int = 0  # in a row
    cause: str = ""


@dataclass(frozen=True, slots=True)
class RunState:
    """A run now: a pure function of its journal."""

    spec: RunSpec
    slots: tuple[Slot, ...]
    intents: frozenset[str] = frozenset()  # every VM ever wished for: no other may exist
    monitor: Literal["absent", "wanted", "up", "ending", "gone"] = "absent"
    monitors_lost: int = 0
    monitor_retry_at_s: float = 0.0  # no monitor is started before this
    monitor_cause: str = ""  # why the last one was lost
    finishing_s: float | None = None  # all peers are over; the last records are being read
    stop_status: str = ""  # "" while the run goes on
    stop_cause: str = ""
    ended: bool = False

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
        return tuple(s.maddr for s in self.slots if s.maddr and s.vm and s.state in LIVE)
