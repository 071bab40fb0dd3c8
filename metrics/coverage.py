"""How often each sample of the training data was used in each pass: once, more than once, never, or unknown. Pure.

A sample counts as used (seen) in a pass when it was handed to an accelerator step that ended, forward and backward pass.
It also counts if its gradients were lost later. After the loss of all peers, slots go back in the data to the position of
the restored checkpoint, and what is used again is counted again. A sample is identified by its shard and by its place in
the shard's reading order of the pass, which is the same on every peer.

A pass is a number over a slot's share, so peers may be in different passes at the same time. What is counted for a pass
is what all of them used under its number.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from operator import attrgetter
from typing import Any

from metrics.records import COVERAGE_END, COVERAGE_SIZE, COVERAGE_USED, CoverageRecord, VmRecord

MAX_PASSES = 1000  # listed, the first ones: reports come from VMs
_IN_ORDER = attrgetter(*CoverageRecord.__slots__)
_Interval = tuple[int, int]  # from, up to before
_Place = tuple[int, int]  # pass, shard


@dataclass(frozen=True, slots=True)
class PassCoverage:
    """Samples of one pass. `counted` = once + more + never + unknown.

    All samples of a shard are counted if its size is known: once a peer has read it to its end. Of another shard, those
    up to the last one known to be used.
    """

    number: int  # from 1
    once: int
    more: int  # twice or more often
    never: int  # not, or not yet
    unknown: (
        int  # a VM that ended without its last report may have used them: never or once, or once or twice
    )
    unsized_shards: int  # whose size no peer reported, or peers report different ones

    @property
    def counted(self) -> int:
        """Number of samples that are counted."""
        return self.once + self.more + self.never + self.unknown

    @property
    def samples(self) -> int | None:
        """Number of samples of the data. None: the size of a shard is unknown."""
        return None if self.unsized_shards else self.counted

    @property
    def sentence(self) -> str:
        """The counts in words, without a full stop."""
        total = f"{self.counted:,} samples" if self.samples is not None else "samples of unknown number"
        parts = [f"{self.once:,} seen once"]
        parts += [f"{self.more:,} twice or more"] if self.more else []
        if self.samples is not None:
            parts += [f"{self.never:,} not (yet)"] if self.never else []
        else:
            shards = "1 shard" if self.unsized_shards == 1 else f"{self.unsized_shards:,} shards"
            parts += [f"{self.never:,} not (yet), besides those of {shards} of unknown size"]
        parts += [f"{self.unknown:,} unknown"] if self.unknown else []
        return f"pass {self.number:,}: {total}: {', '.join(parts)}"

    def to_json(self) -> dict[str, Any]:
        """Return it as in `orch report -o json`; `samples` null: the size of a shard is unknown."""
        counts = {name: getattr(self, name) for name in ("once", "more", "never", "unknown")}
        return {"pass": self.number, "samples": self.samples, "counted": self.counted, **counts} | {
            "unsized_shards": self.unsized_shards
        }


@dataclass(frozen=True, slots=True)
class Handover:
    """Where a VM went on in the data, compared with the reports of its slot's VM before it."""

    slot: str
    vm: str  # that ended
    replaced_by: str
    repeated_samples: int  # that both used in the same pass
    repeated_shards: int  # in which there are such samples, by pass
    # Not used by either, between the last sample of the one and the first of the other. None: they are in other shards.
    skipped_samples: int | None


@dataclass(frozen=True, slots=True)
class Coverage:
    """What a run's peers used of the training data."""

    shards: int
    passes: tuple[PassCoverage, ...]
    left_out_passes: int  # beyond the first `MAX_PASSES`
    open_vms: tuple[
        str, ...
    ]  # ended without a last report: they may have used more, the next shards included
    incomplete_vms: tuple[str, ...]  # some of whose reports are missing: they used more
    silent_vms: tuple[str, ...]  # trained, but no report is known
    handovers: tuple[Handover, ...]

    def to_json(self) -> dict[str, Any]:
        """Return it as in `orch report -o json`."""
        return {
            "shards": self.shards,
            "passes": [one.to_json() for one in self.passes],
            "left_out_passes": self.left_out_passes,
            "open_vms": list(self.open_vms),
            "incomplete_vms": list(self.incomplete_vms),
            "silent_vms": list(self.silent_vms),
            "handovers": [asdict(one) for one in self.handovers],
        }


