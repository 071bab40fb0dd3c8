"""From peers' epochs to the swarm's epochs, and from those to samples per second by wall clock.

An epoch ends for the swarm at the mean of its peers' `ended_s`. The wall time of epoch k is its end less
the end of epoch k-1 (for the first: less the mean of its peers' `began_s`); an epoch whose predecessor left
no record has no wall time and is not measured. Warm-up epochs and a last epoch that some living peer had
not reported yet are listed, but not measured. Where somebody watched the whole swarm (imported logs), its
end, wall time and samples are the watcher's; the peers' calculation and communication stay the peers' own.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from metrics.epochs.restarts import last_life
from metrics.records import EpochRecord, ProgressRecord, SwarmEpochRecord, VmRecord
from metrics.stats import Estimate, mean_interval, ratio_interval


@dataclass(frozen=True, slots=True)
class PeerEpoch:
    """One peer's epoch: wall seconds outside the synchronising step and of its round, and its own samples."""

    vm: str
    calc_s: float
    comm_s: float  # of it `overlapped_s` are in calc_s too
    samples: float  # whole at the run's scale; not after multiplying back
    load_s: float = 0.0  # phases of calc_s: waiting for data,
    timed_s: float = 0.0  # and what the study's phase timers cover (move, forward, backward, local optimizer)
    overlapped_s: float = 0.0  # of the round, while this peer calculated

    @property
    def wall_s(self) -> float:
        """Of the epoch, pauses left out."""
        return self.calc_s + self.comm_s - self.overlapped_s

    @property
    def granularity(self) -> float | None:
        """Calculation / communication; None when nothing was communicated."""
        return self.calc_s / self.comm_s if self.comm_s > 0 else None


@dataclass(frozen=True, slots=True)
class SwarmEpoch:
    """One hivemind epoch of all peers."""

    epoch: int
    peers: tuple[PeerEpoch, ...]  # empty: only the watcher saw this epoch
    ended_s: float  # unix, as measured (not multiplied back)
    duration_s: float | None  # wall time since the end of the one before; None: it is not known, or not > 0
    loss: float | None  # mean over peers, weighted with their samples
    joined: tuple[str, ...]  # peers that the epoch before did not have
    left: tuple[str, ...]  # peers that only the epoch before had
    dropped: tuple[tuple[str, str], ...]  # (peer, why part of its round was lost)
    lone: bool  # one peer, and no VM that ever trained lived when its round began: nobody to average with
    crossed_s: float | None  # unix: when the swarm's samples passed the target, interpolated
    warmup: bool
    complete: bool  # False: the run's last epoch, which a living peer had not reported yet
    watched_samples: float | None = None  # of the whole swarm, where a watcher logged it

    @property
    def samples(self) -> float:
        """Samples of all peers: the watcher's count, else the sum of theirs."""
        if self.watched_samples is not None:
            return self.watched_samples
        return math.fsum(p.samples for p in self.peers)


def swarm_epochs(
    records: Iterable[EpochRecord],
    warmup_epochs: int,
    progress: Sequence[ProgressRecord] = (),
    target_batch_size: int | None = None,
    vms: Iterable[VmRecord] = (),
    watched: Iterable[SwarmEpochRecord] = (),
) -> list[SwarmEpoch]:
    """The swarm's epochs, ascending, since its training last began (metrics/epochs/restarts.py).

    The records' order does not matter; of two equal keys the later counts.

    `watched`: what somebody logged of the whole swarm; an epoch that it gives the rate 0 has no wall time.

    `target_batch_size` is the raw one (what the peers were told); with it and `progress` the crossing of
    the target is interpolated between two scrapes.
    """
    vms = list(vms)
    by_epoch: dict[int, dict[str, EpochRecord]] = {}
    for record in sorted(last_life(records, vms), key=lambda r: r.ended_s):
        by_epoch.setdefault(record.epoch, {})[record.vm] = record
    ended = {row.vm: row.ended_s for row in vms if row.ended_s is not None}
    seen = {record.epoch: record for record in watched}
    scrapes = _scrapes_by_epoch(progress) if target_batch_size is not None else {}
    numbers = sorted(by_epoch | seen)
    found: list[SwarmEpoch] = []
    trained: set[str] = set()  # peers with a record of this epoch or an earlier one
    for number in numbers:
        peers = by_epoch.get(number, {})
        rows = [peers[vm] for vm in sorted(peers)]
        before = by_epoch.get(number - 1)
        watch = seen.get(number)
        if watch is not None:
            end = watch.ended_s
            duration = watch.duration_s if watch.sps != 0 else None
            begin = None if duration is None else end - duration
        else:
            end = math.fsum(r.ended_s for r in rows) / len(rows)
            if before is not None:
                begin = math.fsum(r.ended_s for r in before.values()) / len(before)
            elif number == numbers[0]:
                begin = math.fsum(r.began_s for r in rows) / len(rows)
            else:
                begin = None
            duration = None if begin is None else end - begin
        if duration is not None and duration <= 0:
            duration = None
        names = {r.vm for r in rows}
        left = tuple(sorted(set(before) - names)) if before is not None else ()
        trained |= names
        lone = False
        if len(rows) == 1 and rows[0].group_size <= 1:
            round_began_s = rows[0].ended_s - rows[0].comm_s
            lone = not any(ended.get(vm, math.inf) > round_began_s for vm in trained - names)
        late = [vm for vm in left if watch is None and ended.get(vm, math.inf) > end]
        found.append(
            SwarmEpoch(
                epoch=number,
                peers=tuple(_peer_epoch(r) for r in rows),
                ended_s=end,
                duration_s=duration,
                loss=_mean_loss(rows),
                joined=tuple(sorted(names - set(before))) if before is not None else (),
                left=left,
                dropped=() if lone else tuple((r.vm, r.dropped) for r in rows if r.dropped),
                lone=lone,
                crossed_s=None
                if target_batch_size is None or begin is None
                else _crossing(scrapes.get(number - 1, ()), target_batch_size, begin, end),
                warmup=number <= warmup_epochs,
                complete=not (number == numbers[-1] and late),
                watched_samples=None if watch is None else watch.samples,
            )
        )
    return found


