"""The record types: everything measured is one of these flat, frozen rows.

Units are in the field names. `at_s`, `began_s`, `ended_s` are unix seconds (for the timeline);
durations come from one monotonic clock per process. All values are raw: nothing here is
multiplied back to the study's scale (`metrics.epochs.scaling` does that, in one place).
"""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from enum import StrEnum

__all__ = [
    "OUT_OF_SYNC",
    "PHASES",
    "SWARM_LOST",
    "TABLES",
    "EgressRecord",
    "EpochRecord",
    "EventRecord",
    "IngressRecord",
    "JoinRecord",
    "ProgressRecord",
    "StepRecord",
    "SwarmEpochRecord",
    "VmEnd",
    "VmRecord",
    "end_cause",
    "end_of",
    "fell_out_of_sync",
]

PHASES = ("load", "move", "forward", "backward", "optimizer_local", "optimizer_sync", "other")
SWARM_LOST = (
    "swarm_lost"  # EventRecord.kind: every peer that trained is lost, and with them the model's state
)
OUT_OF_SYNC = "out of sync"  # the code of a reason in EpochRecord.dropped: the peer loaded the state again


@dataclass(frozen=True, slots=True)
class EventRecord:
    """One fact of the control plane; the `events` table is the controller's journal."""

    seq: int
    at_s: float
    kind: str  # e.g. "run_created", "intent", "requested", "observed", "transition", "run_ended"
    slot: str  # "" for a fact of the whole run
    generation: int  # -1 for a fact of the whole run
    vm: str
    from_state: str
    to_state: str
    cause: str
    data_json: str  # what a restarted controller needs to rebuild itself


def fell_out_of_sync(dropped: str) -> bool:
    """Whether `EpochRecord.dropped` has the reason with the code OUT_OF_SYNC: "<code>: <words>", ";"-joined."""
    return any(reason.partition(":")[0] == OUT_OF_SYNC for reason in dropped.split(";"))


class VmEnd(StrEnum):
    """Why a VM ended: the code that `VmRecord.end_cause` begins with."""

    PREEMPTED = "preempted"
    TERMINATED = "terminated"
    FAILED = "failed"
    UNLISTED = "no longer listed by the provider"
    NEVER_LISTED = "never listed by the provider"


def end_cause(end: VmEnd, detail: str = "") -> str:
    """The text of `VmRecord.end_cause`: a code, and after a colon what a person may want to know."""
    return f"{end}: {detail}" if detail else str(end)


def end_of(text: str) -> VmEnd | None:
    """The code of an `end_cause`; None where the text has none."""
    code = text.partition(":")[0]
    return next((end for end in VmEnd if end == code), None)


@dataclass(frozen=True, slots=True)
class VmRecord:
    """One VM, billed from request to end."""

    vm: str
    slot: str
    generation: int
    location: str  # "gcp/us-central1/us-central1-a"
    instance: str
    accelerator: str
    use_spot: bool
    usd_per_h: Decimal | None
    price_source: str
    address: str
    requested_s: float
    ready_s: float | None
    ended_s: float | None
    end_cause: str  # "": it lives, or nobody knows; else as `end_cause` writes it

    @property
    def end(self) -> VmEnd | None:
        """The code of `end_cause`; None: it lives, or nobody knows."""
        return end_of(self.end_cause)


@dataclass(frozen=True, slots=True)
class ProgressRecord:
    """One scrape of the DHT for one peer, or for the whole swarm (vm = "")."""

    at_s: float
    vm: str
    epoch: int
    samples: int
    sps: float
    peers: int
    eta_s: float | None


@dataclass(frozen=True, slots=True)
class EpochRecord:
    """One peer's hivemind epoch. calc_s + optimizer_sync_s = wall time of the epoch on this peer's clock, pauses left out.

    Where communication is not overlapped with calculation, comm_s = optimizer_sync_s.
    """

    vm: str
    epoch: int  # the epoch that this record ends: 1 is the first averaging (the warm-up)
    began_s: float
    ended_s: float
    steps: int
    samples: int  # this peer's own samples in the epoch
    load_s: float
    move_s: float
    forward_s: float
    backward_s: float
    optimizer_local_s: float
    optimizer_sync_s: float
    other_s: float
    calc_s: float  # wall time outside the synchronising optimizer step
    comm_s: float  # wall time of the round, behind calculation or not
    loss: float | None  # None: not a finite number (training diverged)
    group_size: int  # peers that averaged together in this round; 1: nobody else was there
    dropped: str  # "" or why part of the round was lost ("received 43 %", "local gradients", ...), ";"-joined
    ran: str  # the network that really ran: "digits (emulates ConvNextLarge on T4)" or "ConvNextLarge"

    @property
    def overlapped_s(self) -> float:
        """Seconds of the round in which the peer calculated (`swarm.overlap`)."""
        return max(0.0, self.comm_s - self.optimizer_sync_s)


@dataclass(frozen=True, slots=True)
class EgressRecord:
    """IP bytes (headers and retransmissions included) a VM sent to one address in one epoch's phase.

    "joining": before its first epoch; "leaving": after the last one (its own, 0: it ended none).
    """

    vm: str
    epoch: int
    dst_address: str
    phase: str  # "settling" (calculating, but others still fetch the last round's parts), "calc", "comm", "joining" or "leaving"
    seconds: float  # wall time of that phase, for the rate of control traffic
    bytes: int
    # What the peer's program handed over for that address: gradients and state, without headers or what says what they are.
    # A ledger of its own beside the kernel's, whole in the phase "comm" (and "leaving"); None: nobody counted.
    model_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class IngressRecord:
    """Bytes of training data a VM read in one epoch, by where they came from."""

    vm: str
    epoch: int
    network_bytes: int
    cache_bytes: int


@dataclass(frozen=True, slots=True)
class StepRecord:
    """One training step of a peer; the phases add up to wall_s by construction."""

    vm: str
    step: int
    epoch: int
    began_s: float
    wall_s: float
    load_s: float
    move_s: float
    forward_s: float
    backward_s: float
    optimizer_local_s: float
    optimizer_sync_s: float
    other_s: float
    samples: int


@dataclass(frozen=True, slots=True)
class SwarmEpochRecord:
    """One hivemind epoch as a watcher of the whole swarm logged it (the study's monitor).

    Our own runs have none: their epochs follow from the peers' records.
    """

    epoch: int  # the epoch that this record ends, counted as in EpochRecord
    ended_s: float
    duration_s: float | None  # the watcher's wall time since the end of the one before; None: not logged
    samples: int  # of all peers
    sps: float | None  # the rate as the watcher logged it; 0: nothing was trained, the epoch does not count


@dataclass(frozen=True, slots=True)
class JoinRecord:
    """How one VM's peer came to its first training step."""

    vm: str
    at_s: float  # when it began to train
    state_s: float  # wall seconds of the download of the swarm's state; 0: it began with the others
    state_bytes: int | None  # of weights, statistics and averaged gradients that arrived; None: not measured
    from_epoch: int  # the epoch it took over; 0: it began with the others
    donor: str | None = None  # the VM that gave it; "": nothing was downloaded; None: not said
    resumed: int | None = None  # how often a cut download went on where it was; None: not said


TABLES = {
    "events": EventRecord,
    "vms": VmRecord,
    "progress": ProgressRecord,
    "epochs": EpochRecord,
    "egress": EgressRecord,
    "ingress": IngressRecord,
    "steps": StepRecord,
    "swarm_epochs": SwarmEpochRecord,
    "joins": JoinRecord,
}
