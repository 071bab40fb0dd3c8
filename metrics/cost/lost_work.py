"""What the loss of all peers at once cost: the epochs that were trained again, or whose progress was lost for good."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from decimal import Decimal

from metrics.cost.ledger import Terms, egress_lines, unmetered_lines
from metrics.epochs.restarts import Restart
from metrics.epochs.scaling import full_scale_epochs
from metrics.epochs.throughput import SwarmEpoch, swarm_epochs
from metrics.records import VmRecord
from metrics.traffic import Flow, traffic

_HOUR = Decimal(3600)


@dataclass(frozen=True, slots=True)
class LostWork:
    """The epochs that one loss of all peers cost. Samples and dollars are at full scale."""

    at_s: float  # unix: when training went on
    from_epoch: int  # training went on from the state after this epoch; 0: from scratch
    epochs: int
    samples: float
    # Of the VMs' seconds in these epochs, and of what they sent. None: unknown. The epoch in progress when the peers were
    # lost, and the start of their replacements, are costs of preemptions.
    usd: Decimal | None
    raw: tuple[SwarmEpoch, ...]  # the lost epochs
    full_scale: tuple[SwarmEpoch, ...]


def lost_work(
    restarts: Iterable[Restart], vms: Sequence[VmRecord], sent: Sequence[Flow], terms: Terms
) -> tuple[LostWork, ...]:
    """Return what each restart cost, oldest first. `sent`: the flows of the whole run."""
    return tuple(_of(one, vms, sent, terms) for one in restarts)


def _of(restart: Restart, vms: Sequence[VmRecord], sent: Sequence[Flow], terms: Terms) -> LostWork:
    raw = swarm_epochs(restart.lost, warmup_epochs=0)
    full_scale = full_scale_epochs(raw, terms.scales, terms.raw_target)
    own = {(record.vm, record.epoch) for record in restart.lost}
    flows = [flow for flow in sent if (flow.src, flow.epoch) in own]
    lines = egress_lines(traffic(flows, full_scale, terms.scales, [row.vm for row in vms]), terms)
    usd = [line.usd for line in (*lines, *unmetered_lines(raw, flows))]
    prices = {row.vm: row.usd_per_h for row in vms}
    for peer in (peer for epoch in full_scale for peer in epoch.peers):
        per_h = prices.get(peer.vm)
        usd.append(None if per_h is None else per_h * Decimal(repr(peer.wall_s)) / _HOUR)
    known = [amount for amount in usd if amount is not None]
    return LostWork(
        at_s=restart.at_s,
        from_epoch=restart.from_epoch,
        epochs=len(raw),
        samples=sum(epoch.samples for epoch in full_scale),
        usd=sum(known, Decimal(0)) if len(known) == len(usd) else None,
        raw=tuple(raw),
        full_scale=tuple(full_scale),
    )
