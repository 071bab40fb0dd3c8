"""Record types: every measurement is stored as one of these flat, frozen rows.

Units are in the field names. `at_s`, `began_s`, `ended_s` are unix seconds (for the timeline);
durations come from one monotonic clock per process. All values are raw. `metrics.epochs.scaling` is
the only place that converts them to full scale.
"""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from enum import StrEnum

__all__ = [
    "CHECKPOINTS",
    "CHECKPOINT_FAILED",
    "CHECKPOINT_RESTORED",
    "CHECKPOINT_STORED",
    "COVERAGE_END",
    "COVERAGE_SIZE",
    "COVERAGE_USED",
    "NO_EPOCH",
    "OUT_OF_SYNC",
    "PHASES",
    "SWARM_LOST",
    "TABLES",
    "CoverageRecord",
    "EgressRecord",
    "EpochRecord",
    "EventRecord",
    "IngressRecord",
    "InputBatchRecord",
    "InputOpRecord",
    "InputTraceRecord",
    "JoinRecord",
    "ProgressRecord",
    "StepRecord",
    "SwarmEpochRecord",
    "UtilisationRecord",
    "VmEnd",
    "VmRecord",
    "end_cause",
    "end_of",
    "fell_out_of_sync",
]

PHASES = ("load", "move", "forward", "backward", "optimizer_local", "optimizer_sync", "other")
OUT_OF_SYNC = (
    "out of sync"  # code of a reason in EpochRecord.dropped: the peer reloaded the state from others
)
# EventRecord.kind: every peer that trained was lost, and with them the model's state.
SWARM_LOST = "swarm_lost"
# EventRecord.kind: what a peer reported about checkpoints; `data_json` is its entry (`metrics.events.checkpoints`).
CHECKPOINT_STORED, CHECKPOINT_RESTORED = "checkpoint_stored", "checkpoint_restored"
CHECKPOINT_FAILED = "checkpoint_failed"
CHECKPOINTS = (CHECKPOINT_STORED, CHECKPOINT_RESTORED, CHECKPOINT_FAILED)
# CoverageRecord.what
COVERAGE_USED, COVERAGE_SIZE, COVERAGE_END = "used", "size", "end"


@dataclass(frozen=True, slots=True)
class EventRecord:
    """One entry of the controller's journal, the `events` table."""

    seq: int
    at_s: float
    kind: str  # e.g. "run_created", "intent", "requested", "observed", "transition", "run_ended"
    slot: str  # "" if the entry is about the whole run
    generation: int  # -1 if the entry is about the whole run
    vm: str
    from_state: str
    to_state: str
    cause: str
    data_json: str  # what a restarted controller needs to restore its state


def fell_out_of_sync(dropped: str) -> bool:
    """Whether `EpochRecord.dropped`, reasons "<code>: <detail>" joined by ";", has one with the code OUT_OF_SYNC."""
    return any(reason.partition(":")[0] == OUT_OF_SYNC for reason in dropped.split(";"))


class VmEnd(StrEnum):
    """Why a VM ended. `VmRecord.end_cause` begins with this code."""

    PREEMPTED = "preempted"
    TERMINATED = "terminated"
    FAILED = "failed"
    UNLISTED = "no longer listed by the provider"
    NEVER_LISTED = "never listed by the provider"


def end_cause(end: VmEnd, detail: str = "") -> str:
    """Return the text of `VmRecord.end_cause`: the code, and the detail after a colon."""
    return f"{end}: {detail}" if detail else str(end)


def end_of(text: str) -> VmEnd | None:
    """Return the code of an `end_cause`, or None if the text has none."""
    code = text.partition(":")[0]
    return next((end for end in VmEnd if end == code), None)


@dataclass(frozen=True, slots=True)
class VmRecord:
    """One VM. It is billed from request to end."""

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
    end_cause: str  # in the format of `end_cause`; "": still running, or unknown

    @property
    def end(self) -> VmEnd | None:
        """The code of `end_cause`. None: still running, or unknown."""
        return end_of(self.end_cause)


@dataclass(frozen=True, slots=True)
class ProgressRecord:
    """Progress of one peer, or of the whole swarm (vm = ""), as read from the DHT."""

    at_s: float
    vm: str
    epoch: int
    samples: int
    sps: float
    peers: int
    eta_s: float | None


