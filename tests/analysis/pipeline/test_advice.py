"""Advice from traces: rules by hand, and head-of-line blocking against its definition."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis.pipeline.advice import head_of_line, knee, shuffle_after
from analysis.pipeline.records import BatchRecord
from analysis.pipeline.statistics import Timing, WorkerCountStatistics, batch_statistics

S = 10**9


def consumed(number: int, ready_s: float, asked_s: float, wait_s: float, used_s: float = 0) -> BatchRecord:
    return BatchRecord(
        "vm",
        number,
        fetch_start_ns=0,
        fetch_ns=round(ready_s * S),
        arrived_ns=round(ready_s * S),
        wait_start_ns=round(asked_s * S),
        wait_ns=round(wait_s * S),
        consumed_ns=round(used_s * S),
    )


def timing(name: str, size: float | None) -> Timing:
    return Timing(name, 1, 1, 1, 1, 1, 1, size)


def row(
    workers: int, rate: float | None, cpu_s: float | None = None, half: float | None = 0.001
) -> WorkerCountStatistics:
    """`half`: of the rate's interval, over the rate."""
    interval = None if rate is None or half is None else (rate * (1 - half), rate * (1 + half))
    return WorkerCountStatistics(workers, batch_statistics([]), rate, cpu_s, interval)


def test_head_of_line_blocking_by_hand():
    # Batch 0 is ready after 2 s, batch 1 after 0.5 s: 1.5 s of the consumer's wait for batch 0 were lost.
    found = head_of_line([consumed(0, 2, 0, 2, 1), consumed(1, 0.5, 3, 0, 1)])
    assert found is not None
    assert (found.blocked_s, found.traced_s, found.out_of_order) == (1.5, 4, 1)
    assert found.sentence == (
        "in_order: false saves at most 1.50 s of 4.00 s, which the consumer waited while a later batch had arrived "
        "(batches that arrived before one with a lower number: 1)."
    )


def test_a_batch_on_its_way_blocks_nothing():
    first, later = consumed(0, 2, 0, 2, 1), consumed(1, 0.5, 3, 0)
    assert head_of_line([first, replace(later, arrived_ns=2 * S)]) is None
    without = head_of_line([first, replace(later, arrived_ns=None)])
    assert without is not None
    assert without.blocked_s == 1.5


def test_no_advice_where_nothing_lay_ready_or_little_was_lost():
    assert head_of_line([]) is None
    assert head_of_line([BatchRecord("vm", 0)]) is None
    assert head_of_line([consumed(0, 1, 0, 1), consumed(1, 2, 1, 1)]) is None
    assert head_of_line([consumed(0, 1, 0, 1, 100), consumed(1, 0.5, 101, 0)]) is None  # 0.5 s of 101 s


def test_knee_by_hand():
    found = knee([row(1, 100, 10), row(2, 190, 10.5), row(4, 196, 14), row(8, 199, 21)])
    assert found is not None
    assert (found.workers, found.most_workers) == (2, 8)
    assert found.sentence == (
        "More workers than 2 gain little: 2 deliver 190.0 samples/s, 8 deliver 199.0, and the CPU seconds go from 10.50 to "
        "21.00."
    )
    assert knee([row(1, 100), row(2, 200), row(4, 400)]) is None  # no knee yet
    assert knee([row(1, 100)]) is None
    assert knee([row(1, 100), row(2, None)]) is None


def test_a_knee_is_claimed_only_if_the_intervals_show_it():
    def of(*halves: float | None) -> int | None:
        rows = [
            row(n, rate, half=half) for n, rate, half in zip((1, 2, 4), (100, 190, 196), halves, strict=True)
        ]
        found = knee(rows)
        return None if found is None else found.workers

    # 190 / 196 = 0.969; its lower end is 0.95 where both rates are known to 1.4 %: hypot(1.4, 1.4) = 2 %
    assert of(0.01, 0.013, 0.013) == 2
    assert of(0.01, 0.015, 0.015) is None
    assert of(0.9, 0.013, 0.013) == 2  # fewer workers do not matter
    assert of(0.01, None, 0.013) is None
    assert of(0.01, 0.013, None) is None
    # more workers are slower: it takes no wide interval to say so
    slower = [row(1, 100, half=0.02), row(2, 200, half=0.05), row(4, 150, half=0.05)]
    found = knee(slower)
    assert found is not None
    assert (found.workers, found.most_samples_per_s) == (2, 150)


def test_shuffle_behind_the_smallest_output():
    ops = [timing("decode", 600_000), timing("crop", 150_000), timing("to_array", 602_112)]
    found = shuffle_after(ops, 600_000)
    assert found is not None
    assert found.op == "crop"
    assert found.sentence == (
        "Shuffle behind crop: a sample takes 150,000 bytes there, but 600,000 where it is shuffled now, so the same memory "
        "holds 4.0 times as many."
    )
    assert shuffle_after(ops, 110_000) is None  # the stored photo is smaller
    assert shuffle_after([*ops, timing("flip", None)], 600_000) is None
    assert shuffle_after([], 1) is None


@given(st.lists(st.tuples(*[st.integers(0, 50)] * 4), min_size=1, max_size=12))
def test_head_of_line_against_its_definition(rows: list[tuple[int, int, int, int]]):
    batches, now = [], 0
    for number, (ready, idle, wait, used) in enumerate(rows):
        batches.append(consumed(number, ready, now + idle, wait, used))
        now += idle + wait + used
    lost = 0
    for b in batches:
        later = [o.ready_ns for o in batches if o.consumed_start_ns > b.consumed_start_ns]
        if later:
            lost += max(0, b.consumed_start_ns - max(b.wait_start_ns, min(later)))
    found = head_of_line(batches)
    span = now * S - batches[0].wait_start_ns
    if lost and lost >= 0.01 * span:
        assert found is not None
        assert found.blocked_s == pytest.approx(lost / S)
    else:
        assert found is None
