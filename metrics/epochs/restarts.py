"""Training that restarted from scratch: a swarm that lost all peers at once has no state, so the next peer starts at epoch 1."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from metrics.records import EpochRecord, VmRecord


def records_since_restart(records: Iterable[EpochRecord], vms: Iterable[VmRecord]) -> Sequence[EpochRecord]:
    """Return the records since training last restarted from scratch, sorted by their start; all, if it never did.

    A restart is a record of epoch 1 that began when all VMs that had trained before were gone. What was learned before is
    lost, so those epochs are not part of the run's figures, only of its cost.
    """
    ended = {row.vm: row.ended_s for row in vms if row.ended_s is not None}
    kept: list[EpochRecord] = []
    last_end_s = -math.inf
    for record in sorted(records, key=lambda r: r.began_s):
        if record.began_s >= last_end_s and record.epoch == 1:
            kept = []
        kept.append(record)
        last_end_s = max(last_end_s, record.ended_s, ended.get(record.vm, math.inf))
    return kept


def records_before_restart(records: Iterable[EpochRecord], vms: Iterable[VmRecord]) -> list[EpochRecord]:
    """Return the records before training last restarted from scratch, sorted by their start; none, if it never did."""
    everything = sorted(records, key=lambda r: r.began_s)
    return everything[: len(everything) - len(records_since_restart(everything, vms))]
