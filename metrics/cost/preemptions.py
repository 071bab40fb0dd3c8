"""Cost of preemptions and pauses: dollars paid for VMs that did not train, samples lost, epochs slowed down.

A preempted VM costs, at full scale:
- *lost*: its seconds since its last averaging, whose gradients are lost (all its seconds, if it never averaged and
  was no replacement itself);
- *startup*: the seconds from request to the first training step of its replacements, up to the first that trains
  (all seconds of a replacement that never trained);
- *slowed*: the additional time of the other peers' epochs around the preemption, if it exceeds a tenth, relative to
  their epochs that no preemption affected. Communication is compared with its median, calculation with its median
  per sample, so an epoch shared by fewer peers does not count as slow.
Lost samples are the slot's own rate x the seconds from the last averaging to the replacement's first step (or to
the end of the training). A VM whose peer had finished before loses nothing. Unknown propagates: without a price of a
VM, its dollars and their sum are None; without an unaffected epoch of a peer, the slowdown is; without an epoch of a
slot, its samples are.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from statistics import median

from metrics.epochs.scaling import Scales, open_epoch_seconds
from metrics.epochs.throughput import PeerEpoch, SwarmEpoch
from metrics.records import EpochRecord, EventRecord, JoinRecord, VmEnd, VmRecord

_NOISE = 0.1  # share of an epoch; less additional time does not count as slow
_HOUR = Decimal(3600)


@dataclass(frozen=True)
class Preemption:
    """One preempted VM. Seconds, samples and dollars are at full scale. None: unknown."""

    vm: str
    slot: str
    location: str
    at_s: float  # unix, as measured
    replaced_by: str  # the next VM of its slot that trained; "": none
    lost_s: float
    startup_s: float
    absent_s: float  # of the slot: from the last averaging to the replacement's first step
    state_s: float | None  # part of startup_s: download of the swarm's state; None: no join, or unknown
    state_bytes: float | None
    lost_samples: float | None
    slowed_epochs: tuple[int, ...] | None
    slowed_s: float | None  # sum over the other peers
    lost_usd: Decimal | None
    startup_usd: Decimal | None
    slowed_usd: Decimal | None

    @property
    def usd(self) -> Decimal | None:
        """Sum of lost, startup and slowed."""
        return _sum((self.lost_usd, self.startup_usd, self.slowed_usd))


@dataclass(frozen=True)
class Pause:
    """A pause of the run, because it had fewer peers than `min_peers`. Times are unix seconds as measured."""

    began_s: float
    ended_s: float
    seconds: float  # at full scale
    usd: Decimal | None  # of the VMs rented meanwhile


@dataclass(frozen=True)
class Preemptions:
    """All preemptions and pauses of a run."""

    rows: tuple[Preemption, ...]
    pauses: tuple[Pause, ...]

    @property
    def usd(self) -> Decimal | None:
        """Cost of all preemptions in dollars; 0 without any."""
        return _sum(row.usd for row in self.rows)

    @property
    def lost_samples(self) -> float | None:
        """Samples lost by all preemptions."""
        lost = [row.lost_samples for row in self.rows]
        return None if None in lost else math.fsum(n for n in lost if n is not None)

    @property
    def slowed_epochs(self) -> tuple[int, ...] | None:
        """Numbers of the slowed epochs, without duplicates, ascending."""
        found: set[int] = set()
        for row in self.rows:
            if row.slowed_epochs is None:
                return None
            found |= set(row.slowed_epochs)
        return tuple(sorted(found))

    @property
    def paused_s(self) -> float:
        """Seconds of all pauses."""
        return math.fsum(p.seconds for p in self.pauses)

    @property
    def paused_usd(self) -> Decimal | None:
        """Dollars of the VMs rented during pauses."""
        return _sum(p.usd for p in self.pauses)


def preemptions(
    vms: Iterable[VmRecord],
    events: Iterable[EventRecord],
    records: Iterable[EpochRecord],
    joins: Iterable[JoinRecord],
    raw: Sequence[SwarmEpoch],
    full_scale: Sequence[SwarmEpoch],
    scales: Scales,
    now_s: float,
) -> Preemptions:
    """Return the preemptions and pauses of a run.

    `raw`, `full_scale`: the swarm epochs of `records`, raw and at full scale. `now_s`: the end of what still runs.
    """
    rows = sorted(vms, key=lambda row: (row.slot, row.generation))
    journal = list(events)
    finished = {event.vm for event in journal if event.kind == "transition" and event.to_state == "DONE"}
    lives = _lives(rows, records, joins, raw, full_scale, scales, now_s)
    taken = sorted((row for row in rows if _preempted(row)), key=lambda row: (_end(row, now_s), row.vm))
    chains = {row.vm: _chain(row, rows, lives) for row in taken}
    counted = {vm.vm for chain in chains.values() for vm in chain}
    windows = {row.vm: _window(row, chains[row.vm], lives, now_s) for row in taken}
    slow = _Slowness(raw, full_scale, {row.vm: row for row in rows}, windows)
    trained_until_s = max((e.ended_s for e in raw), default=now_s)
    found: list[Preemption] = []
    for row in taken:
        life, chain = lives[row.vm], chains[row.vm]
        next_ = chain[-1] if chain and lives[chain[-1].vm].began_s is not None else None
        never = row.vm not in counted and not life.averaged
        lost_s = life.unfinished_s + (life.startup_s if never else 0.0)
        began_s = None if next_ is None else lives[next_.vm].began_s
        back_s = trained_until_s if began_s is None else min(began_s, trained_until_s)
        absent_s = life.unfinished_s + max(0.0, back_s - _end(row, now_s)) * scales.time
        if row.vm in finished:
            lost_s = absent_s = 0.0
        rate = _rate(row.slot, rows, full_scale)
        join = lives[next_.vm].join if next_ is not None else None
        state_bytes = join.state_bytes if join is not None else None
        slowed = slow.of(row.vm, row.slot)
        found.append(
            Preemption(
                vm=row.vm,
                slot=row.slot,
                location=row.location,
                at_s=_end(row, now_s),
                replaced_by="" if next_ is None else next_.vm,
                lost_s=lost_s,
                startup_s=math.fsum(lives[vm.vm].startup_s for vm in chain),
                absent_s=absent_s,
                state_s=None if join is None else join.state_s * scales.time,
                state_bytes=None if state_bytes is None else state_bytes * scales.bytes,
                lost_samples=0.0 if row.vm in finished else None if rate is None else rate * absent_s,
                slowed_epochs=None if slowed is None else tuple(sorted({epoch for epoch, _, _ in slowed})),
                slowed_s=None if slowed is None else math.fsum(seconds for _, _, seconds in slowed),
                lost_usd=_usd(row, lost_s),
                startup_usd=_sum(_usd(vm, lives[vm.vm].startup_s) for vm in chain),
                slowed_usd=None if slowed is None else _sum(_usd(vm, s) for _, vm, s in slowed),
            )
        )
    return Preemptions(tuple(found), tuple(pauses(journal, rows, scales, now_s)))


def pauses(
    events: Iterable[EventRecord], vms: Iterable[VmRecord], scales: Scales, now_s: float
) -> list[Pause]:
    """Return the run's pauses: from a journal entry "run" to state "paused" until the next change of the run's state."""
    held = list(vms)
    spans: list[tuple[float, float]] = []
    began_s: float | None = None
    for event in sorted(events, key=lambda e: e.seq):
        if event.kind not in ("run", "run_ended"):
            continue
        if event.to_state == "paused":
            began_s = event.at_s if began_s is None else began_s
        elif began_s is not None:
            spans.append((began_s, event.at_s))
            began_s = None
    if began_s is not None:
        spans.append((began_s, max(began_s, now_s)))
    found: list[Pause] = []
    for began, ended in spans:
        usd = _sum(
            _usd(row, max(0.0, min(ended, _end(row, now_s)) - max(began, row.requested_s)) * scales.time)
            for row in held
            if _end(row, now_s) > began and row.requested_s < ended
        )
        found.append(Pause(began, ended, (ended - began) * scales.time, usd))
    return found


@dataclass(frozen=True)
class _Life:
    """Seconds of one VM, at full scale, that did not contribute to the training: before its first epoch and at its end."""

    startup_s: float  # from request to the first step, or to the end if it never trained
    unfinished_s: float  # from its last averaging (or its first step) to its end; 0: it never trained
    averaged: bool
    began_s: float | None  # unix; None: it never trained
    left_s: float  # unix: its last averaging, or its end if it never averaged
    last_epoch: int  # 0: none
    join: JoinRecord | None


def _lives(
    rows: Iterable[VmRecord],
    records: Iterable[EpochRecord],
    joins: Iterable[JoinRecord],
    raw: Sequence[SwarmEpoch],
    full_scale: Sequence[SwarmEpoch],
    scales: Scales,
    now_s: float,
) -> dict[str, _Life]:
    spans: dict[
        str, tuple[float, float, int]
    ] = {}  # start of the first epoch, end of the last, number of the last
    for record in records:
        first, last, number = spans.get(record.vm, (record.began_s, record.ended_s, record.epoch))
        spans[record.vm] = (
            min(first, record.began_s),
            max(last, record.ended_s),
            max(number, record.epoch),
        )
    joined = {join.vm: join for join in joins}
    lasts: dict[str, tuple[float, float]] = {}
    for before, after in zip(raw, full_scale, strict=True):
        for p, q in zip(before.peers, after.peers, strict=True):
            lasts[p.vm] = p.wall_s, q.wall_s
    lives: dict[str, _Life] = {}
    for row in rows:
        span, join, end_s = spans.get(row.vm), joined.get(row.vm), _end(row, now_s)
        began_s = join.at_s if join is not None else span[0] if span is not None else None
        startup_s = max(0.0, (end_s if began_s is None else min(began_s, end_s)) - row.requested_s)
        since_s = span[1] if span is not None else began_s
        open_s = 0.0 if since_s is None else max(0.0, end_s - since_s)
        raw_s, study_s = open_epoch_seconds(open_s, lasts.get(row.vm, (0.0, 0.0)))
        unfinished_s = (open_s - raw_s) * scales.time + study_s
        lives[row.vm] = _Life(
            startup_s=startup_s * scales.time,
            unfinished_s=unfinished_s,
            averaged=span is not None,
            began_s=began_s,
            left_s=end_s if span is None else min(span[1], end_s),
            last_epoch=0 if span is None else span[2],
            join=join,
        )
    return lives


def _chain(row: VmRecord, rows: Iterable[VmRecord], lives: Mapping[str, _Life]) -> list[VmRecord]:
    """Return the VM's replacements, up to the first that trained or was preempted itself."""
    chain: list[VmRecord] = []
    for vm in rows:
        if vm.slot == row.slot and vm.generation > row.generation:
            chain.append(vm)
            if lives[vm.vm].began_s is not None or _preempted(vm):
                break
    return chain