@dataclass(frozen=True, slots=True)
class _Reports:
    """What one VM reported."""

    used: Mapping[_Place, Sequence[_Interval]]  # disjoint, ascending
    first: tuple[_Place, int] | None  # place and number of the sample that it used first
    last: tuple[_Place, int] | None  # place of the last one, and the number after it
    ended: bool  # with its last report
    complete: bool

    def tail(self) -> tuple[_Place, int] | None:
        """Where it may have used more than it reported: from which sample of which place on."""
        if self.ended or self.last is None:
            return None
        place = self.last[0]
        return place, self.used[place][0][0]  # also the gaps: samples may be delivered out of order


def coverage_of(
    rows: Iterable[CoverageRecord], shards: int | None, vms: Sequence[VmRecord], trained: Iterable[str]
) -> Coverage | None:
    """Combine the reports of all peers, in any order and repeated or not.

    `shards`: of the data; None: unknown, as in runs of before these reports. `trained`: the VMs known to have trained.
    Returns None, unknown, without any report. A VM that has not ended is not behind: its reports are taken as they are.
    """
    by_vm: dict[str, dict[int, CoverageRecord]] = {}
    for row in sorted(rows, key=_IN_ORDER):  # two rows of one number: the same one, whatever their order
        by_vm.setdefault(row.vm, {}).setdefault(row.number, row)
    if not by_vm or not shards:
        return None
    known = {vm: _reports(numbered) for vm, numbered in sorted(by_vm.items())}
    sizes = _sizes(row for numbered in by_vm.values() for row in numbered.values())
    ended = {row.vm for row in vms if row.ended_s is not None}
    tails: dict[_Place, list[tuple[str, int]]] = {}
    for vm in ended & set(known):
        if (tail := known[vm].tail()) is not None:
            tails.setdefault(tail[0], []).append((vm, tail[1]))
    used: dict[int, dict[int, dict[str, Sequence[_Interval]]]] = {}
    for vm, reports in known.items():
        for (number, shard), intervals in reports.used.items():
            used.setdefault(number, {}).setdefault(shard, {})[vm] = intervals
    numbers, all_sized = sorted(used), sum(sizes.values())
    return Coverage(
        shards,
        tuple(_pass(one, used[one], sizes, all_sized, shards, tails) for one in numbers[:MAX_PASSES]),
        len(numbers[MAX_PASSES:]),
        tuple(vm for vm, reports in known.items() if vm in ended and not reports.ended),
        tuple(vm for vm, reports in known.items() if not reports.complete),
        tuple(sorted(set(trained) - set(known))),
        _handovers(known, vms),
    )


def _reports(numbered: Mapping[int, CoverageRecord]) -> _Reports:
    rows = [numbered[number] for number in sorted(numbered)]
    used = [row for row in rows if row.what == COVERAGE_USED and row.first < row.end]
    places: dict[_Place, list[_Interval]] = {}
    for row in used:
        places.setdefault((row.pass_number, row.shard), []).append((row.first, row.end))
    joined = {place: _union(intervals) for place, intervals in places.items()}
    first = last = None
    if used:
        began, stopped = (
            (used[0].pass_number, used[0].shard),
            (used[-1].pass_number, used[-1].shard),
        )
        first, last = (began, joined[began][0][0]), (stopped, joined[stopped][-1][1])
    ended = rows[-1].what == COVERAGE_END
    return _Reports(joined, first, last, ended, complete=rows[-1].number == len(rows) - 1)


def _sizes(rows: Iterable[CoverageRecord]) -> dict[int, int]:
    """Samples by shard; without those of which different sizes are reported."""
    found: dict[int, set[int]] = {}
    for row in rows:
        if row.what == COVERAGE_SIZE:
            found.setdefault(row.shard, set()).add(row.end)
    return {shard: next(iter(sizes)) for shard, sizes in found.items() if len(sizes) == 1}


