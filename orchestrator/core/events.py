"""What can happen to a run (events, with the time of noticing) and what is to be done (instructions)."""

from __future__ import annotations

from dataclasses import dataclass, field
from decimal import Decimal
from typing import Literal

MONITOR = "monitor"  # the name of the first monitor's VM, and of its folder; the next is "monitor-1"

Refusal = Literal["no_capacity", "quota", "credentials", "invalid", "transient", "ambiguous"]


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed: look at everything again. Only a tick (and a stray VM) makes instructions."""

    now_s: float


@dataclass(frozen=True, slots=True)
class Requested:
    """The provider took the request for a VM."""

    now_s: float
    vm: str


@dataclass(frozen=True, slots=True)
class OfferRefused:
    """The provider did not take it, or did not answer ("ambiguous")."""

    now_s: float
    vm: str
    kind: Refusal
    reason: str


@dataclass(frozen=True, slots=True)
class Observed:
    """What the provider says of one VM, with what its program says of itself. Equal when the same is said, whenever."""

    now_s: float = field(compare=False)
    vm: str
    state: Literal["pending", "running", "preempted", "failed", "terminated"]
    phase: str = ""  # of status.json
    maddr: str = ""
    address: str = ""
    cause: str = ""
    hopeless: bool = False  # its program failed, and says that another would fail in the same way
    ended: bool = False  # the provider says when it ended: nothing of it is billed any more
    notice_at_s: float | None = None  # the provider, or its program, said that it is taken back then


@dataclass(frozen=True, slots=True)
class Missing:
    """The provider does not list a VM it should know, for longer than its lists may lag."""

    now_s: float
    vm: str


@dataclass(frozen=True, slots=True)
class Silent:
    """A training peer was not seen in the DHT for the deadline."""

    now_s: float
    vm: str
    for_s: float


@dataclass(frozen=True, slots=True)
class Spending:
    """Dollars so far, per hour for VMs, per hour for traffic, at the study's scale; None: unknown."""

    now_s: float
    spent_usd: Decimal | None
    burn_usd_per_h: Decimal | None
    egress_usd_per_h: Decimal | None = Decimal(0)


@dataclass(frozen=True, slots=True)
class StopWanted:
    """The run is to end: status "stopped", "failed" or "budget"."""

    now_s: float
    status: str
    cause: str


@dataclass(frozen=True, slots=True)
class RunComplete:
    """All that was to be measured is in the store."""

    now_s: float


Event = Tick | Requested | OfferRefused | Observed | Missing | Silent | Spending | StopWanted | RunComplete


@dataclass(frozen=True, slots=True)
class Fact:
    """One row of the journal, but for its number and time: on the disk before any instruction is done."""

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
    """Request (or request again: the name makes it one VM) a slot's VM."""

    vm: str
    slot: str
    generation: int
    place: int
    initial_peers: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TerminateVm:
    """End a VM (again: ending twice is ending)."""

    vm: str
    cause: str


@dataclass(frozen=True, slots=True)
class StartMonitor:
    """Start the node that watches the swarm (again: the name makes it one node)."""

    vm: str
    initial_peers: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class EndRun:
    """Nothing of the run is left: collect, close the provider, write the final status."""

    status: str
    cause: str


Instruction = RequestVm | TerminateVm | StartMonitor | EndRun
