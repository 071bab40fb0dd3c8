"""Training that went on from an earlier state: a swarm that lost all peers at once resumes from a checkpoint, or from scratch."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from metrics.records import EpochRecord, VmRecord


@dataclass(frozen=True, slots=True)
class Restart:
    """One loss of all peers after which epochs were trained again."""

    from_epoch: int  # the epoch whose state training went on from; 0: from scratch
    at_s: float  # unix: when the first record of the new training began
    lost: tuple[EpochRecord, ...]  # of the epochs after `from_epoch`, sorted by their start


@dataclass(frozen=True, slots=True)
class Training:
    """All records of a run: those that count, and those whose epochs were lost. Each record is in one of the two."""

    kept: tuple[EpochRecord, ...]  # sorted by their start
    restarts: tuple[Restart, ...]  # oldest first; those after which nothing was lost are not listed
    firsts: frozenset[int]  # the first epoch that each restart trained again: all its peers are new

    @property
    def lost(self) -> tuple[EpochRecord, ...]:
        """The records of lost epochs, sorted by their start. They are part of the run's cost, not of its figures."""
        return tuple(sorted((r for one in self.restarts for r in one.lost), key=_order))


def training(records: Iterable[EpochRecord], vms: Iterable[VmRecord]) -> Training:
    """Divide the records at each restart. The order of the input does not matter.

    A swarm is lost when all VMs with a record have ended. If a record begins later and its epoch is not newer than those
    before, training went on from an earlier state: what the lost swarm did of this and later epochs is lost. All records
    that are kept of one epoch are therefore of one swarm. A VM whose preemption was announced may outlive its peer, and
    its end may be noticed late: an epoch that is not newer also begins a swarm if no earlier VM has a later record, and
    all of them have ended by now. A VM with a later record has not ended before it, whatever its row says.
    """
    ordered = sorted(records, key=_order)
    ended = {row.vm: row.ended_s for row in vms if row.ended_s is not None}
    last_began_s = {record.vm: record.began_s for record in ordered}
    swarms: list[list[EpochRecord]] = []
    # Of the VMs so far: when the last of them ended, their last record's end, and the start of their last record ever.
    gone_s = last_s = stays_s = -math.inf
    newest = 0
    for record in ordered:
        over = stays_s < record.began_s and record.began_s >= last_s  # no earlier VM has another record
        if over and (record.began_s >= gone_s or record.epoch <= newest):
            swarms.append([])
        swarms[-1].append(record)
        newest = max(newest, record.epoch)
        end_s = ended.get(record.vm, math.inf)
        gone_s, last_s = max(gone_s, record.ended_s, end_s), max(last_s, record.ended_s)
        stays_s = max(stays_s, last_began_s[record.vm] if math.isfinite(end_s) else math.inf)
    kept: list[EpochRecord] = []
    firsts: set[int] = set()
    restarts: list[Restart] = []
    for swarm in swarms:
        first = min(record.epoch for record in swarm)
        lost = tuple(record for record in kept if record.epoch >= first)
        firsts = {epoch for epoch in firsts if epoch < first} | ({first} if lost else set())
        if lost:
            restarts.append(Restart(first - 1, swarm[0].began_s, lost))
        kept = [record for record in kept if record.epoch < first] + swarm
    return Training(tuple(kept), tuple(restarts), frozenset(firsts))


def kept_records(records: Iterable[EpochRecord], vms: Iterable[VmRecord]) -> tuple[EpochRecord, ...]:
    """Return the records whose epochs were not lost, sorted by their start."""
    return training(records, vms).kept


def _order(record: EpochRecord) -> tuple[float, float, int, str]:
    return record.began_s, record.ended_s, record.epoch, record.vm
