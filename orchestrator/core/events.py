"""Events of a run, each with the time at which it was observed, and the instructions that follow from them."""

from __future__ import annotations

from dataclasses import dataclass, field
from decimal import Decimal
from typing import Literal

from orchestrator.core.until import Trained as Trained

MONITOR = "monitor"  # name of the first monitor's VM and of its folder; the next one is "monitor-1"

Refusal = Literal["no_capacity", "quota", "credentials", "invalid", "transient", "ambiguous"]


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed: reconsider everything. Only a tick (and a stray VM) produces instructions."""

    now_s: float


@dataclass(frozen=True, slots=True)
class Requested:
    """The provider accepted the request for a VM."""

    now_s: float
    vm: str


@dataclass(frozen=True, slots=True)
class OfferRefused:
    """The provider refused a request, or did not answer it ("ambiguous")."""

    now_s: float
    vm: str
    kind: Refusal
    reason: str


@dataclass(frozen=True, slots=True)
class Observed:
    """One VM as reported by the provider, with the status of its program. Equality ignores `now_s`."""

    now_s: float = field(compare=False)
    vm: str
    state: Literal["pending", "running", "preempted", "failed", "terminated"]
    phase: str = ""  # of status.json
    maddr: str = ""
    address: str = ""
    cause: str = ""
    unrecoverable: bool = (
        False  # its program failed, and reports that any other VM would fail in the same way
    )
    ended: bool = False  # the provider reported its end: it is no longer billed
    notice_at_s: float | None = None  # time of the preemption that the provider or its program announced


@dataclass(frozen=True, slots=True)
class Missing:
    """The provider has not listed a VM for longer than its lists may lag."""

    now_s: float
    vm: str


@dataclass(frozen=True, slots=True)
class Silent:
    """A training peer has not been seen in the DHT for the deadline."""

    now_s: float
    vm: str
    for_s: float


@dataclass(frozen=True, slots=True)
class Spending:
    """Dollars so far, per hour for VMs, and per hour for traffic, at full scale; None: unknown."""

    now_s: float
    spent_usd: Decimal | None
    burn_usd_per_h: Decimal | None
    egress_usd_per_h: Decimal | None = Decimal(0)


@dataclass(frozen=True, slots=True)
class StopWanted:
    """The run should end with status "stopped", "failed" or "budget"."""

    now_s: float
    status: str
    cause: str


@dataclass(frozen=True, slots=True)
class RunComplete:
    """Everything to be measured is in the store."""

    now_s: float


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A peer reported a checkpoint. Repeated reports of one are one note in the journal."""

    now_s: float
    vm: str
    kind: str  # one of metrics.records.CHECKPOINTS
    key: str  # what makes it unique among the reports of this kind and VM: its name; of a failure, its number
    epoch: int | None  # of the state; None: nothing was stored
    cause: str  # the note's sentence
    data_json: str  # the peer's entry


@dataclass(frozen=True, slots=True)
class Finished:
    """The slot's peer, which is lost or about to be, has trained the last epoch, and the run needs no other."""

    now_s: float
    vm: str
    slot: str


Event = (
    Tick
    | Requested
    | OfferRefused
    | Observed
    | Missing
    | Silent
    | Spending
    | Trained
    | StopWanted
    | RunComplete
    | Checkpoint
    | Finished
)


@dataclass(frozen=True, slots=True)
class Fact:
    """One row of the journal without its number and time; on the disk before any instruction is executed."""

    kind: str
    slot: str
    generation: int
    vm: str
    from_state: str
    to_state: str
    cause: str
    data_json: str


@dataclass(frozen=True, slots=True)
class RequestVm:
    """Request a slot's VM. Idempotent: repeated requests of one name give one VM."""

    vm: str
    slot: str
    generation: int
    place: int
    initial_peers: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TerminateVm:
    """Terminate a VM. Idempotent."""

    vm: str
    cause: str


@dataclass(frozen=True, slots=True)
class StartMonitor:
    """Start the node that monitors the swarm. Idempotent: repeated requests of one name give one node."""

    vm: str
    initial_peers: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class EndRun:
    """Nothing of the run is left: collect logs, close the provider, write the final status."""

    status: str
    cause: str


Instruction = RequestVm | TerminateVm | StartMonitor | EndRun
