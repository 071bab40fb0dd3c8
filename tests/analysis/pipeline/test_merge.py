"""Trace files merged into one trace."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from analysis.pipeline.merge import merge, read_trace
from analysis.pipeline.records import BatchRecord, OpRecord, PhaseRecord, Thread
from experiments.pipeline.trace import TraceBuffer
from experiments.pipeline.trace_format import Code, Event, Header, ThreadTrace, TraceFileError


def event(code: Code, start_ns: int, wall_ns: int, batch: int | None = 0, **fields) -> Event:
    known = {"name": "", "cpu_ns": None, "sample": None, "bytes_out": None} | fields
    return Event(code=code, start_ns=start_ns, wall_ns=wall_ns, batch=batch, **known)


WORKER = ThreadTrace(
    Header("a", 10, 11, "worker", monotonic_ns=100, real_ns=5_100, records=9),
    (
        event(Code.OP, 110, 20, name="decode", cpu_ns=15, sample=4, bytes_out=600),
        event(Code.FETCH, 105, 30, sample=1),
        event(Code.COLLATE, 135, 5, cpu_ns=4),
    ),
)
# The same VM's second pair of clocks is 7 ns off; the first one counts for both.
CONSUMER = ThreadTrace(
    Header("a", 1, 1, "MainThread", monotonic_ns=101, real_ns=5_108, records=9, dropped=2),
    (
        event(Code.WAIT, 102, 48),
        event(Code.ARRIVED, 145, 0),
        event(Code.CONSUMED, 150, 40),
        event(Code.PHASE, 151, 30, batch=None, name="forward"),
    ),
)
OTHER_VM = ThreadTrace(
    Header("b", 10, 11, "worker", monotonic_ns=900_000, real_ns=5_200, records=9),
    (event(Code.FETCH, 900_010, 3, sample=2),),
)


def test_two_consumers_of_one_name_are_not_mixed():
    other = replace(CONSUMER, header=replace(CONSUMER.header, pid=2))
    with pytest.raises(
        TraceFileError, match=r"two consumers recorded batch 0 of a \(processes 1 and 2\); give each"
    ):
        merge([CONSUMER, other, WORKER])
    named = replace(other, header=replace(other.header, vm="second"))
    assert len(merge([CONSUMER, named, WORKER]).batches) == 2


def test_threads_and_vms_are_merged_on_one_clock():
    trace = merge([OTHER_VM, CONSUMER, WORKER])
    assert trace.ops == (OpRecord("a", 10, 11, "decode", 4, 0, 5_110, 20, 15, 600),)
    assert trace.phases == (PhaseRecord("a", 1, 1, "forward", 5_151, 30),)
    batch, other = trace.batches
    assert batch == BatchRecord(
        *("a", 0, 10, 11, 1),
        fetch_start_ns=5_105,
        fetch_ns=30,
        collate_start_ns=5_135,
        collate_ns=5,
        collate_cpu_ns=4,
        arrived_ns=5_145,
        consumer_pid=1,
        consumer_tid=1,
        wait_start_ns=5_102,
        wait_ns=48,
        consumed_ns=40,
    )
    assert (batch.ready_ns, batch.preprocess_ns, batch.delay_ns) == (5_140, 35, 10)
    assert other == BatchRecord("b", 0, 10, 11, 2, fetch_start_ns=5_210, fetch_ns=3)
    assert (trace.dropped, trace.workers) == (2, 2)
    assert Thread("a", 1, 1, "MainThread", 2) in trace.threads


def test_a_folder_is_read(tmp_path: Path):
    (tmp_path / "vm").mkdir()
    TraceBuffer(tmp_path / "vm" / "1.trace", WORKER.header).event(Code.FETCH, 105, 30, batch=0, sample=1)
    assert read_trace(tmp_path).batches[0].fetch_start_ns == 5_105
    (tmp_path / "2.trace").write_bytes(b"")
    with pytest.raises(TraceFileError, match=r"2\.trace: this is not a trace"):
        read_trace(tmp_path)


def test_an_empty_folder_is_refused(tmp_path: Path):
    with pytest.raises(TraceFileError, match="there are no trace files"):
        read_trace(tmp_path)
