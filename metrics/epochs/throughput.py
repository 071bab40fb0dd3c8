"""Swarm epochs from the peers' epochs, and samples per second by wall clock from those.

A swarm epoch ends at the mean of its peers' `ended_s`. The wall time of epoch k is its end minus the end of
epoch k-1 (for the first, also of those trained again after the loss of all peers: minus the mean of its peers'
`began_s`). An epoch without a record of its predecessor has no wall time and is not measured. Warm-up epochs, and
a last epoch that some running peer has not reported yet, are listed but not measured. If a monitor logged the whole
swarm (imported logs), end, wall time and samples are the monitor's; calculation and communication are always the
peers'.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from metrics.epochs.restarts import training
from metrics.records import EpochRecord, ProgressRecord, SwarmEpochRecord, VmRecord
from metrics.stats import Estimate, mean_interval, ratio_interval, ratio_values


@dataclass(frozen=True, slots=True)
class PeerEpoch:
    """One peer's epoch."""

    vm: str
    calc_s: float  # wall time outside the synchronising step
    comm_s: float  # wall time of the round; `overlapped_s` of it are also part of calc_s
    samples: float  # of this peer; whole as measured, not at full scale
    load_s: float = 0.0  # part of calc_s: waiting for data
    timed_s: float = (
        0.0  # part of calc_s: the paper's phase timers (move, forward, backward, local optimizer)
    )
    overlapped_s: float = 0.0  # part of the round during which this peer calculated

    @property
    def wall_s(self) -> float:
        """Wall seconds of the epoch, without pauses."""
        return self.calc_s + self.comm_s - self.overlapped_s

    @property
    def granularity(self) -> float | None:
        """Calculation / communication. None without communication."""
        return self.calc_s / self.comm_s if self.comm_s > 0 else None

    @property
    def stall_free_calc_s(self) -> float | None:
        """Calculation without the stall, `load_s`. None if the log has no such seconds: a timed load never takes 0 s."""
        return self.calc_s - self.load_s if self.load_s > 0 else None


@dataclass(frozen=True, slots=True)
class SwarmEpoch:
    """One hivemind epoch of all peers."""

    epoch: int
    peers: tuple[PeerEpoch, ...]  # empty: only the monitor logged this epoch
    ended_s: float  # unix, as measured at any scale
    duration_s: float | None  # wall time since the end of the previous epoch; None: unknown or not > 0
    loss: float | None  # mean over peers, weighted by samples
    joined: tuple[str, ...]  # peers that were not in the previous epoch
    left: tuple[str, ...]  # peers of the previous epoch that are not in this one
    dropped: tuple[tuple[str, str], ...]  # (peer, why part of its round was lost)
    lone: bool  # one peer, and no other VM that ever trained was running when its round began
    crossed_s: float | None  # unix: when the swarm's samples reached the target, interpolated
    warmup: bool
    complete: bool  # False: the run's last epoch, which a running peer has not reported yet
    watched_samples: float | None = None  # of the whole swarm, if a monitor logged it

    @property
    def samples(self) -> float:
        """Samples of all peers: the monitor's count, else the sum over the peers."""
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
    """Return the swarm epochs, ascending, without those that were lost with all peers (metrics/epochs/restarts.py).

    The order of the records does not matter; of two records with the same key the later one counts.

    `watched`: a monitor's log of the whole swarm. An epoch that it logged with the rate 0 has no wall time.

    `target_batch_size`: the raw one, as passed to the peers. With it and `progress`, the time at which the target was
    reached is interpolated between two progress records.
    """
    vms = list(vms)
    by_epoch: dict[int, dict[str, EpochRecord]] = {}
    divided = training(records, vms)
    for record in sorted(divided.kept, key=lambda r: r.ended_s):
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
        before = None if number in divided.firsts else by_epoch.get(number - 1)
        watch = seen.get(number)
        if watch is not None:
            end = watch.ended_s
            duration = watch.duration_s if watch.sps != 0 else None
            begin = None if duration is None else end - duration
        else:
            end = math.fsum(r.ended_s for r in rows) / len(rows)
            if before is not None:
                begin = math.fsum(r.ended_s for r in before.values()) / len(before)
            elif number == numbers[0] or number in divided.firsts:
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


def samples_until(epochs: Iterable[SwarmEpoch], start_epoch: int = 0) -> dict[int, float]:
    """Return the samples trained on until the end of each epoch, up to the first incomplete or missing epoch.

    `start_epoch`: of the checkpoint with which the run began; samples before it are not counted.
    """
    found: dict[int, float] = {}
    total = 0.0
    for expected, epoch in enumerate(sorted(epochs, key=lambda one: one.epoch), start_epoch + 1):
        if epoch.epoch != expected or not epoch.complete:
            break
        total += epoch.samples
        found[epoch.epoch] = total
    return found


