"""What a run keeps beside its records: the table `meta` of run.db as one frozen record. Pure.

This is the one place that says what each key is; docs/design.md lists their names. A key that is absent or null has the
field's default: runs of older versions lack keys. Values are JSON as it is stored, except for the objects that have a
record of their own here. Keys that no field is of are kept in `source` and written again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cache
from typing import Any, ClassVar, Self, get_args, get_type_hints


@dataclass(frozen=True, slots=True, kw_only=True)
class JsonRecord:
    """A record that is one JSON object."""

    source: Mapping[str, Any] | None = field(default=None, repr=False, compare=False)
    """The object it was read from, unknown keys and nulls included; None for a record made here."""

    ALWAYS: ClassVar[frozenset[str] | None] = None
    """The keys that a record made here has even where they have their default; None: all."""

    @classmethod
    def key_names(cls) -> tuple[str, ...]:
        """The keys that have a field."""
        return tuple(_fields(cls))

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        """Read the object. A key that is absent or null has its default."""
        known = ((key, kind, values.get(key)) for key, kind in _fields(cls).items())
        given = {k: v if kind is None else kind.from_json(v) for k, kind, v in known if v is not None}
        return cls(source=values, **given)

    def to_json(self) -> dict[str, Any]:
        """The object with this record's values.

        A record that was read gives what it was read from, with the fields that were changed since.
        """
        always = () if self.source is not None else self.key_names() if self.ALWAYS is None else self.ALWAYS
        source = self.source or {}
        before = self.from_json(source)
        values = {key: getattr(self, key) for key in self.key_names()}
        changed = {k: v for k, v in values.items() if k in always or v != getattr(before, k)}
        return {**source, **{k: v.to_json() if isinstance(v, JsonRecord) else v for k, v in changed.items()}}


@cache
def _fields(record: type[JsonRecord]) -> dict[str, type[JsonRecord] | None]:
    """The keys of a record, each with the record that its value is, if it is one."""
    hints = get_type_hints(record)
    found: dict[str, type[JsonRecord] | None] = {}
    for name in (f.name for f in fields(record) if f.name != "source"):
        kinds = (kind for kind in get_args(hints[name]) if isinstance(kind, type))
        found[name] = next((kind for kind in kinds if issubclass(kind, JsonRecord)), None)
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class RunScales(JsonRecord):
    """By how much a run was shrunk; 1: not at all. `metrics.epochs.scaling.Scales` checks them."""

    bytes: float = 1.0
    time: float = 1.0
    samples: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class EmulationMeta(JsonRecord):
    """The resolved emulation (`experiments.emulation.scales.EmulationPlan`), of which this is what a running run needs.

    Raw: on this machine's clock and at this machine's sizes. The other fields of the plan are in `source`.
    """

    time_scale: float = 1.0
    raw_target_batch_size: int | None = None  # samples
    parameters: int | None = None  # to average, after the bytes scale
    part_size_bytes: int | None = None  # raw
    matrices: Sequence[Sequence[int]] = ()  # [rows, columns] among the ballast; else it is vectors
    coalesce: Mapping[str, int] | int = (
        1  # accelerator steps reported as one, by accelerator; older runs: one for all
    )
    comm_s: float | None = None  # an epoch's communication, expected, raw
    epoch_s: float | None = None  # raw, expected; None: nobody measured a step of it
    study_epoch_s: float | None = None  # at full scale, expected

    def steps_per_report(self, accelerator: str) -> int:
        """Accelerator steps that a peer there reports as one."""
        steps = self.coalesce
        return int(steps.get(accelerator, 1) if isinstance(steps, Mapping) else steps)


@dataclass(frozen=True, slots=True, kw_only=True)
class PriceBookMeta(JsonRecord):
    """The price book of the launch, whole."""

    name: str | None = None
    sha256: str | None = None  # hex, of the text
    csv: str | None = None  # the text


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelMeta(JsonRecord):
    """The model that was asked for, and what ran in its place."""

    name: str | None = None
    parameters: int | None = None
    bytes_per_sample: float | None = None  # of its data set at full size
    ran: str | None = None  # in words


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkMeta(JsonRecord):
    """What limited the streams between VMs."""

    tuning: str | None = None  # the YAML key `network_tuning`
    windows: str | None = None  # "paced" or "kernel"; "": no network is emulated
    window_bytes: float | None = None  # kernel: a stream's TCP window at full size; None: not limited by one


@dataclass(frozen=True, slots=True, kw_only=True)
class EgressCeiling(JsonRecord):
    """What an epoch's traffic may cost at most by the plan."""

    usd: str = "0"  # Decimal; at full scale
    raw_epoch_s: float = 1.0  # an epoch's seconds on this machine, expected


