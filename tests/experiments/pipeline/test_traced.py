"""A trace of a torch DataLoader, in this process and with worker processes."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset, get_worker_info
from torch.utils.data import dataloader as torch_dataloader

from analysis.pipeline.advice import head_of_line
from analysis.pipeline.merge import read_trace
from analysis.pipeline.statistics import batch_statistics, op_timings, out_of_order_batches
from experiments.pipeline.trace import TraceError
from experiments.pipeline.traced import Steps, steps, traced

forks = pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")
SLOW_S = 0.4


def double(value: torch.Tensor) -> torch.Tensor:
    return value * 2


class Nap:
    def __call__(self, value: torch.Tensor) -> torch.Tensor:
        time.sleep(0.005)
        return value.double()


class Numbers(Dataset):
    """The numbers from 0, doubled after a nap."""

    def __init__(self, count: int = 6, slow_worker: bool = False) -> None:
        self.count, self.slow_worker, self.transform = count, slow_worker, steps(double, Nap())

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> torch.Tensor:
        worker = get_worker_info()
        if self.slow_worker and worker is not None and worker.id == 0:
            time.sleep(SLOW_S)
        return self.transform(torch.tensor([float(index)]))


class Stream(IterableDataset):
    """The numbers below `count`, shared by the workers."""

    def __init__(self, count: int) -> None:
        self.count, self.transform = count, steps(double)

    def __iter__(self) -> Iterator[torch.Tensor]:
        worker = get_worker_info()
        first, step = (0, 1) if worker is None else (worker.id, worker.num_workers)
        for number in range(first, self.count, step):
            yield self.transform(torch.tensor([float(number)]))


class FailsAt(Numbers):
    def __getitem__(self, index: int) -> torch.Tensor:
        if index == 3:
            raise ValueError("number 3 is damaged")
        return super().__getitem__(index)


def values(batches) -> list[list[float]]:
    return [batch.flatten().tolist() for batch in batches]


def test_batches_and_their_order_are_the_loaders(tmp_path: Path):
    def shuffled() -> DataLoader:
        generator = torch.Generator().manual_seed(3)
        return DataLoader(Numbers(), batch_size=4, shuffle=True, generator=generator)

    loader = shuffled()
    plain = [values(loader) for _ in range(2)]
    loader = shuffled()
    batches = traced(loader, tmp_path)
    assert len(batches) == len(loader)
    assert [values(batches) for _ in range(2)] == plain
    assert type(loader.dataset) is Numbers
    assert type(next(iter(loader))) is torch.Tensor


def test_operations_and_batches_in_one_process_by_hand(tmp_path: Path):
    batches = traced(DataLoader(Numbers(3), batch_size=2), tmp_path, vm="here")
    for batch in batches:
        with batches.phase("forward"):
            time.sleep(0.01)
        del batch
    trace = read_trace(tmp_path)
    assert [(op.op, op.sample, op.batch) for op in trace.ops] == [
        *(("double", 0, 0), ("Nap", 0, 0), ("double", 1, 0), ("Nap", 1, 0), ("double", 2, 1), ("Nap", 2, 1))
    ]
    doubled, nap = op_timings(trace.ops)
    assert (doubled.mean_bytes_out, nap.mean_bytes_out) == (4, 8)
    assert nap.mean_ns >= 5_000_000
    assert [b.samples for b in trace.batches] == [2, 1]
    for b in trace.batches:
        assert b.vm == "here"
        assert b.arrived_ns is None
        assert b.wait_start_ns <= b.fetch_start_ns <= b.ready_ns <= b.consumed_start_ns
        assert b.fetch_ns >= 5_000_000 * b.samples
        assert b.consumed_ns >= 10_000_000
    assert [(phase.name, phase.wall_ns >= 10_000_000) for phase in trace.phases] == [("forward", True)] * 2
    assert batch_statistics(trace.batches).out_of_order is None
    assert trace.dropped == 0


@forks
def test_a_slow_worker_by_hand(tmp_path: Path):
    """Worker 0 fetches the even batches, each in 0.4 s; worker 1 the odd ones, at once. Two are prefetched by each.

    1 and 3 arrive before 0. When 1 was consumed, 5 is fetched, and arrives before 2.
    """
    plain = torch_dataloader._MultiProcessingDataLoaderIter._try_get_data
    batches = traced(DataLoader(Numbers(6, slow_worker=True), batch_size=1, num_workers=2), tmp_path)
    assert values(batches) == [[2.0 * number] for number in range(6)]
    assert torch_dataloader._MultiProcessingDataLoaderIter._try_get_data is plain
    trace = read_trace(tmp_path)
    assert [b.batch for b in trace.batches] == list(range(6))
    assert trace.workers == 2
    assert len({thread.name for thread in trace.threads}) == 3  # of two processes and this one
    assert [batch for _, batch in out_of_order_batches(trace.batches) or ()] == [1, 3, 5]
    half_ns = SLOW_S / 2 * 1e9
    assert [(b.wait_ns or 0) > half_ns for b in trace.batches] == [True, False] * 3
    assert [(b.delay_ns or 0) > half_ns for b in trace.batches] == [False, True] * 3
    assert all(b.fetch_start_ns < b.ready_ns < b.arrived_ns <= b.consumed_start_ns for b in trace.batches)
    assert sorted((op.batch, op.sample) for op in trace.ops if op.op == "Nap") == [(n, n) for n in range(6)]
    advice = head_of_line(trace.batches)
    assert advice is not None
    assert 2 * SLOW_S < advice.blocked_s < advice.traced_s


@forks
def test_without_order_batches_keep_the_numbers_of_their_requests(tmp_path: Path):
    loader = DataLoader(Numbers(6, slow_worker=True), batch_size=1, num_workers=2, in_order=False)
    got = [batch[0] // 2 for batch in values(traced(loader, tmp_path))]
    assert sorted(got) == list(range(6))
    assert got != sorted(got)
    trace = read_trace(tmp_path)
    consumed = sorted(trace.batches, key=lambda b: b.consumed_start_ns or 0)
    sample_of = {op.batch: op.sample for op in trace.ops}
    assert [sample_of[b.batch] for b in consumed] == got
    assert head_of_line(trace.batches) is None


@forks
def test_persistent_workers_number_batches_over_epochs(tmp_path: Path):
    loader = DataLoader(Numbers(4), batch_size=2, num_workers=2, persistent_workers=True)
    batches = traced(loader, tmp_path)
    for _ in range(2):
        assert values(batches) == [[0, 2], [4, 6]]
    trace = read_trace(tmp_path)
    assert [b.batch for b in trace.batches] == [0, 1, 2, 3]
    assert trace.workers == 2
    assert all(None not in (b.fetch_ns, b.arrived_ns, b.wait_ns, b.consumed_ns) for b in trace.batches)


@forks
@pytest.mark.parametrize("workers", [0, 2])
def test_a_stream_is_traced(tmp_path: Path, workers: int):
    batches = traced(DataLoader(Stream(7), batch_size=2, num_workers=workers), tmp_path)
    plain = values(DataLoader(Stream(7), batch_size=2, num_workers=workers))
    assert values(batches) == plain
    trace = read_trace(tmp_path)
    assert [b.samples for b in sorted(trace.batches, key=lambda b: b.consumed_start_ns or 0)] == [
        len(batch) for batch in plain
    ]
    assert len(trace.ops) == 7
    assert all(b.fetch_ns and b.collate_ns and b.consumed_ns for b in trace.batches)


def test_what_a_consumer_leaves_is_recorded(tmp_path: Path):
    batches = traced(DataLoader(Numbers(6), batch_size=2), tmp_path)
    for batch in batches:
        assert batch.shape == (2, 1)
        break
    assert values(batches) == [[0, 2], [4, 6], [8, 10]]
    trace = read_trace(tmp_path)
    assert [b.batch for b in trace.batches] == [0, 1, 2, 3]
    assert all(b.consumed_ns is not None for b in trace.batches)


def test_an_error_of_the_data_set_is_raised_as_it_is(tmp_path: Path):
    dataset = FailsAt()
    with pytest.raises(ValueError, match="number 3 is damaged"):
        values(traced(DataLoader(dataset, batch_size=2), tmp_path))
    before = len(read_trace(tmp_path).ops)
    assert dataset[1].item() == 2.0  # not part of the trace
    assert len(read_trace(tmp_path).ops) == before == 6


def test_data_sets_that_fetch_batches_themselves_are_used_as_they_are(tmp_path: Path):
    subset = Subset(Numbers(6), [5, 1, 3])
    assert values(traced(DataLoader(subset, batch_size=2), tmp_path / "a")) == [[10, 2], [6]]
    assert [op.sample for op in read_trace(tmp_path / "a").ops] == [None] * 6
    single = traced(DataLoader(Numbers(3), batch_size=None), tmp_path / "b")
    assert values(single) == [[0], [2], [4]]
    assert [(b.batch, b.samples) for b in read_trace(tmp_path / "b").batches] == [(0, 1), (1, 1), (2, 1)]


def test_a_batch_of_unknown_type_is_pinned_as_its_content_is():
    from torch.utils.data._utils.pin_memory import pin_memory

    from experiments.pipeline.traced import _Sent

    class Own:
        def pin_memory(self) -> str:
            return "pinned"

    sent = pin_memory(_Sent(Own(), (1, 2, 3)))
    assert (sent.batch, sent.key) == ("pinned", (1, 2, 3))


def test_a_folder_with_a_trace_is_refused(tmp_path: Path):
    values(traced(DataLoader(Numbers(1)), tmp_path))
    with pytest.raises(TraceError, match="already has a trace; remove it"):
        traced(DataLoader(Numbers(1)), tmp_path)


def test_steps_without_a_trace_and_their_names():
    assert steps(double, double)(torch.tensor(3)).item() == 12
    assert Steps([double, double, Nap(), double]).names == ("double", "double 2", "Nap", "double 3")
