"""Schema of the peers' records in the DHT, shared by peers and monitor.

Under the key `<run_key>_orch_epochs` each peer owns one subkey: its VM's name, followed by the owner marker of its record
key. Hivemind's RSASignatureValidator then only accepts values signed with that key. A value contains the peer's last
`KEEP_EPOCHS` epochs (of a plain loop, which does not wait for others, up to `MAX_EPOCHS`), so that a reader can miss
some seconds without losing epochs, and a sequence number that distinguishes new values from replayed old ones.
`<run_key>_orch_evaluations` is the same for evaluations. `<run_key>_orch_members` contains each peer's announcement (VM,
slot, phase, epoch, multiaddress, digest of its start weights), or nothing once it has left. The digest, and an
evaluation's `metrics`, were added later; values without them are valid.

This module does not need Hivemind. `experiments.peer.reporting.publish` builds Hivemind's validators from `OrchSchema`.
The monitor validates again, because a node without validators may serve anything.
"""

from __future__ import annotations

import ipaddress
import itertools
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from pydantic import v1

from metrics.records import EgressRecord, EpochRecord, IngressRecord

EPOCHS_FIELD = "orch_epochs"
EVALUATIONS_FIELD = "orch_evaluations"
MEMBERS_FIELD = "orch_members"
MEMBER_PHASES = ("ready", "training", "serving")
KEEP_EPOCHS = 3
MAX_EPOCHS = 32  # for a peer whose epochs may be shorter than a reader's period
EXPIRATION_S = 300.0  # how long a value outlives its peer, for a monitor that was disconnected
MAX_VALUE_BYTES = 32 * 1024  # of the signed value; larger ones are rejected unread
_PHASES_TOLERANCE = 0.05  # of the wall time
_SYNC = 5  # index of the synchronising step among the phases
_DAY_S = 86400.0
_LARGEST_FIGURE = 1e30  # so that sums of figures are finite
MAX_METRICS = 32  # of an evaluation
METRIC_NAME = r"[a-z][a-z0-9_.-]{0,39}"

_SUBKEY = re.compile(rb"([a-z0-9][a-z0-9._-]{0,127})\[owner:(ssh-rsa [A-Za-z0-9+/=]{100,800})\]")


class RecordError(Exception):
    """An invalid record. `reason` is one of a few fixed words, for counting."""

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(f"{reason}: {detail}" if detail else reason)
        self.reason = reason


@dataclass(frozen=True)
class EpochReport:
    """Everything that a peer reports about one epoch."""

    epoch: EpochRecord
    egress: tuple[EgressRecord, ...]
    ingress: IngressRecord


@dataclass(frozen=True)
class Evaluation:
    """One evaluation on the held-out data."""

    vm: str
    epoch: int
    at_s: float
    accuracy: float | None  # 0 to 1; None: the task has none
    loss: float | None  # None: unknown or not a finite number
    samples: int
    metrics: Mapping[str, float] = field(default_factory=dict)  # the task's other figures


# --- types on the wire: strict, because Hivemind's SchemaValidator would otherwise accept 3.0 for 3 ---
# Names are short because every value is read once per second from several replicas.


class _Subkey(v1.ConstrainedBytes):
    strict = True
    max_length = 1024

    @classmethod
    def __get_validators__(cls) -> Any:
        yield from super().__get_validators__()
        yield cls._matches

    @classmethod
    def _matches(cls, value: bytes) -> bytes:
        if _SUBKEY.fullmatch(value) is None:
            raise ValueError("not a VM's name with one owner marker")
        return value


class _Count(v1.ConstrainedInt):
    strict = True
    ge = 0
    le = 2**60


class _Seconds(v1.ConstrainedFloat):
    strict = True
    ge = 0.0
    le = 1e7


class _Unix(v1.ConstrainedFloat):
    strict = True
    ge = 0.0
    le = 1e11


class _Text(v1.ConstrainedStr):
    strict = True
    max_length = 300