@dataclass(frozen=True, slots=True, kw_only=True)
class HostMeta(JsonRecord):
    """Whether the host kept the emulation's clock while it was measured (`metrics.host_load`)."""

    contended: bool | None = None  # too busy; None: unknown
    reasons: Sequence[str] = ()  # why it was, a sentence each
    basis: str | None = None  # the seconds that were judged: "measured epochs ..." or "whole run ..."
    late_worst_s: float | None = None  # of a packet
    late_over_10ms_share: float | None = None  # of all packets
    sleep_worst_s: float | None = None  # beyond what was asked
    pressure_share: float | None = None  # of the time, in which some task waited for a CPU
    busy_share: float | None = None  # of all cores
    stretched_share: float | None = None  # by which padded steps took longer than asked


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportedMeta(JsonRecord):
    """What an importer noted of somebody's logs. None: it did not say."""

    kind: str | None = None  # of logs: "wandb"
    baseline: bool = False  # one VM without a swarm
    files: Sequence[Mapping[str, Any]] | None = None  # {file, role, host, rows, sha256}
    monitor: bool | None = None  # whether there is a monitor's log
    monitor_period_s: float | None = None
    monitor_peers: int | None = None
    sync: Mapping[str, Mapping[str, Any]] | None = None  # by VM: how the synchronising steps were found
    nic: Mapping[str, Mapping[str, Any]] | None = (
        None  # by VM: bytes and seconds of the whole log, raw and halved
    )
    zero_rate_epochs: Sequence[int] | None = None  # epochs that the monitor gave no rate
    epoch_rates: Sequence[tuple[int | None, float | None]] | None = (
        None  # [epoch, samples/s]: each record that ended one
    )
    clock: Mapping[str, Mapping[str, Any]] | None = None  # by VM: steps, timed_s, wall_s, jumps
    missing_columns: Mapping[str, Sequence[str]] | None = None  # by VM
    egress_destinations: str | None = None  # how the bytes were split among the other VMs, in words


