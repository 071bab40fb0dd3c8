"""Meta of a run: the table `meta` of run.db as one frozen record. Pure.

Every key is defined here; docs/design.md lists the names. A key that is absent or null has the field's default, because
runs of older versions lack keys. Values are the stored JSON, except for objects that have their own record here. Unknown
keys are kept in `source` and written back.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cache
from typing import Any, ClassVar, Self, get_args, get_type_hints


@dataclass(frozen=True, slots=True, kw_only=True)
class JsonRecord:
    """A record stored as one JSON object."""

    source: Mapping[str, Any] | None = field(default=None, repr=False, compare=False)
    """The object it was read from, unknown keys and nulls included. None for a new record."""

    ALWAYS: ClassVar[frozenset[str] | None] = None
    """Keys that a new record writes even if they have their default. None: all."""

    @classmethod
    def key_names(cls) -> tuple[str, ...]:
        """Return the keys that have a field."""
        return tuple(_fields(cls))

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        """Read an object. A key that is absent or null gets its default."""
        known = ((key, kind, values.get(key)) for key, kind in _fields(cls).items())
        given = {k: v if kind is None else kind.from_json(v) for k, kind, v in known if v is not None}
        return cls(source=values, **given)

    def to_json(self) -> dict[str, Any]:
        """Return the JSON object. For a record that was read: the source object, updated with the changed fields."""
        always = () if self.source is not None else self.key_names() if self.ALWAYS is None else self.ALWAYS
        source = self.source or {}
        before = self.from_json(source)
        values = {key: getattr(self, key) for key in self.key_names()}
        changed = {k: v for k, v in values.items() if k in always or v != getattr(before, k)}
        return {**source, **{k: v.to_json() if isinstance(v, JsonRecord) else v for k, v in changed.items()}}


@cache
def _fields(record: type[JsonRecord]) -> dict[str, type[JsonRecord] | None]:
    """Return the keys of a record, each with the record type of its value, or None."""
    hints = get_type_hints(record)
    found: dict[str, type[JsonRecord] | None] = {}
    for name in (f.name for f in fields(record) if f.name != "source"):
        kinds = (kind for kind in get_args(hints[name]) if isinstance(kind, type))
        found[name] = next((kind for kind in kinds if issubclass(kind, JsonRecord)), None)
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class RunScales(JsonRecord):
    """Factors by which a run was scaled down; 1: not scaled. `metrics.epochs.scaling.Scales` validates them."""

    bytes: float = 1.0
    time: float = 1.0
    samples: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class EmulationMeta(JsonRecord):
    """The fields of the resolved emulation (`experiments.emulation.scales.EmulationPlan`) that a run needs.

    Raw: in this machine's time and sizes. The other fields of the plan are in `source`.
    """

    time_scale: float = 1.0
    raw_target_batch_size: int | None = None  # samples
    parameters: int | None = None  # to average, after the bytes scale
    part_size_bytes: int | None = None  # raw
    matrices: Sequence[
        Sequence[int]
    ] = ()  # [rows, columns] of the matrices in the ballast; the rest is vectors
    coalesce: Mapping[str, int] | int = 1  # steps reported as one, by accelerator; older runs: one for all
    comm_s: float | None = None  # expected communication of an epoch, raw
    epoch_s: float | None = None  # expected duration of an epoch, raw; None: its steps were never measured
    study_epoch_s: float | None = None  # the same at full scale
    # How long a step took: "padded" to the accelerator's time, as long as this "host" needed, or on the "real" accelerator.
    accelerators: str = "padded"

    def steps_per_report(self, accelerator: str) -> int:
        """Return the number of accelerator steps that a peer reports as one."""
        steps = self.coalesce
        return int(steps.get(accelerator, 1) if isinstance(steps, Mapping) else steps)


@dataclass(frozen=True, slots=True, kw_only=True)
class PriceBookMeta(JsonRecord):
    """The complete price book of the launch."""

    name: str | None = None
    sha256: str | None = None  # hex, of the text
    csv: str | None = None  # the text


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelMeta(JsonRecord):
    """The requested model, and what was trained in its place."""

    ALWAYS = frozenset({"name", "parameters", "bytes_per_sample", "ran"})

    name: str | None = None
    parameters: int | None = None
    bytes_per_sample: float | None = None  # of its data set at full scale
    ran: str | None = None  # description of what was trained
    sha256: str | None = None  # of a task: its code, requirements and settings


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkMeta(JsonRecord):
    """Limits of the streams between VMs."""

    tuning: str | None = None  # the YAML key `network_tuning`
    windows: str | None = None  # "paced" or "kernel"; "": no emulated network
    window_bytes: float | None = None  # kernel: TCP window of a stream at full scale; None: no limit


@dataclass(frozen=True, slots=True, kw_only=True)
class EgressCeiling(JsonRecord):
    """The plan's ceiling for the traffic of one epoch."""

    usd: str = "0"  # Decimal; at full scale
    raw_epoch_s: float = 1.0  # expected seconds of an epoch on this machine