def measured(epochs: Iterable[SwarmEpoch]) -> list[SwarmEpoch]:
    """Return the epochs that count: complete, after the warm-up, with a wall time."""
    return [e for e in epochs if e.complete and not e.warmup and e.duration_s is not None]


def throughput(epochs: Iterable[SwarmEpoch]) -> Estimate | None:
    """Return samples / wall time of the measured epochs. None without a measured epoch."""
    chosen = measured(epochs)
    return ratio_interval([e.samples for e in chosen], [e.duration_s or 0.0 for e in chosen])


def throughput_values(epochs: Iterable[SwarmEpoch]) -> list[float]:
    """Return a value per measured epoch, whose mean and t interval are `throughput`. [] without a measured epoch.

    They are no epoch's own rate, whose mean is another figure (`throughput_epoch_mean`): a long epoch counts for more
    (`metrics.stats.ratio_values`).
    """
    chosen = measured(epochs)
    return ratio_values([e.samples for e in chosen], [e.duration_s or 0.0 for e in chosen]) if chosen else []


def throughput_epoch_mean(epochs: Iterable[SwarmEpoch]) -> Estimate | None:
    """Return the mean of the measured epochs' rates, as the paper reports it."""
    return mean_interval([e.samples / e.duration_s for e in measured(epochs) if e.duration_s])


def local_throughput(epochs: Iterable[SwarmEpoch]) -> Estimate | None:
    """Return the sum over peers of samples / calculation time, averaged over the measured epochs."""
    rates = [
        math.fsum(p.samples / p.calc_s for p in e.peers if p.calc_s > 0)
        for e in measured(epochs)
        if any(p.calc_s > 0 for p in e.peers)
    ]
    return mean_interval(rates)


def throughput_phase_timed(epochs: Iterable[SwarmEpoch]) -> Estimate | None:
    """Return the sum over peers of samples / sum of phase timers, averaged over the measured epochs.

    The paper measures a single GPU in this way. Averaging, and time outside the phases, is not included.
    """
    rates = [
        math.fsum(p.samples / (p.load_s + p.timed_s) for p in e.peers if p.load_s + p.timed_s > 0)
        for e in measured(epochs)
        if any(p.load_s + p.timed_s > 0 for p in e.peers)
    ]
    return mean_interval(rates)


def epoch_seconds(epochs: Iterable[SwarmEpoch]) -> Estimate | None:
    """Return the mean wall time of the measured epochs."""
    return mean_interval([e.duration_s for e in measured(epochs) if e.duration_s is not None])


def dropped_rounds(epochs: Iterable[SwarmEpoch]) -> list[SwarmEpoch]:
    """Return the epochs, warm-up included, in which Hivemind lost part of a round. Epochs of a lone peer never count."""
    return [e for e in epochs if e.dropped]


def _peer_epoch(r: EpochRecord) -> PeerEpoch:
    timed_s = r.move_s + r.forward_s + r.backward_s + r.optimizer_local_s
    return PeerEpoch(r.vm, r.calc_s, r.comm_s, r.samples, r.load_s, timed_s, r.overlapped_s)


def _scrapes_by_epoch(progress: Sequence[ProgressRecord]) -> dict[int, list[tuple[float, int]]]:
    """Return (time, samples of the swarm) by the current epoch, counted from 0, sorted by time."""
    found: dict[int, list[tuple[float, int]]] = {}
    for r in progress:
        if r.vm == "":
            found.setdefault(r.epoch, []).append((r.at_s, r.samples))
    return {epoch: sorted(rows) for epoch, rows in found.items()}


def _crossing(
    scrapes: Sequence[tuple[float, int]], target: int, begin_s: float, end_s: float
) -> float | None:
    """Interpolate when the swarm's samples reached the target, between the two scrapes around that time.

    `scrapes`: those of the epoch in progress, whose record has a number one higher. None if they do not show it.
    """
    last: tuple[float, int] = (begin_s, 0)
    for at_s, samples in scrapes:
        if not begin_s <= at_s <= end_s:
            continue
        if samples >= target:
            rise = samples - last[1]
            return at_s if rise <= 0 else last[0] + (at_s - last[0]) * (target - last[1]) / rise
        last = (at_s, samples)
    # The averaging began between two scrapes: extrapolate the rate of the epoch so far.
    if last[1] > 0 and last[0] > begin_s:
        crossed = begin_s + (last[0] - begin_s) * target / last[1]
        return crossed if crossed <= end_s else None
    return None


def _mean_loss(rows: Sequence[EpochRecord]) -> float | None:
    """Return the mean over the peers, weighted by samples. None if one peer's loss is unknown (training diverged)."""
    known = [(r.loss, r.samples) for r in rows if r.loss is not None]
    samples = sum(count for _, count in known)
    if len(known) < len(rows) or not samples:
        return None
    return math.fsum(loss * count for loss, count in known) / samples
