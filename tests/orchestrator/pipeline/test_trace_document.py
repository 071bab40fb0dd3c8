"""Figures of traces, worked out by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from analysis.pipeline.records import BatchRecord, OpRecord, Trace
from experiments.peer.training.decoding import Workers
from orchestrator.pipeline.trace_document import advice_of_recorded, recorded_document, statistics
from orchestrator.pipeline.tracing import Recorded

MS = 1_000_000


def batch(vm: str, number: int, asked_ms: int, wait_ms: int, used_ms: int) -> BatchRecord:
    return BatchRecord(
        *(vm, number, 1, 2, 10),
        wait_start_ns=asked_ms * MS,
        wait_ns=wait_ms * MS,
        consumed_ns=used_ms * MS,
    )


# Waits of 60, 20 and 10 ms; batches are got at 60, 100 and 150 ms, so 60, 40 and 50 ms after one another.
BATCHES = (batch("a", 0, 0, 60, 20), batch("a", 1, 80, 20, 40), batch("a", 2, 140, 10, 0))
OPS = tuple(OpRecord("a", 1, 2, "decode", n, n, n, 30 * MS, None, 50) for n in range(3))
TRACE = Trace(OPS, BATCHES)


def recorded(trace: Trace, workers: int = 2) -> Recorded:
    return Recorded(Workers("thread", workers), 1, trace, 0)


def test_rate_interval_and_shares():
    found = recorded_document(recorded(TRACE))
    assert found["samples_per_s"] == pytest.approx(200)  # 30 in 150 ms
    half_ms = 4.302653 * 10 / 3**0.5  # t of 2 degrees of freedom, standard deviation 10 ms
    assert found["samples_per_s_interval"] == pytest.approx(
        [10_000 / (50 + half_ms), 10_000 / (50 - half_ms)], rel=1e-5
    )
    assert found["busy_share"] == pytest.approx(90 / (2 * 150))
    assert found["batches"]["wait_share"] == pytest.approx(90 / 150)
    assert found["cpu_s"] is None  # unknown of each operation


def test_the_interval_is_unknown_for_batches_of_two_sizes_or_one_batch():
    other = Trace(OPS, (*BATCHES[:2], replace(BATCHES[2], samples=11)))
    assert recorded_document(recorded(other))["samples_per_s_interval"] is None
    assert recorded_document(recorded(Trace(OPS, BATCHES[:1])))["samples_per_s_interval"] is None


def test_waits_of_two_vms_are_of_their_times_added():
    later = tuple(replace(b, vm="b", wait_start_ns=(b.wait_start_ns or 0) + 10**12) for b in BATCHES)
    assert statistics(Trace((), BATCHES + later))["batches"]["wait_share"] == pytest.approx(0.6)
    assert statistics(Trace())["batches"]["wait_share"] is None
    assert statistics(Trace())["cpu_s"] is None


def test_advice_has_a_code_and_its_evidence():
    even = replace(TRACE, batches=tuple(batch("a", n, 50 * n, 50, 0) for n in range(4)))
    found = advice_of_recorded([recorded(even, 1), recorded(even, 2)], 100.0)
    assert [(one["code"], one["of_workers"]) for one in found] == [("knee", None), ("shuffle_after", None)]
    assert found[0]["evidence"]["workers"] == 1
    assert found[1]["evidence"] == {"op": "decode", "bytes_after": 50, "bytes_now": 100}
    assert advice_of_recorded([recorded(TRACE)], None) == []
    # Batches of 40, 50 and 60 ms do not show that one worker delivers 95 % of what two do.
    uneven = advice_of_recorded([recorded(TRACE, 1), recorded(TRACE, 2)], None)
    assert [one["code"] for one in uneven] == []
