"""Statistics of a trace: worked by hand, and against naive implementations."""

from __future__ import annotations

import math
import statistics
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis.pipeline.records import BatchRecord, OpRecord, Trace
from analysis.pipeline.statistics import (
    batch_statistics,
    by_worker_count,
    collate_timing,
    op_timings,
    out_of_order_batches,
    percentile,
    samples_per_s,
)

MS = 1_000_000
TIMES = st.lists(st.integers(0, 10**10), min_size=1, max_size=40)


def op(name: str, wall_ns: int, start_ns: int = 0, **fields) -> OpRecord:
    known = {"sample": 0, "batch": 0, "cpu_ns": 0, "bytes_out": None} | fields
    return OpRecord(vm="vm", pid=1, tid=1, op=name, start_ns=start_ns, wall_ns=wall_ns, **known)


def batch(number: int, **times) -> BatchRecord:
    """A batch with times in milliseconds."""
    return replace(BatchRecord("vm", number), **{f"{name}_ns": ms * MS for name, ms in times.items()})


# Two workers, three batches. The first worker is slow: batch 0 is ready at 2000 ms, batch 1 at 400, batch 2 at 900.
SLOW_WORKER = (
    replace(
        batch(0, fetch_start=0, fetch=1900, collate_start=1900, collate=100, arrived=2010),
        wait_start_ns=0,
        wait_ns=2020 * MS,
        consumed_ns=10 * MS,
        samples=4,
    ),
    replace(
        batch(1, fetch_start=0, fetch=300, collate_start=300, collate=100, arrived=410),
        wait_start_ns=2030 * MS,
        wait_ns=0,
        consumed_ns=10 * MS,
        samples=4,
    ),
    replace(
        batch(2, fetch_start=400, fetch=400, collate_start=800, collate=100, arrived=910),
        wait_start_ns=2040 * MS,
        wait_ns=0,
        consumed_ns=60 * MS,
        samples=4,
    ),
)


def test_slow_worker_by_hand():
    assert [b.ready_ns for b in SLOW_WORKER] == [2000 * MS, 400 * MS, 900 * MS]
    assert [b.delay_ns for b in SLOW_WORKER] == [20 * MS, 1630 * MS, 1140 * MS]
    assert out_of_order_batches(SLOW_WORKER) == (("vm", 1), ("vm", 2))  # both arrived while 0 was outstanding

    found = batch_statistics(SLOW_WORKER)
    assert found.n == 3
    assert found.mean_ns == pytest.approx((2000 + 400 + 500) / 3 * MS)
    assert found.sd_percent == pytest.approx(100 * statistics.stdev([2000, 400, 500]) / (2900 / 3))
    assert found.share_wait_over_500ms == pytest.approx(1 / 3)
    assert found.share_delay_over_500ms == pytest.approx(2 / 3)
    assert found.wait_s == pytest.approx(2.02)
    assert found.out_of_order == 2
    assert samples_per_s(SLOW_WORKER) == pytest.approx(12 / 2.1)


def test_ops_by_hand():
    records = [
        op("flip", 50_000, start_ns=30, cpu_ns=40_000, bytes_out=300),
        op("decode", 8 * MS, start_ns=10, cpu_ns=7 * MS, bytes_out=600),
        op("decode", 12 * MS, start_ns=20, cpu_ns=9 * MS, bytes_out=800),
    ]
    decode, flip = op_timings(records)
    assert (decode.name, flip.name) == ("decode", "flip")  # in the order of the pipeline
    assert (decode.n, decode.mean_ns, decode.cpu_s) == (2, 10 * MS, 0.016)
    assert decode.p90_ns == pytest.approx(11.6 * MS)
    assert (decode.share_below_10ms, decode.share_below_100us) == (0.5, 0)
    assert (flip.share_below_10ms, flip.share_below_100us) == (1, 1)
    assert (decode.mean_bytes_out, flip.mean_bytes_out) == (700, 300)


def test_what_was_not_recorded_is_unknown():
    nothing = batch_statistics([batch(0), batch(1)])
    assert nothing.n == 2
    assert (nothing.mean_ns, nothing.sd_percent, nothing.iqr_ns, nothing.out_of_order) == (None,) * 4
    assert (nothing.share_wait_over_500ms, nothing.share_delay_over_500ms, nothing.wait_s) == (None,) * 3
    assert samples_per_s([batch(0)]) is None
    assert samples_per_s([]) is None
    assert collate_timing([batch(0)]) is None
    assert op_timings([op("decode", 1, bytes_out=5), op("decode", 1)])[0].mean_bytes_out is None
    unknown_cpu = collate_timing([batch(0, collate_start=0, collate=5)])
    assert unknown_cpu is not None
    assert unknown_cpu.cpu_s is None