class _Name(v1.ConstrainedStr):
    strict = True
    max_length = 128


class _Sent(v1.BaseModel):
    to: _Name
    phase: _Name
    s: _Seconds
    bytes: _Count
    model: _Count | None  # payload of the model in it; None: not counted


class _Epoch(v1.BaseModel):
    epoch: _Count
    began: _Unix
    ended: _Unix
    steps: _Count
    samples: _Count
    phases: v1.conlist(_Seconds, min_items=7, max_items=7)  # type: ignore[valid-type]
    calc: _Seconds
    comm: _Seconds
    loss: v1.StrictFloat | None  # None: not a finite number (training diverged)
    group: _Count
    dropped: _Text
    sent: v1.conlist(_Sent, max_items=256)  # type: ignore[valid-type]
    net: _Count
    cache: _Count


class _Epochs(v1.BaseModel):
    vm: _Name
    slot: _Name
    gen: _Count
    seq: _Count
    ran: _Text
    epochs: v1.conlist(_Epoch, min_items=1, max_items=MAX_EPOCHS)  # type: ignore[valid-type]


class _Evaluation(v1.BaseModel):
    epoch: _Count
    at: _Unix
    accuracy: v1.StrictFloat
    loss: v1.StrictFloat | None
    samples: _Count

    class Config:
        extra = v1.Extra.forbid  # otherwise a record with metrics would be read as one without


class _MetricName(v1.ConstrainedStr):
    strict = True
    regex = f"^{METRIC_NAME}$"


class _TaskEvaluation(v1.BaseModel):
    """An evaluation with other figures than accuracy and loss, or without an accuracy."""

    epoch: _Count
    at: _Unix
    accuracy: v1.StrictFloat | None
    loss: v1.StrictFloat | None
    samples: _Count
    metrics: dict[_MetricName, v1.StrictFloat]


class _Evaluations(v1.BaseModel):
    vm: _Name
    slot: _Name
    gen: _Count
    seq: _Count
    evals: v1.conlist(  # type: ignore[valid-type]
        cast(Any, _Evaluation | _TaskEvaluation), min_items=1, max_items=KEEP_EPOCHS
    )


class _Phase(_Name):
    regex = "^(ready|training|serving)$"


class _Digest(_Name):
    regex = "^[0-9a-f]{16}$"


_Announcement = tuple[_Name, _Name, _Phase, _Count, _Text]
_AnnouncementWithWeights = tuple[_Name, _Name, _Phase, _Count, _Text, _Digest]


class OrchSchema(v1.BaseModel):
    """Schema for `hivemind.dht.schema.SchemaValidator(OrchSchema, prefix=run_key)`."""

    orch_epochs: dict[_Subkey, _Epochs]
    orch_evaluations: dict[_Subkey, _Evaluations]
    orch_members: dict[_Subkey, _Announcement | _AnnouncementWithWeights | None]


def subkey_of(vm: str, public_key: str) -> bytes:
    """Return the only subkey that `vm` may write. `public_key`: OpenSSH text. Raises RecordError("subkey")."""
    subkey = vm.encode() + b"[owner:" + public_key.encode() + b"]"
    if _SUBKEY.fullmatch(subkey) is None:
        raise RecordError("subkey", f"VM {vm!r}: its name or key cannot be part of a subkey")
    return subkey


def vm_and_key_of(subkey: object) -> tuple[str, str]:
    """Split a subkey of `subkey_of` into VM and key. Raises RecordError("subkey")."""
    match = _SUBKEY.fullmatch(subkey) if isinstance(subkey, bytes) else None
    if match is None:
        raise RecordError("subkey", "not a VM's name with one owner marker")
    return match[1].decode(), match[2].decode()