@dataclass(frozen=True, slots=True, kw_only=True)
class HostMeta(JsonRecord):
    """Whether the host was fast enough for the emulation's timing (`metrics.host_load`)."""

    contended: bool | None = None  # too busy; None: unknown
    reasons: Sequence[str] = ()  # why it was too busy
    basis: str | None = None  # the seconds that count: "measured epochs ..." or "whole run ..."
    late_worst_s: float | None = None  # the largest delay of a packet
    late_over_10ms_share: float | None = None  # share of all packets
    sleep_worst_s: float | None = None  # the most that a sleep took longer than requested
    pressure_share: float | None = None  # share of the time in which some task waited for a CPU
    busy_share: float | None = None  # utilisation of all cores
    stretched_share: float | None = None  # share by which padded steps took longer than requested


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportedMeta(JsonRecord):
    """What an importer recorded about the imported logs. None: not recorded."""

    kind: str | None = None  # format of the logs: "wandb"
    baseline: bool = False  # a single VM without a swarm
    files: Sequence[Mapping[str, Any]] | None = None  # {file, role, host, rows, sha256}
    monitor: bool | None = None  # whether there is a monitor's log
    monitor_period_s: float | None = None
    monitor_peers: int | None = None
    sync: Mapping[str, Mapping[str, Any]] | None = None  # by VM: how the synchronising steps were found
    # By VM: bytes and seconds of the whole log, raw and halved.
    nic: Mapping[str, Mapping[str, Any]] | None = None
    zero_rate_epochs: Sequence[int] | None = None  # epochs for which the monitor logged no rate
    # [epoch, samples/s] of each record that ended an epoch.
    epoch_rates: Sequence[tuple[int | None, float | None]] | None = None
    clock: Mapping[str, Mapping[str, Any]] | None = None  # by VM: steps, timed_s, wall_s, jumps
    missing_columns: Mapping[str, Sequence[str]] | None = None  # by VM
    egress_destinations: str | None = None  # description of how bytes were split among the other VMs


