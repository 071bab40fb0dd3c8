"""The trace of a peer's input: sources in threads and processes, and the training that consumes."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("torch")

import itertools

from peer_rig import config_of
from storage_fakes import FakeStore, make_tar, opener

from analysis.pipeline.merge import read_trace
from analysis.pipeline.records import Trace
from experiments.peer.config import PeerConfigError
from experiments.peer.training.bad_samples import BadSamples
from experiments.peer.training.batches import Batches
from experiments.peer.training.decoding import Decoder, Workers
from experiments.peer.training.input_trace import (
    ConsumerTrace,
    SourceTrace,
    input_recorder,
    runs,
)
from experiments.peer.training.loader import Loaded, TaskSource
from experiments.peer.training.step_timer import StepClock
from experiments.pipeline.op import Op
from experiments.pipeline.pipeline import Pipeline
from experiments.pipeline.trace import Recorder

DATA = {f"a{n:02d}": {"dat": bytes([n, n + 1]) * 300} for n in range(40)} | {"a05": {"dat": b"bad"}}
NOISY = Pipeline(
    "test", {"data": ("dat",)}, (Op("decode", "decode_ops:noisy", "data", "bytes", "array", random=True),)
)
BATCH, COUNT = 4, 6


def trained(workers: Workers, folder: Path, *, ops: bool) -> tuple[list[Loaded], Trace]:
    """The batches of a short training, and its trace."""
    recorder = Recorder(folder, vm="eu-0", records=1000)
    source = TaskSource(
        ["s3://b/a.tar"],
        opener(FakeStore({"a.tar": make_tar(DATA)})).open,
        Decoder(NOISY, 5, recorder if ops else None),
        list,
        workers,
        BadSamples("skip", lambda found: None),
        shuffle=7,
        trace=SourceTrace(recorder),
    )
    consumer = ConsumerTrace(recorder)
    clock = StepClock(time.perf_counter, time.time, consumer.phase)
    batches = Batches(source, BATCH, consumer)
    batches.start()
    found = list[Loaded]()
    try:
        while len(found) < COUNT:
            loaded = batches.next()
            assert loaded is not None
            found.append(loaded)
            with clock.phase("forward"):
                time.sleep(0.002)
    finally:
        batches.close()
    return found, read_trace(folder)


WORKERS = [
    Workers("thread", 1),
    Workers("thread", 3),
    Workers("thread", 3, in_order=False),
    pytest.param(Workers("process", 2, in_order=False), marks=pytest.mark.slow),
]


@pytest.mark.parametrize("workers", WORKERS)
def test_batches_and_operations_of_a_training(tmp_path: Path, workers: Workers):
    _, trace = trained(workers, tmp_path, ops=True)
    used = trace.batches[:COUNT]
    assert [b.batch for b in used] == list(range(COUNT))
    for b in used:
        assert (b.vm, b.samples) == ("eu-0", BATCH)
        assert b.fetch_start_ns < b.ready_ns <= b.arrived_ns <= b.consumed_start_ns
        assert len([op for op in trace.ops if op.batch == b.batch]) == BATCH
    assert [b.consumed_ns >= 2_000_000 for b in used[:-1]] == [True] * (COUNT - 1)
    for before, after in itertools.pairwise(used):
        assert before.consumed_start_ns + before.consumed_ns == after.wait_start_ns
    assert [phase.name for phase in trace.phases] == ["forward"] * COUNT
    for b, phase in zip(used[:-1], trace.phases, strict=False):
        within_ns = phase.start_ns - b.consumed_start_ns
        assert -1_000 <= within_ns <= within_ns + phase.wall_ns <= b.consumed_ns + 1_000
        assert phase.wall_ns >= 2_000_000
    sizes = {op.bytes_out for op in trace.ops}
    assert sizes == {600 * 8}  # of float64
    makers = {(op.pid, op.tid) for op in trace.ops}
    assert 1 <= len(makers) <= workers.count


def test_a_trace_of_batches_has_no_operations(tmp_path: Path):
    _, trace = trained(Workers("thread", 2), tmp_path, ops=False)
    assert trace.ops == ()
    assert all(b.fetch_ns is not None for b in trace.batches)


def test_batches_are_the_same_with_a_trace(tmp_path: Path):
    def content(found: Sequence[Loaded]) -> list:
        return [(loaded.samples, [item["data"].tobytes() for item in loaded.batch]) for loaded in found]

    traced, _ = trained(Workers("thread", 3), tmp_path, ops=True)
    source = TaskSource(
        ["s3://b/a.tar"],
        opener(FakeStore({"a.tar": make_tar(DATA)})).open,
        Decoder(NOISY, 5),
        list,
        Workers(),
        BadSamples("skip", lambda found: None),
        shuffle=7,
    )
    assert content(traced) == content([source.next_batch(BATCH) for _ in range(COUNT)])
    source.close()


def test_what_a_peer_records(tmp_path: Path):
    config = config_of("eu", "http://127.0.0.1:1", ("s3://b/a.tar",))
    assert input_recorder(config, tmp_path) is None
    assert list(tmp_path.iterdir()) == []
    recorder = input_recorder(replace(config, trace="ops"), tmp_path)
    assert recorder is not None
    assert (recorder.folder, recorder.vm) == (tmp_path / "trace", config.vm)
    with pytest.raises(PeerConfigError, match="trace: 'all' is not one of off, batches, ops"):
        input_recorder(replace(config, trace="all"), tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(PeerConfigError, match="choose another folder"):
        input_recorder(replace(config, trace="ops"), tmp_path / "file")


@given(st.sets(st.integers(0, 60)))
def test_runs_are_the_numbers(numbers: set[int]):
    found = runs(list(numbers))
    assert [n for first, count in found for n in range(first, first + count)] == sorted(numbers)
    assert all(a + n < b for (a, n), (b, _) in itertools.pairwise(found))