def encode_epochs(
    slot: str, generation: int, sequence: int, reports: Sequence[EpochReport]
) -> dict[str, Any]:
    """Encode the last (at most MAX_EPOCHS) reports of one VM as plain msgpack types."""
    last = reports[-1].epoch
    return {
        "vm": last.vm,
        "slot": slot,
        "gen": generation,
        "seq": sequence,
        "ran": last.ran[:300],
        "epochs": [_encode_epoch(report) for report in reports[-MAX_EPOCHS:]],
    }


def decode_epochs(
    value: object, vm: str, slot: str, generation: int, now_s: float
) -> tuple[int, list[EpochReport]]:
    """Decode a value that claims to be from this VM into (sequence, reports by ascending epoch).

    Raises RecordError: "schema" for a wrong structure; "identity" if it names another VM, slot or generation; "values"
    for impossible values: numbers that are not finite or negative, phases that do not add up to the wall time (calc and
    the synchronising step) within 5 %, a round shorter than that step or longer than the wall time, invalid addresses,
    epochs out of order; "clock" for times more than a day from `now_s`.
    """
    parsed = _parse(_Epochs, value)
    _check_identity(parsed, vm, slot, generation)
    reports = [_decode_epoch(vm, parsed.ran, row, now_s) for row in parsed.epochs]
    _check_order([r.epoch.epoch for r in reports])
    return parsed.seq, reports


def encode_evaluations(
    slot: str, generation: int, sequence: int, rows: Sequence[Evaluation]
) -> dict[str, Any]:
    """Encode the last (at most KEEP_EPOCHS) evaluations of one VM."""
    return {
        "vm": rows[-1].vm,
        "slot": slot,
        "gen": generation,
        "seq": sequence,
        "evals": [_encode_evaluation(r) for r in rows[-KEEP_EPOCHS:]],
    }


def decode_evaluations(
    value: object, vm: str, slot: str, generation: int, now_s: float
) -> tuple[int, list[Evaluation]]:
    """Decode evaluations; see `decode_epochs`."""
    parsed = _parse(_Evaluations, value)
    _check_identity(parsed, vm, slot, generation)
    rows: list[Evaluation] = []
    for r in parsed.evals:
        metrics = {str(k): float(v) for k, v in r.metrics.items()} if isinstance(r, _TaskEvaluation) else {}
        _require(r.accuracy is None or 0.0 <= r.accuracy <= 1.0, f"accuracy {r.accuracy} outside 0..1")
        _require(len(metrics) <= MAX_METRICS, f"{len(metrics)} metrics")
        _require(
            all(abs(value) <= _LARGEST_FIGURE for value in metrics.values()),
            "a metric is not finite, or huge",
        )
        rows.append(Evaluation(vm, r.epoch, r.at, r.accuracy, _loss(r.loss), r.samples, metrics))
    _check_order([r.epoch for r in rows])
    _require(all(a.at_s <= b.at_s for a, b in itertools.pairwise(rows)), "evaluations out of order")
    _check_time(
        rows[-1].at_s, now_s
    )  # a peer's turn to evaluate may come once in days: the others may be old
    return parsed.seq, rows


# --- private ---


def _encode_evaluation(row: Evaluation) -> dict[str, Any]:
    encoded = {
        "epoch": row.epoch,
        "at": float(row.at_s),
        "accuracy": None if row.accuracy is None else float(row.accuracy),
        "loss": _finite_or_none(row.loss),
        "samples": row.samples,
    }
    if row.accuracy is None or row.metrics:
        encoded["metrics"] = {name: float(value) for name, value in row.metrics.items()}
    return encoded


