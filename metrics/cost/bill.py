"""The bill of a run, final or so far, assembled from the lines of `metrics.cost.ledger`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal

from metrics.cost.checkpoints import CheckpointUse
from metrics.cost.ledger import (
    CostLine,
    Ledger,
    Terms,
    by_month,
    data_lines,
    egress_lines,
    kept_lines,
    month_of,
    storage_lines,
    unmetered_lines,
    vm_lines,
)
from metrics.cost.unreported import unreported_lines
from metrics.epochs.scaling import full_scale_epochs, full_scale_seconds, open_epoch_seconds, vm_epoch_seconds
from metrics.epochs.throughput import SwarmEpoch, swarm_epochs
from metrics.records import EgressRecord, EpochRecord, VmRecord
from metrics.traffic import Flow, died, flows, traffic


@dataclass(frozen=True, slots=True)
class CostSoFar:
    """Cost so far, for the live view and the budget guard, at full scale."""

    spent_usd: Decimal | None
    usd_per_h: Decimal | None  # of the VMs rented now, without egress
    unknown: tuple[str, ...]
    estimated_usd: Decimal | None = Decimal(0)  # the estimated part of it, see `metrics.cost.unreported`


def ledger(
    vms: Iterable[VmRecord],
    now_s: float,
    raw: list[SwarmEpoch],
    full_scale: list[SwarmEpoch],
    found: Iterable[Flow],
    ingress: Mapping[str, float | None],
    terms: Terms,
    trained_s: Mapping[str, float] | None = None,
    last_epoch: int | None = None,
    checkpoints: CheckpointUse | None = None,
) -> Ledger:
    """Return the whole bill.

    `now_s`: the end of VMs that still run. `ingress`: bytes by VM at full scale. `trained_s`, `last_epoch`: see
    `metrics.cost.unreported.unreported_lines`. The seconds since a lost VM's last epoch are scaled like that epoch, for
    at most its duration.
    """
    rows = list(vms)
    seconds = vm_epoch_seconds(raw, full_scale)
    ends = {p.vm: e.ended_s for e in raw for p in e.peers}
    for row in rows:
        known = seconds.get(row.vm)
        if known and row.ended_s is not None and died(row):
            known.append(open_epoch_seconds(row.ended_s - ends[row.vm], known[-1]))
    return _bill(
        rows,
        now_s,
        seconds,
        raw,
        full_scale,
        list(found),
        ingress,
        terms,
        trained_s or {},
        last_epoch,
        checkpoints,
    )


def cost_so_far(
    vms: Iterable[VmRecord],
    epochs: Iterable[EpochRecord],
    egress: Iterable[EgressRecord],
    now_s: float,
    terms: Terms,
    ingress: Mapping[str, int] | None = None,
    last_epoch: int | None = None,
    trained_s: Mapping[str, float] | None = None,
    checkpoints: CheckpointUse | None = None,
) -> CostSoFar:
    """Return the sums of `bill_so_far` and the dollars per hour of the VMs rented now."""
    rows = list(vms)
    bill = bill_so_far(rows, epochs, egress, now_s, terms, ingress, last_epoch, trained_s, checkpoints)
    rented = [row.usd_per_h for row in rows if row.ended_s is None]
    known_prices = [usd for usd in rented if usd is not None]
    per_h = sum(known_prices, Decimal(0)) if len(known_prices) == len(rented) else None
    spent, estimated = bill.sum(), bill.estimated_usd
    return CostSoFar(
        None if spent is None else round(spent, 12),
        per_h,
        bill.unknown,
        None if estimated is None else round(estimated, 12),
    )


def bill_so_far(
    vms: Iterable[VmRecord],
    epochs: Iterable[EpochRecord],
    egress: Iterable[EgressRecord],
    now_s: float,
    terms: Terms,
    ingress: Mapping[str, int] | None = None,
    last_epoch: int | None = None,
    trained_s: Mapping[str, float] | None = None,
    checkpoints: CheckpointUse | None = None,
) -> Ledger:
    """Return the bill until now at full scale, including the current epoch.

    The seconds since a running or lost VM's last epoch are scaled like that epoch, for at most its duration. So the sum
    does not jump when the next epoch ends, and additional waiting is not scaled up. After `last_epoch` nothing is scaled.
    `ingress`: raw network bytes by VM, needed for unscaled runs only. `trained_s`: see
    `metrics.cost.unreported.unreported_lines`.
    """
    rows = list(vms)
    records = list(epochs)
    raw = swarm_epochs(records, warmup_epochs=0)
    full_scale = full_scale_epochs(raw, terms.scales, terms.raw_target)
    seconds = vm_epoch_seconds(raw, full_scale)
    last_end: dict[str, tuple[float, int]] = {}
    for record in records:
        last_end[record.vm] = max(last_end.get(record.vm, (0.0, 0)), (record.ended_s, record.epoch))
    samples: dict[str, float] = {}
    for epoch in full_scale:
        for p in epoch.peers:
            samples[p.vm] = samples.get(p.vm, 0.0) + p.samples
    for row in rows:
        known = seconds.get(row.vm)
        if known and (row.ended_s is None or died(row)):
            until_s = now_s if row.ended_s is None else row.ended_s
            ended_s, epoch_number = last_end[row.vm]
            if last_epoch is None or epoch_number < last_epoch:
                known.append(open_epoch_seconds(until_s - ended_s, known[-1]))
    per_sample = terms.bytes_per_sample
    read: dict[str, float | None]
    if terms.scales.none:
        read = {vm: float(count) for vm, count in (ingress or {}).items()}
    else:
        read = {vm: None if per_sample is None else n * per_sample for vm, n in samples.items()}
    sent = flows(
        egress,
        terms.addresses,
        terms.locations,
        terms.elsewhere,
        public=terms.public,
        internal=terms.internal,
    )
    return _bill(
        rows, now_s, seconds, raw, full_scale, sent, read, terms, trained_s or {}, last_epoch, checkpoints
    )


def _bill(
    vms: Sequence[VmRecord],
    now_s: float,
    seconds: Mapping[str, list[tuple[float, float]]],
    raw: Sequence[SwarmEpoch],
    full_scale: Sequence[SwarmEpoch],
    sent: Sequence[Flow],
    read: Mapping[str, float | None],
    terms: Terms,
    trained_s: Mapping[str, float],
    last_epoch: int | None,
    checkpoints: CheckpointUse | None,
) -> Ledger:
    used = checkpoints or CheckpointUse()
    began_s = min((row.requested_s for row in vms), default=now_s)
    ended_s = max((now_s if row.ended_s is None else row.ended_s for row in vms), default=now_s)
    lines: list[CostLine] = vm_lines(vms, now_s, seconds, terms)
    names = [row.vm for row in vms]
    for month, part in by_month(sent, {e.epoch: e.ended_s for e in raw}, began_s).items():
        lines += egress_lines(traffic(part, full_scale, terms.scales, names), terms, month)
    lines += unmetered_lines(raw, sent)
    lines += unreported_lines(vms, raw, full_scale, sent, terms, trained_s, last_epoch)
    # Bytes read are only known for the whole run, so they are billed in the month in which it ended.
    lines += data_lines(read, terms, month_of(ended_s), used.read_bytes())
    durations = [(b.duration_s, a.duration_s) for b, a in zip(raw, full_scale, strict=True)]
    pairs = [(b, a) for b, a in durations if b is not None and a is not None]
    lines += storage_lines(full_scale_seconds(max(0.0, ended_s - began_s), pairs, terms.scales), terms)
    lines += kept_lines(used.kept(ended_s), terms)
    return Ledger(tuple(lines))