@dataclass(frozen=True, slots=True, kw_only=True)
class RunMeta(JsonRecord):
    """All keys of a run's meta. Times are unix seconds by the run's clock; full scale: as if nothing was scaled.

    Written at launch unless a field says otherwise.
    """

    ALWAYS = frozenset({"error", "addresses", "locations", "warnings", "published", "egress_ceiling", "warmup_epochs",
                        "epochs", "sync_work_s", "metrics_address"})  # fmt: skip

    # what was launched
    run_id: str | None = None
    label: str | None = None  # imported runs: what the study calls the run
    experiment: Mapping[str, Any] | str | None = None  # the resolved YAML document; imported runs: a name
    plan: Mapping[str, Any] | None = None  # as `orch plan -o json` shows it
    published: Mapping[str, Any] | None = None  # the study's figures of this experiment
    versions: Mapping[str, str] | None = None  # of Python and the packages
    owner: str | None = None  # rented VMs: their label orch-owner
    imported: ImportedMeta | None = None  # imported runs only

    # where it runs
    provider: str | None = None  # "module:callable", called with the run's folder
    target: str | None = (
        None  # "local" (namespaces), "loopback" (no distance), "sky" (rented VMs), "imported"
    )
    emulated: bool | None = None  # accelerators padded to measured step times
    emulation: EmulationMeta | None = None
    scales: RunScales | None = None
    network: NetworkMeta | None = None
    model: ModelMeta | None = None
    sync_work_s: Mapping[str, float] = field(
        default_factory=dict[str, float]
    )  # by accelerator: a VM's own work around a round, s at full scale

    # how long it trains
    warmup_epochs: int = 0
    epochs: int = 0  # measured ones, beyond the warm-up
    target_batch_size: int | None = None  # samples, full scale
    raw_target_batch_size: int | None = None  # samples on this machine

    # money
    price_book: PriceBookMeta | None = None
    egress_ceiling: EgressCeiling | None = None  # None: unknown
    dataset_bytes: int | None = None  # what the store keeps for this run only; no launch writes it
    price_changes: Mapping[str, Sequence[Sequence[Any]]] = field(
        default_factory=dict[str, Sequence[Sequence[Any]]]
    )  # controller: by VM, [until unix s, "USD an hour"]

    # the controller's deadlines, seconds; rented VMs only, else the defaults here
    request_deadline_s: float = 120.0
    observe_deadline_s: float = 30.0
    observe_period_s: float = 0.0  # between two lists of VMs
    terminate_deadline_s: float = 60.0
    close_deadline_s: float = 120.0
    max_life_s: float | None = None  # after which a rented VM ends itself
    max_parallel_calls: int = 8  # of the provider
    metrics_address: str = "off"  # ORCH_METRICS_ADDRESS

    # how it went: written by the controller
    status: str | None = None  # "running", "done", "failed", "stopped", "budget", "no_capacity"
    error: str | None = None  # why it ended otherwise than done; ""
    started_s: float | None = None
    ended_s: float | None = None
    clock_s: float = (
        0.0  # what the run's clock said at most 30 s before its controller's last tick; 0: not written yet
    )
    listed_s: float | None = None  # when the provider's last list was read, by then
    warnings: Sequence[str] = ()  # sentences
    run_public_key: str | None = None  # that signs the roster
    addresses: Mapping[str, str] = field(
        default_factory=dict[str, str]
    )  # node by IP; nodes: VM names, "store", "monitor"
    locations: Mapping[str, str] = field(default_factory=dict[str, str])  # by node
    internal_addresses: Mapping[str, Mapping[str, str]] = field(
        default_factory=dict[str, Mapping[str, str]]
    )  # by network: VM by IP; "": two live ones have it
    clock_skew_s: Mapping[str, float] = field(
        default_factory=dict[str, float]
    )  # by VM: what its clock is ahead of this machine's
    evaluations: Sequence[
        Mapping[str, Any]
    ] = ()  # of held-out data: {vm, epoch, loss, accuracy, samples, ...}
    rejected: Mapping[str, int] = field(default_factory=dict[str, int])  # dropped records of peers, by reason
    monitor_unread_lines: int = 0  # of monitor.jsonl, that could not be read
    prometheus: Mapping[str, float] = field(default_factory=dict[str, float])  # what each counter said last
    switch: Mapping[str, Any] | None = None  # the emulated switch's last report (switch.json); at the end
    host: HostMeta | None = None  # at the end, of an emulated run

    @property
    def document(self) -> dict[str, Any]:
        """The experiment's document; of an imported run or an unknown one only with a `name`, which may be None."""
        known = self.experiment
        return dict(known) if isinstance(known, Mapping) else {"name": known}

    @property
    def host_contended(self) -> bool | None:
        """Whether the host was too busy; None: unknown."""
        return None if self.host is None else self.host.contended

    @property
    def logs(self) -> ImportedMeta:
        """What the importer noted; nothing of a run of our own."""
        return self.imported or ImportedMeta()