def test_limits_are_exclusive():
    timing = op_timings([op("a", 10 * MS), op("a", 100_000)])[0]
    assert (timing.share_below_10ms, timing.share_below_100us) == (0.5, 0)
    waits = [replace(batch(0, wait_start=0), wait_ns=ns) for ns in (500 * MS, 500 * MS + 1)]
    assert batch_statistics(waits).share_wait_over_500ms == 0.5


def test_outliers_are_left_out_of_the_interquartile_range_only():
    times = [100, 110, 120, 130, 10_000]
    found = batch_statistics([batch(i, fetch_start=0, fetch=ms) for i, ms in enumerate(times)])
    assert found.outliers == 1
    assert found.iqr_ns == pytest.approx((122.5 - 107.5) * MS)
    assert found.mean_ns == pytest.approx(sum(times) / 5 * MS)


def test_out_of_order_by_hand():
    # 2 and 3 arrive before 1, so 1 is late for them; 0 arrives first.
    arrived = {0: 10, 1: 50, 2: 20, 3: 30, 4: 60}
    batches = [batch(number, arrived=ms) for number, ms in arrived.items()]
    assert out_of_order_batches(batches) == (("vm", 2), ("vm", 3))
    # another VM counts for itself
    others = [replace(b, vm="other") for b in batches if b.batch != 1]
    assert out_of_order_batches([*batches, *others]) == (("vm", 2), ("vm", 3))


def test_by_worker_count_by_hand():
    ops = (op("decode", 5, cpu_ns=2_000_000_000), op("decode", 5, cpu_ns=1_000_000_000))
    collated = tuple(replace(b, collate_cpu_ns=500_000_000) for b in SLOW_WORKER)
    two, four = by_worker_count({4: Trace(ops), 2: Trace(ops, collated)})
    assert (two.workers, four.workers) == (2, 4)
    assert (two.cpu_s, four.cpu_s) == (4.5, 3.0)
    assert two.samples_per_s == pytest.approx(12 / 2.1)
    assert four.samples_per_s is None


@given(TIMES, st.floats(0, 1))
def test_percentiles_are_numpys(values: list[int], share: float):
    assert percentile(values, share) == pytest.approx(float(np.quantile(values, share)), rel=1e-9, abs=1e-6)


@given(TIMES)
def test_timings_against_numpy(walls: list[int]):
    timing = op_timings([op("a", wall, cpu_ns=wall // 2) for wall in walls])[0]
    assert timing.mean_ns == pytest.approx(float(np.mean(walls)))
    assert timing.p90_ns == pytest.approx(float(np.quantile(walls, 0.9)))
    assert timing.share_below_10ms == sum(1 for w in walls if w < 10 * MS) / len(walls)
    assert timing.cpu_s == pytest.approx(sum(w // 2 for w in walls) / 1e9)


@given(TIMES)
def test_batches_against_numpy(times: list[int]):
    found = batch_statistics(
        [replace(BatchRecord("vm", i), fetch_start_ns=7, fetch_ns=ns) for i, ns in enumerate(times)]
    )
    low, high = np.quantile(times, [0.25, 0.75])
    margin = 1.5 * (high - low)
    kept = [t for t in times if low - margin - 1e-6 <= t <= high + margin + 1e-6]
    assert found.outliers == len(times) - len(kept)
    assert found.iqr_ns == pytest.approx(
        float(np.quantile(kept, 0.75) - np.quantile(kept, 0.25)), rel=1e-9, abs=1e-5
    )
    if len(times) > 1 and sum(times):
        assert found.sd_percent == pytest.approx(100 * float(np.std(times, ddof=1) / np.mean(times)))
    else:
        assert found.sd_percent is None


@given(st.dictionaries(st.tuples(st.sampled_from("ab"), st.integers(0, 20)), st.integers(0, 30), min_size=1))
def test_out_of_order_against_the_definition(arrivals: dict[tuple[str, int], int]):
    naive = {
        (vm, number)
        for (vm, number), at in arrivals.items()
        for (other_vm, lower), later in arrivals.items()
        if other_vm == vm and lower < number and later > at
    }
    batches = [BatchRecord(vm, number, arrived_ns=at) for (vm, number), at in arrivals.items()]
    assert set(out_of_order_batches(batches) or ()) == naive


@given(st.lists(st.tuples(*[st.integers(0, 10**9)] * 3, st.integers(0, 64)), min_size=1, max_size=20))
def test_rate_against_the_definition(rows: list[tuple[int, int, int, int]]):
    batches = [
        BatchRecord("vm", i, samples=n, wait_start_ns=start, wait_ns=wait, consumed_ns=used)
        for i, (start, wait, used, n) in enumerate(rows)
    ]
    span_s = (max(a + b + c for a, b, c, _ in rows) - min(a for a, *_ in rows)) / 1e9
    rate = samples_per_s(batches)
    if span_s == 0:
        assert rate is None
    else:
        assert rate is not None
        assert math.isclose(rate, sum(n for *_, n in rows) / span_s, rel_tol=1e-9)
