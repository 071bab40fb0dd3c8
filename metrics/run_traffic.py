"""Traffic between the peers of a run in its measured epochs, in bytes at full scale."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from cloud.prices.classes import continent
from metrics.epochs.throughput import SwarmEpoch, measured
from metrics.run import RunNumbers
from metrics.traffic import Flow, Traffic, traffic

_OUTSIDE = ("joining", "leaving")


def peer_flows(run: RunNumbers, epochs: Iterable[SwarmEpoch]) -> list[Flow]:
    """Return the flows between peers in these epochs, without the phases joining and leaving."""
    numbers, names = {e.epoch for e in epochs}, {row.vm for row in run.vms}
    return [f for f in run.flows if f.epoch in numbers and f.dst in names and f.phase not in _OUTSIDE]


def egress_bytes_per_vm_epoch(run: RunNumbers, epoch: SwarmEpoch | None = None) -> float | None:
    """Return the bytes to other peers per VM and epoch, over the VMs with counted bytes. None if there are none."""
    epochs = _epochs(run, epoch)
    sent = peer_flows(run, epochs)
    metered = {f.src for f in sent}
    turns = sum(1 for e in epochs for p in e.peers if p.vm in metered)
    return math.fsum(cell.bytes for cell in _matrix(run, sent)) / turns if turns else None


def intercontinental_bytes(run: RunNumbers, epoch: SwarmEpoch | None = None) -> float | None:
    """Return the bytes to peers on other continents per swarm epoch. None if not counted or a location is unknown."""
    epochs = _epochs(run, epoch)
    sent = peer_flows(run, epochs)
    if not sent:
        return None
    total = 0.0
    for cell in _matrix(run, sent):
        here, there = (
            continent(place) if place else None for place in (cell.src_location, cell.dst_location)
        )
        if here is None or there is None:
            return None
        total += cell.bytes if here != there else 0.0
    return total / len({e.epoch for e in epochs})


def _epochs(run: RunNumbers, epoch: SwarmEpoch | None) -> Sequence[SwarmEpoch]:
    return measured(run.study) if epoch is None else (epoch,)


def _matrix(run: RunNumbers, sent: Iterable[Flow]) -> list[Traffic]:
    return traffic(sent, run.study, run.terms.scales, {row.vm for row in run.vms})
