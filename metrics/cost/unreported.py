"""Estimated egress of lost VMs after their last record. The bill marks these lines as estimated.

A VM that is preempted or fails does not publish a final record. It is assumed to have continued as in its last epoch:
that epoch's bytes to each destination, times (seconds from its last record to its end) / (seconds of that epoch). A VM
that trained but has no record is assumed to have sent what the nearest VM sent in its newest epoch. The dollars are
capped at the plan's ceiling for all of the run's traffic in that time (`Terms.epoch_ceiling`), with a minimum of one
epoch. Not estimated: bytes of VMs that never trained, and of the run's first epoch, for which there are no records.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from decimal import Decimal

from cloud.prices.classes import continent
from metrics.cost.ledger import CostLine, Terms, egress_lines, month_of
from metrics.epochs.throughput import SwarmEpoch
from metrics.records import VmRecord
from metrics.traffic import Flow, Traffic, died, link_kind, traffic

_OUTSIDE = ("joining", "leaving")  # phases that are not part of an epoch's rate


def unreported_lines(
    vms: Sequence[VmRecord],
    raw: Iterable[SwarmEpoch],
    full_scale: Sequence[SwarmEpoch],
    sent: Sequence[Flow],
    terms: Terms,
    trained_s: Mapping[str, float],
    last_epoch: int | None,
) -> list[CostLine]:
    """Return estimated lines, one per destination and tier, for each VM without a final record.

    `trained_s`: when each VM was first observed to train, unix s. `last_epoch`: the run's last epoch, after which no VM
    sends; if it is None, only VMs that were lost are estimated, not those that were terminated normally.
    """
    spans = _spans(raw)
    lines: list[CostLine] = []
    for row in vms:
        mine = [flow for flow in sent if flow.src == row.vm]
        if row.ended_s is None or not _unread(row, mine, spans, last_epoch):
            continue
        like = row.vm if row.vm in spans and mine else _nearest(row, vms, spans, sent)
        if like is None or (row.vm not in spans and row.vm not in trained_s):
            continue
        number, ended_s, wall_s = spans[like]
        since_s = ended_s if like == row.vm else trained_s.get(row.vm, row.ended_s)
        # The VM's clock may be off. The requested and ended times are from our clock.
        gap_s = min(max(0.0, row.ended_s - since_s), max(0.0, row.ended_s - row.requested_s))
        chosen = [
            flow for flow in sent if flow.src == like and flow.epoch == number and flow.phase not in _OUTSIDE
        ]
        rows = traffic(chosen, full_scale, terms.scales, [each.vm for each in vms])
        if like != row.vm:
            rows = [_as_sent_by(row, like, each, terms) for each in rows]
        rows = [replace(each, bytes=each.bytes * gap_s / wall_s) for each in rows]
        lines += _bounded(egress_lines(rows, terms, month_of(row.ended_s)), _ceiling_usd(gap_s, terms))
    return [replace(line, estimated=True) for line in lines if line.quantity]


def _spans(raw: Iterable[SwarmEpoch]) -> dict[str, tuple[int, float, float]]:
    """Return by VM: the number of its newest epoch, when that ended (unix s) and its wall seconds, both as measured."""
    found: dict[str, tuple[int, float, float]] = {}
    for epoch in raw:
        for peer in epoch.peers:
            if peer.wall_s > 0 and epoch.epoch >= found.get(peer.vm, (0, 0.0, 0.0))[0]:
                found[peer.vm] = (epoch.epoch, epoch.ended_s, peer.wall_s)
    return found


def _unread(
    row: VmRecord,
    mine: Iterable[Flow],
    spans: Mapping[str, tuple[int, float, float]],
    last_epoch: int | None,
) -> bool:
    """Whether the VM ended while it may have been sending, without a final record."""
    if not row.end_cause or (not died(row) and last_epoch is None):
        return False
    if any(flow.phase == "leaving" or flow.epoch == 0 for flow in mine):
        return False
    return last_epoch is None or spans.get(row.vm, (0, 0.0, 0.0))[0] < last_epoch


def _nearest(
    row: VmRecord,
    vms: Iterable[VmRecord],
    spans: Mapping[str, tuple[int, float, float]],
    sent: Iterable[Flow],
) -> str | None:
    """Return the VM with records to use for one without.

    Preferred are VMs of the same zone, then region, then cloud and continent, then any.
    """
    metered = {flow.src for flow in sent if flow.phase not in _OUTSIDE}
    known = [each for each in vms if each.vm in spans and each.vm in metered]

    def shared(each: VmRecord) -> tuple[int, bool]:
        pairs = zip(each.location.split("/"), row.location.split("/"), strict=False)
        same = next((n for n, (a, b) in enumerate(pairs) if a != b), 3)
        return same, continent(each.location) == continent(row.location)

    chosen = max(known, key=lambda each: (shared(each), spans[each.vm][0], each.vm), default=None)
    return None if chosen is None else chosen.vm


def _as_sent_by(row: VmRecord, like: str, sent: Traffic, terms: Terms) -> Traffic:
    dst = like if sent.dst == row.vm else sent.dst
    there = terms.locations.get(dst) if dst == like else sent.dst_location
    kind = link_kind(dst, row.location, there, public=terms.public)
    return replace(sent, src=row.vm, dst=dst, src_location=row.location, dst_location=there, kind=kind)


def _ceiling_usd(gap_s: float, terms: Terms) -> Decimal | None:
    """Return the plan's ceiling for all traffic in `gap_s` seconds, with a minimum of one epoch."""
    if terms.epoch_ceiling is None:
        return None
    usd, epoch_s = terms.epoch_ceiling
    return usd * Decimal(repr(max(1.0, gap_s / epoch_s)))


def _bounded(lines: list[CostLine], ceiling_usd: Decimal | None) -> list[CostLine]:
    """Scale all lines down by the same factor if they cost more than the ceiling."""
    known = [line.usd for line in lines if line.usd is not None]
    total = sum(known, Decimal(0))
    if ceiling_usd is None or len(known) < len(lines) or total <= ceiling_usd:
        return lines
    share = ceiling_usd / total
    return [
        replace(
            line,
            quantity=round((line.quantity or 0) * float(share)),
            usd=None if line.usd is None else line.usd * share,
        )
        for line in lines
    ]
