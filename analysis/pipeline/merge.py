"""Trace files of all threads and VMs, merged into one trace on one clock."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from analysis.pipeline.records import BatchRecord, OpRecord, PhaseRecord, Thread, Trace
from experiments.pipeline.trace_format import (
    SUFFIX,
    Code,
    Event,
    Header,
    ThreadTrace,
    TraceFileError,
    read_thread,
)


def read_trace(folder: Path) -> Trace:
    """Read all trace files below a folder. Raises TraceFileError."""
    files = sorted(folder.rglob(f"*{SUFFIX}"))
    if not files:
        raise TraceFileError(
            f"{folder}: there are no trace files (*{SUFFIX}); name the folder that traced() wrote"
        )
    threads = list[ThreadTrace]()
    for file in files:
        try:
            data = file.read_bytes()
        except OSError as error:
            raise TraceFileError(
                f"{file}: cannot be read ({error.strerror}); correct its permissions"
            ) from error
        threads.append(read_thread(data, str(file)))
    return merge(threads)


def read_whole_files(folder: Path) -> Trace | None:
    """Read the trace files below a folder that are not damaged. None if there is none. Raises TraceFileError."""
    threads = list[ThreadTrace]()
    for file in sorted(folder.rglob(f"*{SUFFIX}")):
        try:
            threads.append(read_thread(file.read_bytes(), str(file)))
        except (TraceFileError, OSError):
            continue
    return merge(threads) if threads else None


def merge(threads: Iterable[ThreadTrace]) -> Trace:
    """Merge what the threads recorded.

    A batch that no consumer got has no number, unless its worker knew one, and is left out; its operations are not.

    Monotonic time is the same for all threads of a VM, and becomes real time by the pair of clocks that its first thread
    recorded. So intervals within a VM are exact, and VMs differ by the error of their real clocks. Raises TraceFileError if
    two consumers of one VM have batches of the same number.
    """
    threads = tuple(threads)
    offset_ns: dict[str, int] = {}
    for header in sorted((thread.header for thread in threads), key=lambda h: h.monotonic_ns):
        offset_ns.setdefault(header.vm, header.real_ns - header.monotonic_ns)
    numbers = _consumers_numbers(threads)
    by_sample = _batches_of_samples(threads)
    ops, phases = list[OpRecord](), list[PhaseRecord]()
    batches: dict[tuple[str, int], BatchRecord] = {}
    for thread in threads:
        header = thread.header
        for event in thread.events:
            start_ns = event.start_ns + offset_ns[header.vm]
            number = event.batch
            if event.code == Code.OP and number is None:
                number = by_sample.get((header.vm, event.sample))
            if event.local is not None:
                number = numbers.get((header.vm, header.pid, header.tid, event.local))
            if event.code in (Code.SENT, Code.SAMPLES):
                continue
            if event.code == Code.OP:
                ops.append(_op(header, event, number, start_ns))
            elif event.code == Code.PHASE:
                phases.append(
                    PhaseRecord(header.vm, header.pid, header.tid, event.name, start_ns, event.wall_ns)
                )
            elif number is not None:
                key = header.vm, number
                before = batches.get(key) or BatchRecord(*key)
                known = before.consumer_pid, before.consumer_tid
                if event.code == Code.WAIT and known not in ((None, None), (header.pid, header.tid)):
                    raise TraceFileError(
                        f"two consumers recorded batch {number} of {header.vm} (processes {before.consumer_pid} and "
                        f"{header.pid}); give each its own name, traced(..., vm=NAME), or read their folders apart"
                    )
                batches[key] = _with(before, header, event, start_ns)
    return Trace(
        tuple(sorted(ops, key=lambda op: (op.start_ns, op.end_ns))),
        tuple(batches[key] for key in sorted(batches)),
        tuple(sorted(phases, key=lambda phase: phase.start_ns)),
        tuple(Thread(h.vm, h.pid, h.tid, h.thread, h.dropped) for h in (t.header for t in threads)),
    )


def _consumers_numbers(threads: Iterable[ThreadTrace]) -> dict[tuple[str, int, int, int], int]:
    """The consumer's number of each batch that it got, by VM, process, thread, and that thread's own number."""
    return {
        (thread.header.vm, event.bytes_out, event.cpu_ns, event.sample): event.batch
        for thread in threads
        for event in thread.events
        if event.code == Code.SENT
        if event.bytes_out is not None and event.cpu_ns is not None
        if event.sample is not None and event.batch is not None
    }


_MOST_SAMPLES = 1_000_000  # of a batch in one run; a record with more is damaged


def _batches_of_samples(threads: Iterable[ThreadTrace]) -> dict[tuple[str, int | None], int]:
    """The batch of each sample, by VM and number, of readers that number the samples."""
    return {
        (thread.header.vm, number): event.batch
        for thread in threads
        for event in thread.events
        if event.code == Code.SAMPLES and event.batch is not None
        if event.sample is not None and event.bytes_out is not None
        for number in range(event.sample, event.sample + min(event.bytes_out, _MOST_SAMPLES))
    }


def _op(header: Header, event: Event, batch: int | None, start_ns: int) -> OpRecord:
    return OpRecord(
        header.vm,
        header.pid,
        header.tid,
        event.name,
        event.sample,
        batch,
        start_ns,
        event.wall_ns,
        event.cpu_ns,
        event.bytes_out,
    )


def _with(batch: BatchRecord, header: Header, event: Event, start_ns: int) -> BatchRecord:
    worker = {"pid": header.pid, "tid": header.tid}
    consumer = {"consumer_pid": header.pid, "consumer_tid": header.tid}
    match event.code:
        case Code.FETCH:
            return replace(
                batch, **worker, samples=event.sample, fetch_start_ns=start_ns, fetch_ns=event.wall_ns
            )
        case Code.COLLATE:
            return replace(
                batch,
                **worker,
                collate_start_ns=start_ns,
                collate_ns=event.wall_ns,
                collate_cpu_ns=event.cpu_ns,
            )
        case Code.ARRIVED:
            return replace(batch, arrived_ns=start_ns)
        case Code.WAIT:
            return replace(batch, **consumer, wait_start_ns=start_ns, wait_ns=event.wall_ns)
        case _:
            return replace(batch, consumed_ns=event.wall_ns)