@dataclass(frozen=True, slots=True)
class EpochRecord:
    """One peer's hivemind epoch.

    calc_s + optimizer_sync_s = wall time of the epoch on this peer's clock, without pauses. If communication does not
    overlap with calculation, comm_s = optimizer_sync_s.
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
    comm_s: float  # wall time of the round, overlapped with calculation or not
    loss: float | None  # None: not a finite number (training diverged)
    group_size: int  # peers that averaged together in this round; 1: this peer alone
    dropped: str  # "" or why part of the round was lost ("received 43 %", "local gradients", ...), ";"-joined
    ran: str  # the network that was actually trained: "digits (emulates ConvNextLarge on T4)" or "ConvNextLarge"

    @property
    def overlapped_s(self) -> float:
        """Seconds of the round during which the peer calculated (`swarm.overlap`)."""
        return max(0.0, self.comm_s - self.optimizer_sync_s)


@dataclass(frozen=True, slots=True)
class EgressRecord:
    """IP bytes, headers and retransmissions included, that a VM sent to one address in one phase of an epoch.

    The phase "joining" is before the VM's first epoch, "leaving" after its last one (`epoch` is that one, 0 if it ended
    none).
    """

    vm: str
    epoch: int
    dst_address: str
    phase: str  # "settling" (calculating while others still fetch parts of the last round), "calc", "comm", "joining", "leaving"
    seconds: float  # wall time of that phase, for the rate of control traffic
    bytes: int
    # Payload that the peer's program passed to the socket for that address: gradients and state, without headers and
    # metadata. Counted separately from the kernel's bytes, all of it in the phase "comm" (and "leaving"). None: not counted.
    model_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class IngressRecord:
    """Bytes of training data that a VM read in one epoch, by source."""

    vm: str
    epoch: int
    network_bytes: int
    cache_bytes: int


@dataclass(frozen=True, slots=True)
class StepRecord:
    """One training step of a peer. The phases add up to wall_s by construction."""

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
    """One hivemind epoch of the whole swarm, as logged by the paper's monitor.

    Our own runs have none: their epochs are derived from the peers' records.
    """

    epoch: int  # the epoch that this record ends, counted as in EpochRecord
    ended_s: float
    duration_s: float | None  # the monitor's wall time since the end of the previous epoch; None: not logged
    samples: int  # of all peers
    sps: float | None  # the rate that the monitor logged; 0: nothing was trained, the epoch does not count


@dataclass(frozen=True, slots=True)
class JoinRecord:
    """How one VM's peer joined the swarm."""

    vm: str
    at_s: float  # when it began to train
    state_s: float  # wall seconds of the download of the swarm's state; 0: it began with the others
    state_bytes: (
        int | None
    )  # weights, optimizer statistics and averaged gradients received; None: not measured
    from_epoch: int  # the epoch of the downloaded state; 0: it began with the others
    donor: str | None = None  # the VM that sent the state; "": nothing was downloaded; None: not reported
    resumed: int | None = None  # how often an interrupted download was resumed; None: not reported


@dataclass(frozen=True, slots=True)
class UtilisationRecord:
    """How busy a VM was over some seconds, from one reading a second. None: not readable there, never 0.

    A mean is over the whole time, a peak is the highest value between two readings. Values are those of this machine's
    clock and network: raw, and in an emulated run smaller by its scales.
    """

    vm: str
    began_s: float
    wall_s: float
    readings: int
    scope: str  # what CPU and memory are of: "vm", or "peer": the peer's processes, as VMs share the machine
    cores: int  # of the machine
    cpu_mean: float | None = None  # share of all cores, 0 to 1
    cpu_peak: float | None = None
    memory_bytes: int | None = None  # highest
    memory_total_bytes: int | None = None  # of the machine
    # IP bytes and link headers through the interface of the default route; None where VMs share one.
    sent_bytes: int | None = None
    sent_peak_bytes_per_s: float | None = None
    received_bytes: int | None = None
    received_peak_bytes_per_s: float | None = None
    gpus: int | None = None  # None: no NVML, or VMs share the machine
    gpu_mean: float | None = None  # share of the time in which a kernel ran, mean over the VM's GPUs, 0 to 1
    gpu_peak: float | None = None
    gpu_memory_bytes: int | None = None  # highest, sum over the VM's GPUs
    gpu_memory_total_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class CoverageRecord:
    """Samples of the training data that a peer used, counted as in `metrics.coverage`. Raw.

    `what`: "used": samples `first` up to before `end` of `shard`, in the reading order of pass `pass_number` (the same on
    every peer), were handed to accelerator steps that ended. "size": `shard` contains `end` samples. "end": the peer used
    nothing after its earlier reports. Fields that a kind does not need are 0.
    """

    vm: str
    number: int  # of the VM's reports, from 0 without gaps
    what: str
    pass_number: int  # over the slot's share, from 0
    shard: int  # in the sorted list of the experiment's shards, from 0
    first: int
    end: int


NO_EPOCH = 0
"""`epoch` of input sums that are in none of their VM's recorded epochs: of samples read before the first or after the last."""


@dataclass(frozen=True, slots=True)
class InputOpRecord:
    """Sums over the traced operations `op` that began in one epoch of a VM (`data.trace: ops`), as measured."""

    vm: str
    epoch: int  # NO_EPOCH: in none
    op: str
    n: int  # samples
    wall_s: float
    cpu_s: float | None  # of the threads; None: unknown for a sample
    bytes_out: int | None  # of the samples after the operation; None: unknown for a sample


@dataclass(frozen=True, slots=True)
class InputBatchRecord:
    """Sums over the traced batches that the training used in one epoch of a VM (`data.trace`), as measured.

    A sum is None if a part of it is unknown.
    """

    vm: str
    epoch: int  # NO_EPOCH: in none
    n: int
    samples: int | None
    fetch_s: float | None  # operations included
    collate_s: float | None
    wait_s: float | None  # for which the training waited
    delay_s: float | None  # for which ready batches waited for the training
    out_of_order: int | None  # arrived while one with a lower number was outstanding
    dropped: (
        int | None
    )  # events; 0: none until the end of the epoch; None: some, of unknown epochs (see InputTraceRecord)


@dataclass(frozen=True, slots=True)
class InputTraceRecord:
    """Files of a VM's trace from which its sums were computed."""

    vm: str
    files: int
    damaged: int  # of them damaged or cut, and so read in part or not at all
    dropped: int  # events that full buffers did not hold


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
    "utilisation": UtilisationRecord,
    "coverage": CoverageRecord,
    "input_ops": InputOpRecord,
    "input_batches": InputBatchRecord,
    "input_traces": InputTraceRecord,
}