@dataclass(frozen=True)
class _Window:
    """The time affected by a preemption: from the peer's last averaging to its replacement's first step."""

    after_epoch: int
    left_s: float
    back_s: float  # without a replacement: the VM's end

    def touches(self, epoch: SwarmEpoch) -> bool:
        """Whether the preemption, the slot's absence or its return overlaps the epoch."""
        own_s = max((p.wall_s for p in epoch.peers), default=0.0)
        began_s = epoch.ended_s - (own_s if epoch.duration_s is None else epoch.duration_s)
        return epoch.epoch > self.after_epoch and self.left_s <= epoch.ended_s and began_s <= self.back_s


def _window(row: VmRecord, chain: Sequence[VmRecord], lives: Mapping[str, _Life], now_s: float) -> _Window:
    life, end_s = lives[row.vm], _end(row, now_s)
    back_s = lives[chain[-1].vm].began_s if chain else None
    return _Window(life.last_epoch, life.left_s, end_s if back_s is None else max(end_s, back_s))


class _Slowness:
    """Seconds above the medians that other peers spent in epochs affected by a preemption."""

    def __init__(
        self,
        raw: Sequence[SwarmEpoch],
        full_scale: Sequence[SwarmEpoch],
        rows: Mapping[str, VmRecord],
        windows: Mapping[str, _Window],
    ) -> None:
        self._rows = rows
        self._touched: dict[str, list[SwarmEpoch]] = {vm: [] for vm in windows}
        quiet: list[SwarmEpoch] = []
        for before, after in zip(raw, full_scale, strict=True):
            whose = next((vm for vm, window in windows.items() if window.touches(before)), None)
            if whose is not None:  # an epoch is attributed to the first preemption that affects it
                self._touched[whose].append(after)
            elif not after.warmup and after.complete:
                quiet.append(after)
        self._comm_s = _medians(quiet, _exposed_s)
        self._sample_s = _medians(quiet, lambda p: p.calc_s / p.samples if p.samples else None)

    def of(self, vm: str, slot: str) -> list[tuple[int, VmRecord, float]] | None:
        """Return (epoch, VM, additional seconds) of other peers that were slow. None if one has no median."""
        found: list[tuple[int, VmRecord, float]] = []
        for epoch in self._touched[vm]:
            for p in epoch.peers:
                row = self._rows.get(p.vm)
                if row is None or row.slot == slot:
                    continue
                comm_s, sample_s = self._comm_s.get(p.vm), self._sample_s.get(p.vm)
                if comm_s is None or sample_s is None:
                    return None
                calc_s = sample_s * p.samples
                extra_s = max(0.0, _exposed_s(p) - comm_s) + max(0.0, p.calc_s - calc_s)
                if extra_s > _NOISE * (comm_s + calc_s):
                    found.append((epoch.epoch, row, extra_s))
        return found


