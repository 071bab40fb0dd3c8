"""The combination of all peers' reports into samples seen once, more than once, never and of unknown count."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metrics import coverage as module
from metrics.coverage import Coverage, Handover, coverage_of
from metrics.records import COVERAGE_END, COVERAGE_SIZE, COVERAGE_USED, CoverageRecord, VmRecord

SHARDS = 3
Row = tuple[str, int, int, int, int]  # what, pass, shard, first, end


def vm(name: str, *, ended: bool = False) -> VmRecord:
    slot, _, generation = name.partition("-")
    return VmRecord(
        name, slot, int(generation), "gcp/us/a", "n1", "T4:1", True, Decimal(1), "", "", 0.0, 1.0, 9.0 if ended else None, ""
    )  # fmt: skip


def used(pass_number: int, shard: int, first: int, end: int) -> Row:
    return COVERAGE_USED, pass_number, shard, first, end


def size(shard: int, samples: int) -> Row:
    return COVERAGE_SIZE, 0, shard, 0, samples


END: Row = (COVERAGE_END, 0, 0, 0, 0)


def reports(name: str, *rows: Row) -> list[CoverageRecord]:
    return [CoverageRecord(name, number, *row) for number, row in enumerate(rows)]


def found(rows: Sequence[CoverageRecord], vms: Sequence[VmRecord], shards: int = SHARDS) -> Coverage:
    result = coverage_of(rows, shards, vms, {row.vm for row in vms})
    assert result is not None
    return result


@st.composite
def _peer(draw: st.DrawFn, name: str) -> tuple[list[Row], bool]:
    """What one VM reports: some intervals, perhaps sizes and the last report; and whether it has ended."""
    spans = draw(
        st.lists(
            st.tuples(st.integers(0, 1), st.integers(0, SHARDS - 1), st.integers(0, 9), st.integers(1, 10)),
            max_size=6,
        )
    )
    rows = [used(p, s, a, b) for p, s, a, b in spans if a < b]
    rows += [size(shard, 10) for shard in draw(st.sets(st.integers(0, SHARDS - 1)))]
    done = draw(st.booleans())
    return [*rows, *([END] if done else [])], draw(st.booleans())


NAMES = ("a-0", "a-1", "b-0", "c-0")
SWARMS = st.tuples(*(_peer(name) for name in NAMES))


@given(SWARMS, st.randoms(use_true_random=False))
def test_parts_add_up_and_neither_the_order_of_reports_nor_a_repeated_one_matters(
    swarm: tuple[tuple[list[Row], bool], ...], random: object
) -> None:
    vms = [vm(name, ended=ended) for name, (_, ended) in zip(NAMES, swarm, strict=True)]
    rows = [row for name, (told, _) in zip(NAMES, swarm, strict=True) for row in reports(name, *told)]
    result = coverage_of(rows, SHARDS, vms, NAMES)
    mixed = [*rows, *rows[::2]]
    random.shuffle(mixed)  # type: ignore[attr-defined]
    assert coverage_of(mixed, SHARDS, vms, NAMES) == result
    if result is None:
        assert rows == []
        return
    sizes = {row.shard: row.end for row in rows if row.what == COVERAGE_SIZE}
    assert [one.number for one in result.passes] == sorted(
        {row.pass_number + 1 for row in rows if row.what == COVERAGE_USED}
    )
    for one in result.passes:
        assert one.once + one.more + one.never + one.unknown == one.counted
        assert min(one.once, one.more, one.never, one.unknown) >= 0
        assert one.samples == (10 * SHARDS if len(sizes) == SHARDS else None)
        assert one.unsized_shards == SHARDS - len(sizes)


@given(SWARMS)
def test_counts_are_those_of_counting_each_sample(swarm: tuple[tuple[list[Row], bool], ...]) -> None:
    """VMs that have not ended have no unknown samples: a sample's count is the number of VMs that report it."""
    rows = [row for name, (told, _) in zip(NAMES, swarm, strict=True) for row in reports(name, *told)]
    rows += reports("z-0", *(size(shard, 10) for shard in range(SHARDS)))
    times: Counter[tuple[int, int, int]] = Counter()
    for by in {row.vm for row in rows}:
        mine = {
            (row.pass_number, row.shard, sample)
            for row in rows
            if row.vm == by and row.what == COVERAGE_USED
            for sample in range(row.first, row.end)
        }
        times.update(mine)
    for one in found(rows, [vm(name) for name in NAMES]).passes:
        counts = [count for (at, *_), count in times.items() if at == one.number - 1]
        assert (one.once, one.more) == (counts.count(1), sum(count > 1 for count in counts))
        assert (one.never, one.unknown) == (10 * SHARDS - len(counts), 0)


