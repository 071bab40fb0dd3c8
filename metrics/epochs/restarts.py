"""A swarm that lost all its peers at once begins anew: whoever comes next finds no state and starts at epoch 1."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from metrics.records import EpochRecord, VmRecord


def last_life(records: Iterable[EpochRecord], vms: Iterable[VmRecord]) -> Sequence[EpochRecord]:
    """The records since training last began anew, in the order of their beginnings; all, where it never did.

    It began anew with a record of epoch 1 that began when no VM that had trained until then was left. What was
    learned before is lost, so those epochs are no part of the run's figures; their cost is.
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


def earlier_lives(records: Iterable[EpochRecord], vms: Iterable[VmRecord]) -> list[EpochRecord]:
    """The records from before training last began anew; none, where it never did."""
    everything = sorted(records, key=lambda r: r.began_s)
    return everything[: len(everything) - len(last_life(everything, vms))]