def _pass(
    number: int,
    used: Mapping[int, Mapping[str, Sequence[_Interval]]],
    sizes: Mapping[int, int],
    all_sized: int,
    shards: int,
    tails: Mapping[_Place, Sequence[tuple[str, int]]],
) -> PassCoverage:
    once = more = unknown = counted = 0
    for shard, by_vm in used.items():
        extent = sizes.get(shard, max(intervals[-1][1] for intervals in by_vm.values()))
        maybe = [
            gap
            for vm, first in tails.get((number, shard), ())
            for gap in _gaps(by_vm.get(vm, ()), first, extent)
        ]
        one, several, open_ = _counts(
            [span for intervals in by_vm.values() for span in intervals], maybe, extent
        )
        once, more, unknown, counted = once + one, more + several, unknown + open_, counted + extent
    counted += all_sized - sum(sizes.get(shard, 0) for shard in used)
    unsized = max(0, shards - len(sizes))
    return PassCoverage(number + 1, once, more, counted - once - more - unknown, unknown, unsized)


def _counts(used: Iterable[_Interval], maybe: Iterable[_Interval], extent: int) -> tuple[int, int, int]:
    """Samples below `extent` in exactly one interval of `used`, in several, and of unknown count: in `maybe` and not in several."""
    changes: dict[int, list[int]] = {}
    for kind, intervals in enumerate((used, maybe)):
        for first, end in intervals:
            changes.setdefault(min(first, extent), [0, 0])[kind] += 1
            changes.setdefault(min(end, extent), [0, 0])[kind] -= 1
    once = more = unknown = at = seen = perhaps = 0
    for here in sorted(changes):
        length = here - at
        if seen >= 2:
            more += length
        elif perhaps:
            unknown += length
        elif seen:
            once += length
        at = here
        seen, perhaps = seen + changes[here][0], perhaps + changes[here][1]
    return once, more, unknown


def _handovers(known: Mapping[str, _Reports], vms: Sequence[VmRecord]) -> tuple[Handover, ...]:
    slots: dict[str, list[VmRecord]] = {}
    for row in sorted(vms, key=lambda row: row.generation):
        if row.vm in known and known[row.vm].last is not None:
            slots.setdefault(row.slot, []).append(row)
    return tuple(
        _handover(slot, before.vm, after.vm, known[before.vm], known[after.vm])
        for slot, rows in sorted(slots.items())
        for before, after in pairwise(rows)
    )


def _handover(slot: str, vm: str, by: str, before: _Reports, after: _Reports) -> Handover:
    repeated = {
        place: both
        for place in before.used.keys() & after.used.keys()
        if (both := _counts([*before.used[place], *after.used[place]], (), _end(before, after, place))[1])
    }
    assert before.last is not None
    assert after.first is not None
    (place, end), (began_at, began) = before.last, after.first
    skipped = max(0, began - end) if place == began_at else None
    return Handover(slot, vm, by, sum(repeated.values()), len(repeated), skipped)


def _end(before: _Reports, after: _Reports, place: _Place) -> int:
    return max(before.used[place][-1][1], after.used[place][-1][1])


def _union(intervals: Iterable[_Interval]) -> list[_Interval]:
    """Disjoint intervals with the same samples, ascending, as few as possible."""
    found: list[_Interval] = []
    for first, end in sorted(intervals):
        if found and first <= found[-1][1]:
            found[-1] = (found[-1][0], max(end, found[-1][1]))
        else:
            found.append((first, end))
    return found


def _gaps(intervals: Sequence[_Interval], first: int, end: int) -> list[_Interval]:
    """What disjoint ascending `intervals` leave between `first` and `end`."""
    found: list[_Interval] = []
    at = first
    for begins, ends in intervals:
        if begins > at:
            found.append((at, min(begins, end)))
        at = max(at, ends)
    if at < end:
        found.append((at, end))
    return [(a, b) for a, b in found if a < b]