@dataclass(frozen=True, slots=True, kw_only=True)
class RunMeta(JsonRecord):
    """All keys of a run's meta. Times are unix seconds of the run's clock.

    Keys are written at launch unless stated otherwise.
    """

    ALWAYS = frozenset({"error", "addresses", "locations", "warnings", "published", "egress_ceiling", "warmup_epochs",
                        "epochs", "sync_work_s", "metrics_address"})  # fmt: skip

    # what was launched
    run_id: str | None = None
    label: str | None = None  # imported runs: the paper's name of the run
    experiment: Mapping[str, Any] | str | None = None  # the resolved YAML document; imported runs: a name
    plan: Mapping[str, Any] | None = None  # as in `orch plan -o json`
    published: Mapping[str, Any] | None = None  # the paper's figures of this experiment
    versions: Mapping[str, str] | None = None  # of Python and the packages
    owner: str | None = None  # rented VMs: the value of their label orch-owner
    imported: ImportedMeta | None = None  # imported runs only

    # where it runs
    provider: str | None = None  # "module:callable", called with the run's folder
    target: str | None = None  # "local" (namespaces), "loopback" (no delays), "sky" (rented VMs), "imported"
    emulated: bool | None = None  # accelerators padded to measured step times
    emulation: EmulationMeta | None = None
    scales: RunScales | None = None
    network: NetworkMeta | None = None
    model: ModelMeta | None = None
    # By accelerator: the VM's own work before and after a round, s at full scale.
    sync_work_s: Mapping[str, float] = field(default_factory=dict[str, float])

    # how long it trains
    # The checkpoint of another run with which it began: {prefix, name, epoch, folder: a copy on this machine, or null}.
    start_from: Mapping[str, Any] | None = None
    warmup_epochs: int = 0  # the last epoch of the warm-up, which begins after that of `start_from`
    epochs: int = 0  # measured epochs, without the warm-up
    last_epoch: int | None = None  # written by the controller when it ends a run before these epochs
    ended_by: str | None = None  # why: the goal of `train.until` that was reached first
    target_batch_size: int | None = None  # samples, full scale
    raw_target_batch_size: int | None = None  # samples on this machine
    training_shards: int | None = None  # distinct ones of `data.shards`; None: an older or an imported run

    # money
    price_book: PriceBookMeta | None = None
    egress_ceiling: EgressCeiling | None = None  # None: unknown
    dataset_bytes: int | None = None  # stored for this run only; no launch writes it
    # Written by the controller. By VM: [until unix s, "USD per hour"].
    price_changes: Mapping[str, Sequence[Sequence[Any]]] = field(
        default_factory=dict[str, Sequence[Sequence[Any]]]
    )

    # the controller's deadlines, seconds; written for rented VMs only
    request_deadline_s: float = 120.0
    observe_deadline_s: float = 30.0
    observe_period_s: float = 0.0  # between two listings of the VMs
    terminate_deadline_s: float = 60.0
    close_deadline_s: float = 120.0
    max_life_s: float | None = None  # a rented VM shuts itself down after this time
    max_parallel_calls: int = 8  # to the provider
    metrics_address: str = "off"  # ORCH_METRICS_ADDRESS

    # how it went: written by the controller
    status: str | None = None  # "running", "done", "failed", "stopped", "budget", "no_capacity"
    error: str | None = None  # why the status is not "done", or ""
    started_s: float | None = None
    ended_s: float | None = None
    clock_s: float = (
        0.0  # the run's clock, at most 30 s before the controller's last tick; 0: not yet written
    )
    listed_s: float | None = None  # time of the provider's last listing, as of clock_s
    warnings: Sequence[str] = ()  # sentences
    run_public_key: str | None = None  # of the key that signs the roster
    # Node by IP address; nodes are VM names, "store" and "monitor".
    addresses: Mapping[str, str] = field(default_factory=dict[str, str])
    locations: Mapping[str, str] = field(default_factory=dict[str, str])  # by node
    # By network: VM by IP address; "": two running VMs have the address.
    internal_addresses: Mapping[str, Mapping[str, str]] = field(default_factory=dict[str, Mapping[str, str]])
    # By VM: how far its clock is ahead of this machine's.
    clock_skew_s: Mapping[str, float] = field(default_factory=dict[str, float])
    # On held-out data: {vm, epoch, at_s, loss, accuracy, samples, metrics: {name: number}}; see metrics/events/evaluation.py.
    evaluations: Sequence[Mapping[str, Any]] = ()
    # Left-out samples by VM: {training: {count, first}, heldout: same}. None: unknown (no VM reported, or an older run).
    bad_samples: Mapping[str, Mapping[str, Mapping[str, Any]]] | None = None
    # Peers' warnings by VM, without what other records of the run say.
    peer_warnings: Mapping[str, Sequence[str]] = field(default_factory=dict[str, Sequence[str]])
    # Where each slot's last peer was in the data (experiments/wire/data_position.py).
    data_positions: Mapping[str, Mapping[str, Any]] = field(default_factory=dict[str, Mapping[str, Any]])
    # By slot, where its peers were at the ends of epochs: {vm, since, at} (experiments/wire/epoch_positions.py).
    epoch_positions: Mapping[str, Mapping[str, Any]] = field(default_factory=dict[str, Mapping[str, Any]])
    rejected: Mapping[str, int] = field(
        default_factory=dict[str, int]
    )  # rejected records of peers, by reason
    monitor_unread_lines: int = 0  # lines of monitor.jsonl that could not be read
    prometheus: Mapping[str, float] = field(default_factory=dict[str, float])  # last value of each counter
    switch: Mapping[str, Any] | None = None  # the emulated switch's last report (switch.json), at the end
    host: HostMeta | None = None  # at the end of an emulated run

    @property
    def document(self) -> dict[str, Any]:
        """The experiment's document. For an imported or unknown experiment it has only a `name`, which may be None."""
        known = self.experiment
        return dict(known) if isinstance(known, Mapping) else {"name": known}

    @property
    def start_epoch(self) -> int:
        """The last epoch that another run trained. 0: training began from scratch."""
        return 0 if self.start_from is None else int(self.start_from["epoch"])

    @property
    def host_contended(self) -> bool | None:
        """Whether the host was too busy. None: unknown."""
        return None if self.host is None else self.host.contended

    @property
    def logs(self) -> ImportedMeta:
        """The importer's record; all None for our own runs."""
        return self.imported or ImportedMeta()