def measured(epochs: Iterable[SwarmEpoch]) -> list[SwarmEpoch]:
    """The epochs that count: complete, after the warm-up, with a wall time."""
    return [e for e in epochs if e.complete and not e.warmup and e.duration_s is not None]


def throughput(epochs: Iterable[SwarmEpoch]) -> Estimate | None:
    """Samples of the measured epochs / wall time between their ends; None without a measured epoch."""
    chosen = measured(epochs)
    return ratio_interval([e.samples for e in chosen], [e.duration_s or 0.0 for e in chosen])


def throughput_epoch_mean(epochs: Iterable[SwarmEpoch]) -> Estimate | None:
    """Mean of the measured epochs' own rates: what the study prints."""
    return mean_interval([e.samples / e.duration_s for e in measured(epochs) if e.duration_s])


def local_throughput(epochs: Iterable[SwarmEpoch]) -> Estimate | None:
    """Sum over peers of samples / calculation time, mean over the measured epochs."""
    rates = [
        math.fsum(p.samples / p.calc_s for p in e.peers if p.calc_s > 0)
        for e in measured(epochs)
        if any(p.calc_s > 0 for p in e.peers)
    ]
    return mean_interval(rates)


def throughput_phase_timed(epochs: Iterable[SwarmEpoch]) -> Estimate | None:
    """The study's other clock: sum over peers of samples / sum of phase timers, mean over measured epochs.

    That is how it rates a single GPU; the averaging and whatever no phase claims are not in it.
    """
    rates = [
        math.fsum(p.samples / (p.load_s + p.timed_s) for p in e.peers if p.load_s + p.timed_s > 0)
        for e in measured(epochs)
        if any(p.load_s + p.timed_s > 0 for p in e.peers)
    ]
    return mean_interval(rates)


def epoch_seconds(epochs: Iterable[SwarmEpoch]) -> Estimate | None:
    """Mean wall time of the measured epochs."""
    return mean_interval([e.duration_s for e in measured(epochs) if e.duration_s is not None])


def dropped_rounds(epochs: Iterable[SwarmEpoch]) -> list[SwarmEpoch]:
    """The epochs, warm-up included, in which Hivemind lost part of a round; a lone peer's is none."""
    return [e for e in epochs if e.dropped]


def _peer_epoch(r: EpochRecord) -> PeerEpoch:
    timed_s = r.move_s + r.forward_s + r.backward_s + r.optimizer_local_s
    return PeerEpoch(r.vm, r.calc_s, r.comm_s, r.samples, r.load_s, timed_s, r.overlapped_s)


def _scrapes_by_epoch(progress: Sequence[ProgressRecord]) -> dict[int, list[tuple[float, int]]]:
    """(when, the swarm's samples) by the epoch that the swarm worked on, counted from 0, in order of time."""
    found: dict[int, list[tuple[float, int]]] = {}
    for r in progress:
        if r.vm == "":
            found.setdefault(r.epoch, []).append((r.at_s, r.samples))
    return {epoch: sorted(rows) for epoch, rows in found.items()}


def _crossing(
    scrapes: Sequence[tuple[float, int]], target: int, begin_s: float, end_s: float
) -> float | None:
    """When the swarm's samples passed the target, between the two scrapes around it.

    `scrapes`: of the epoch under way, which the record numbered one higher ends. None when they do not show it.
    """
    last: tuple[float, int] = (begin_s, 0)
    for at_s, samples in scrapes:
        if not begin_s <= at_s <= end_s:
            continue
        if samples >= target:
            rise = samples - last[1]
            return at_s if rise <= 0 else last[0] + (at_s - last[0]) * (target - last[1]) / rise
        last = (at_s, samples)
    # The averaging began between two scrapes: carry on at the rate of the epoch so far.
    if last[1] > 0 and last[0] > begin_s:
        crossed = begin_s + (last[0] - begin_s) * target / last[1]
        return crossed if crossed <= end_s else None
    return None


def _mean_loss(rows: Sequence[EpochRecord]) -> float | None:
    """Mean over the peers, weighted by samples; unknown when one peer's is (its training diverged)."""
    known = [(r.loss, r.samples) for r in rows if r.loss is not None]
    samples = sum(count for _, count in known)
    if len(known) < len(rows) or not samples:
        return None
    return math.fsum(loss * count for loss, count in known) / samples
