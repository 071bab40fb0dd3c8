"""Parts of traces, and several traces side by side."""

from __future__ import annotations

from analysis.pipeline.records import BatchRecord, OpRecord, Thread, Trace
from analysis.pipeline.window import together, window


def trace(vm: str) -> Trace:
    consumed = [BatchRecord(vm, n, wait_start_ns=n * 10, wait_ns=5) for n in range(4)]
    ops = [
        OpRecord(vm, 1, 2, "decode", n, batch, n, 1, 1, None) for n, batch in enumerate([0, 1, 2, 3, 4, None])
    ]
    return Trace(tuple(ops), (*consumed, BatchRecord(vm, 4)), (), (Thread(vm, 1, 2, "t"),))


def test_a_window_has_the_consumed_batches_and_their_operations():
    found = window(trace("a"), 2, 5)
    assert [batch.batch for batch in found.batches] == [2, 3]
    assert [op.batch for op in found.ops] == [2, 3]
    assert found.threads == trace("a").threads


def test_traces_of_two_vms_are_one():
    found = together([trace("b"), trace("a")])
    assert [(batch.vm, batch.batch) for batch in found.batches] == [(vm, n) for vm in "ab" for n in range(5)]
    assert [op.start_ns for op in found.ops] == sorted([*range(6), *range(6)])
    assert len(found.threads) == 2