@given(SWARMS)
def test_a_vm_that_dies_only_makes_samples_unknown(swarm: tuple[tuple[list[Row], bool], ...]) -> None:
    rows = [row for name, (told, _) in zip(NAMES, swarm, strict=True) for row in reports(name, *told)]
    alive = coverage_of(rows, SHARDS, [vm(name) for name in NAMES], NAMES)
    dead = coverage_of(rows, SHARDS, [vm(name, ended=True) for name in NAMES], NAMES)
    if alive is None or dead is None:
        assert alive == dead
        return
    for before, after in zip(alive.passes, dead.passes, strict=True):
        assert after.counted == before.counted
        assert after.once <= before.once
        assert after.never <= before.never
        assert (after.more, before.unknown) == (before.more, 0)


def test_a_preempted_peer_and_its_replacement() -> None:
    """The first VM reported 40 of 100 samples and used perhaps more; the next one went on 5 before that."""
    rows = reports("a-0", used(0, 0, 0, 100), size(0, 100), used(0, 1, 0, 40), size(1, 100))
    rows += reports("a-1", used(0, 1, 35, 80), END)
    result = found(rows, [vm("a-0", ended=True), vm("a-1", ended=True)], shards=2)
    (one,) = result.passes
    assert (one.samples, one.once, one.more, one.never, one.unknown) == (200, 135, 5, 0, 60)
    assert (result.open_vms, result.incomplete_vms, result.silent_vms) == (("a-0",), (), ())
    assert result.handovers == (Handover("a", "a-0", "a-1", 5, 1, 0),)
    assert one.sentence == "pass 1: 200 samples: 135 seen once, 5 twice or more, 60 unknown"


def test_a_replacement_that_leaves_samples_out_or_goes_on_elsewhere_is_told() -> None:
    rows = (
        reports("a-0", used(0, 1, 0, 40))
        + reports("a-1", used(0, 1, 50, 60))
        + reports("a-2", used(1, 0, 0, 5))
    )
    result = found(rows, [vm("a-0", ended=True), vm("a-1", ended=True), vm("a-2")])
    assert [(one.repeated_samples, one.skipped_samples) for one in result.handovers] == [(0, 10), (0, None)]


def test_peers_in_different_passes_are_counted_by_pass() -> None:
    sizes = [size(shard, 10) for shard in range(SHARDS)]
    rows = reports("a-0", *sizes, used(0, 0, 0, 10), used(1, 0, 0, 4)) + reports("b-0", used(0, 1, 0, 3))
    result = found(rows, [vm("a-0"), vm("b-0")])
    assert [one.sentence for one in result.passes] == [
        "pass 1: 30 samples: 13 seen once, 17 not (yet)",
        "pass 2: 30 samples: 4 seen once, 26 not (yet)",
    ]


def test_without_reports_coverage_is_unknown() -> None:
    assert coverage_of([], SHARDS, [vm("a-0")], ["a-0"]) is None
    assert coverage_of(reports("a-0", used(0, 0, 0, 1)), None, [vm("a-0")], ["a-0"]) is None


def test_shards_of_unknown_or_disputed_size_make_the_total_unknown() -> None:
    rows = reports("a-0", used(0, 0, 0, 6), used(0, 0, 8, 9), size(1, 10)) + reports("b-0", size(1, 11))
    (one,) = found(rows, [vm("a-0"), vm("b-0")]).passes
    assert (one.samples, one.once, one.never, one.unsized_shards) == (None, 7, 2, 3)
    assert one.sentence == (
        "pass 1: samples of unknown number: 7 seen once, 2 not (yet), besides those of 3 shards of unknown size"
    )


def test_missing_reports_and_silent_vms_are_named() -> None:
    rows = reports("a-0", used(0, 0, 0, 6), used(0, 0, 6, 9), END)
    result = found([rows[0], rows[2]], [vm("a-0", ended=True), vm("b-0")])
    assert (result.incomplete_vms, result.silent_vms, result.open_vms) == (("a-0",), ("b-0",), ())


def test_the_number_of_passes_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_PASSES", 2)
    rows = reports("a-0", *(used(number, 0, 0, 1) for number in (5, 0, 9, 2)))
    result = found(rows, [vm("a-0")])
    assert ([one.number for one in result.passes], result.left_out_passes) == ([1, 3], 2)


def test_two_reports_of_one_number_count_once_in_any_order() -> None:
    one = reports("a-0", used(0, 0, 0, 6))[0]
    other = replace(one, first=2, end=9)
    assert found([one, other], [vm("a-0")]) == found([other, one], [vm("a-0")])