def _encode_epoch(report: EpochReport) -> dict[str, Any]:
    e = report.epoch
    phases = [
        e.load_s,
        e.move_s,
        e.forward_s,
        e.backward_s,
        e.optimizer_local_s,
        e.optimizer_sync_s,
        e.other_s,
    ]
    return {
        "epoch": e.epoch,
        "began": float(e.began_s),
        "ended": float(e.ended_s),
        "steps": e.steps,
        "samples": e.samples,
        "phases": [float(p) for p in phases],
        "calc": float(e.calc_s),
        "comm": float(e.comm_s),
        "loss": _finite_or_none(e.loss),
        "group": e.group_size,
        "dropped": e.dropped[:300],
        "sent": [
            {
                "to": g.dst_address,
                "phase": g.phase,
                "s": float(g.seconds),
                "bytes": g.bytes,
                "model": g.model_bytes,
            }
            for g in report.egress
        ],
        "net": report.ingress.network_bytes,
        "cache": report.ingress.cache_bytes,
    }


def _decode_epoch(vm: str, ran: str, row: Any, now_s: float) -> EpochReport:
    _require(row.epoch >= 1, "epoch 0")
    _require(row.began <= row.ended, "epoch ends before it begins")
    _check_time(row.ended, now_s)
    phases: list[float] = list(row.phases)
    wall = row.calc + phases[_SYNC]
    slack = _PHASES_TOLERANCE * wall + 1e-3
    _require(
        phases[_SYNC] - slack <= row.comm <= wall + slack,
        f"a round of {row.comm:.3f} s in an epoch of {wall:.3f} s",
    )
    _require(
        abs(sum(phases) - wall) <= slack,
        f"phases of {sum(phases):.3f} s in an epoch of {wall:.3f} s",
    )
    _require((ran + row.dropped).isprintable(), "text is not printable")
    sent: list[EgressRecord] = []
    for g in row.sent:
        _require(g.phase in ("settling", "calc", "comm", "joining"), f"egress phase {g.phase!r}")
        sent.append(EgressRecord(vm, row.epoch, _address(g.to), g.phase, g.s, g.bytes, g.model))
    _require(len({(g.dst_address, g.phase) for g in sent}) == len(sent), "duplicate destination")
    epoch = EpochRecord(
        vm,
        row.epoch,
        row.began,
        row.ended,
        row.steps,
        row.samples,
        *phases,
        calc_s=row.calc,
        comm_s=row.comm,
        loss=_loss(row.loss),
        group_size=row.group,
        dropped=row.dropped,
        ran=ran,
    )
    return EpochReport(epoch, tuple(sent), IngressRecord(vm, row.epoch, row.net, row.cache))


def _parse(model: Any, value: object) -> Any:
    """Parse without any type conversion, like Hivemind's SchemaValidator."""
    try:
        parsed = model.parse_obj(value)
    except (v1.ValidationError, TypeError, ValueError, RecursionError) as error:
        raise RecordError("schema", str(error).replace("\n", " ")[:300]) from error
    if parsed.dict() != value:  # unknown keys and converted types; NaN differs from itself too
        raise RecordError("schema", "unknown keys, converted types or NaN")
    return parsed


def _check_identity(parsed: Any, vm: str, slot: str, generation: int) -> None:
    if (parsed.vm, parsed.slot, parsed.gen) != (vm, slot, generation):
        raise RecordError("identity", f"{vm} reports as {parsed.vm} ({parsed.slot}, {parsed.gen})")


def _check_order(epochs: Sequence[int]) -> None:
    _require(all(a < b for a, b in itertools.pairwise(epochs)), "epochs out of order")


def _require(holds: bool, otherwise: str) -> None:
    if not holds:
        raise RecordError("values", otherwise)


def _check_time(at_s: float, now_s: float) -> None:
    if abs(at_s - now_s) >= _DAY_S:  # either clock may be wrong
        raise RecordError("clock", f"time {at_s - now_s:+.0f} s from now")


def _address(text: str) -> str:
    try:
        return str(ipaddress.ip_address(text))
    except ValueError as error:
        raise RecordError("values", "an egress destination is not an IP address") from error


def _finite_or_none(number: float | None) -> float | None:
    return float(number) if number is not None and math.isfinite(number) else None


def _loss(number: float | None) -> float | None:
    _require(number is None or abs(number) <= _LARGEST_FIGURE, "loss is not finite, or huge")
    return number