def _exposed_s(p: PeerEpoch) -> float:
    """Return the communication that did not overlap with calculation."""
    return p.comm_s - p.overlapped_s


def _medians(epochs: Iterable[SwarmEpoch], value: Callable[[PeerEpoch], float | None]) -> dict[str, float]:
    found: dict[str, list[float]] = {}
    for epoch in epochs:
        for p in epoch.peers:
            known = value(p)
            if known is not None:
                found.setdefault(p.vm, []).append(known)
    return {vm: median(values) for vm, values in found.items()}


def _rate(slot: str, rows: Iterable[VmRecord], full_scale: Iterable[SwarmEpoch]) -> float | None:
    """Return samples per second of the slot's VMs over their epochs, averaging included.

    The warm-up counts only if there are no other epochs.
    """
    mine = {row.vm for row in rows if row.slot == slot}
    parts = [(e.warmup, p) for e in full_scale for p in e.peers if p.vm in mine]
    chosen = [p for warmup, p in parts if not warmup] or [p for _, p in parts]
    seconds = math.fsum(p.wall_s for p in chosen)
    return math.fsum(p.samples for p in chosen) / seconds if seconds > 0 else None


def _preempted(row: VmRecord) -> bool:
    return row.end is VmEnd.PREEMPTED


def _end(row: VmRecord, now_s: float) -> float:
    return max(row.requested_s, now_s if row.ended_s is None else row.ended_s)


def _usd(row: VmRecord, seconds: float) -> Decimal | None:
    return None if row.usd_per_h is None else row.usd_per_h * Decimal(repr(seconds)) / _HOUR


def _sum(amounts: Iterable[Decimal | None]) -> Decimal | None:
    total = Decimal(0)
    for usd in amounts:
        if usd is None:
            return None
        total += usd
    return total
