"""A trace in Chrome's JSON format, which Perfetto (https://ui.perfetto.dev) opens; with Lotus's names of slices.

Slices of one track that overlap without nesting are not drawn. So each thread has a track, and what a consumer does has
tracks of its own: without worker processes it fetches in the thread in which it waits.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from analysis.pipeline.records import BatchRecord, Trace

_FIRST_PROCESS = 5_000_000  # above every process id of Linux, since torch's profiles use those
_TRACKS = {"waits": 1, "consumption": 2, "phases": 3}  # tracks of a consumer, as multiples of _TRACK_STEP
_TRACK_STEP = 10_000_000
_PROFILE_STEP = 100_000_000  # between the process numbers of merged profiles

Event = dict[str, Any]


class ProfileError(Exception):
    """A profile cannot be merged; the message is a sentence that names it."""


def chrome_trace(trace: Trace, profiles: Mapping[str, Mapping[str, Any]] | None = None) -> dict[str, Any]:
    """Return the document to write as JSON.

    `profiles` are documents that torch.profiler exported, by a name that is put before those of their processes. They and
    the trace get one clock, that of `baseTimeNanoseconds`. Raises ProfileError for a document without it.
    """
    base_ns = min(_starts(trace), default=0)
    numbers = _process_numbers(trace)
    slices = [*_worker_slices(trace, numbers), *_consumer_slices(trace, numbers)]
    slices.sort(key=lambda s: (s["pid"], s["tid"], s["ts"], -s["dur"]))
    events = [*_names(trace, numbers, slices), *slices, *_arrows(trace.batches, numbers)]
    for event in events:
        if "ts" in event:
            event["ts"] = (event["ts"] - base_ns) / 1000
        if "dur" in event:
            event["dur"] = event["dur"] / 1000
    for number, (name, profile) in enumerate((profiles or {}).items(), 1):
        events += _of_profile(name, number, profile, base_ns)
    return {"traceEvents": events, "displayTimeUnit": "ms", "baseTimeNanoseconds": base_ns}


def slice_name(op: str) -> str:
    """Lotus's name of an operation's slices: "SRandomCrop" of "random_crop" and of "RandomCrop"."""
    return "S" + "".join(part[:1].upper() + part[1:] for part in re.split(r"[\W_]+", op))


def _starts(trace: Trace) -> Iterator[int]:
    yield from (op.start_ns for op in trace.ops)
    yield from (phase.start_ns for phase in trace.phases)
    for b in trace.batches:
        for start_ns in (b.fetch_start_ns, b.collate_start_ns, b.wait_start_ns):
            if start_ns is not None:
                yield start_ns


def _process_numbers(trace: Trace) -> dict[tuple[str, int], int]:
    """Numbers of the processes in the document: process ids of different VMs can be the same."""
    processes = {(t.vm, t.pid) for t in trace.threads} | {(o.vm, o.pid) for o in trace.ops}
    processes |= {(p.vm, p.pid) for p in trace.phases}
    for b in trace.batches:
        processes |= {(b.vm, pid) for pid in (b.pid, b.consumer_pid) if pid is not None}
    return {process: _FIRST_PROCESS + number for number, process in enumerate(sorted(processes))}


def _slice(
    name: str, category: str, process: int, tid: int, start_ns: int, wall_ns: int, **args: Any
) -> Event:
    known = {key: value for key, value in args.items() if value is not None}
    return {
        "ph": "X",
        "name": name,
        "cat": category,
        "pid": process,
        "tid": tid,
        "ts": start_ns,
        "dur": wall_ns,
        "args": known,
    }


def _worker_slices(trace: Trace, numbers: Mapping[tuple[str, int], int]) -> Iterator[Event]:
    for op in trace.ops:
        yield _slice(
            slice_name(op.op),
            "op",
            numbers[op.vm, op.pid],
            op.tid,
            op.start_ns,
            op.wall_ns,
            batch=op.batch,
            sample=op.sample,
            cpu_ns=op.cpu_ns,
            bytes=op.bytes_out,
        )
    for b in trace.batches:
        if b.pid is None or b.tid is None:
            continue
        process = numbers[b.vm, b.pid]
        if b.fetch_start_ns is not None and b.preprocess_ns is not None:
            name = f"SBatchPreprocessed_{b.batch}"
            yield _slice(name, "batch", process, b.tid, b.fetch_start_ns, b.preprocess_ns, samples=b.samples)
        if b.collate_start_ns is not None and b.collate_ns is not None:
            start_ns, wall_ns = b.collate_start_ns, b.collate_ns
            yield _slice("SCollation", "batch", process, b.tid, start_ns, wall_ns, cpu_ns=b.collate_cpu_ns)


def _consumer_slices(trace: Trace, numbers: Mapping[tuple[str, int], int]) -> Iterator[Event]:
    for b in trace.batches:
        if b.consumer_pid is None or b.consumer_tid is None or b.wait_start_ns is None or b.wait_ns is None:
            continue
        process = numbers[b.vm, b.consumer_pid]
        waits, consumption = _track("waits", b.consumer_tid), _track("consumption", b.consumer_tid)
        yield _slice(f"SBatchWait_{b.batch}", "batch", process, waits, b.wait_start_ns, b.wait_ns)
        if b.consumed_ns is not None:
            start_ns = b.wait_start_ns + b.wait_ns
            name = f"SBatchConsumed_{b.batch}"
            yield _slice(name, "batch", process, consumption, start_ns, b.consumed_ns, delay_ns=b.delay_ns)
    for phase in trace.phases:
        tid = _track("phases", phase.tid)
        yield _slice(phase.name, "phase", numbers[phase.vm, phase.pid], tid, phase.start_ns, phase.wall_ns)


def _track(name: str, tid: int) -> int:
    return _TRACKS[name] * _TRACK_STEP + tid


def _arrows(batches: Sequence[BatchRecord], numbers: Mapping[tuple[str, int], int]) -> Iterator[Event]:
    """An arrow from the end of each preprocessed batch to the start of its consumption.

    An arrow belongs to the slice that encloses its time, so it begins 1 ns before the end of the slice.
    """
    for number, b in enumerate(batches):
        if b.pid is None or b.tid is None or b.fetch_start_ns is None or b.ready_ns is None:
            continue
        if b.consumer_pid is None or b.consumer_tid is None or b.consumed_ns is None:
            continue
        common = {"name": "batch", "cat": "batch", "id": number}
        start_ns = max(b.fetch_start_ns, b.ready_ns - 1)
        yield {**common, "ph": "s", "pid": numbers[b.vm, b.pid], "tid": b.tid, "ts": start_ns}
        yield {
            **common,
            "ph": "f",
            "bp": "e",
            "pid": numbers[b.vm, b.consumer_pid],
            "tid": _track("consumption", b.consumer_tid),
            "ts": b.consumed_start_ns,
        }


def _names(trace: Trace, numbers: Mapping[tuple[str, int], int], slices: Sequence[Event]) -> Iterator[Event]:
    threads = {(numbers[t.vm, t.pid], t.tid): t.name for t in trace.threads}
    for (vm, pid), number in numbers.items():
        yield _metadata("process_name", number, 0, f"{vm}: process {pid}")
    for process, tid in sorted({(s["pid"], s["tid"]) for s in slices}):
        track, thread = divmod(tid, _TRACK_STEP)
        name = threads.get((process, thread), "thread")
        words = next((f"{word} of " for word, step in _TRACKS.items() if step == track), "")
        yield _metadata("thread_name", process, tid, f"{words}{name} {thread}")


def _metadata(kind: str, process: int, tid: int, name: str) -> Event:
    return {"ph": "M", "name": kind, "pid": process, "tid": tid, "args": {"name": name}}


def _of_profile(name: str, number: int, profile: Mapping[str, Any], base_ns: int) -> Iterator[Event]:
    base = profile.get("baseTimeNanoseconds")
    events = profile.get("traceEvents")
    if type(base) is not int or not isinstance(events, list):
        raise ProfileError(
            f"{name}: the profile has no baseTimeNanoseconds or no traceEvents, so it cannot be put on the trace's clock; export "
            "it with torch.profiler's export_chrome_trace of torch 2.4 or newer"
        )
    shift_us = (base - base_ns) / 1000
    for event in events:
        moved = dict(event)
        if isinstance(event.get("ts"), int | float):
            moved["ts"] = event["ts"] + shift_us
        pid = event.get("pid")
        if isinstance(pid, int):
            moved["pid"] = number * _PROFILE_STEP + pid
        elif pid is not None:
            moved["pid"] = f"{name}: {pid}"
        if "id" in event:
            moved["id"] = f"{number}:{event['id']}"  # arrows of several profiles can have the same
        if event.get("name") == "process_name":
            moved["args"] = {
                **event.get("args", {}),
                "name": f"{name}: {event.get('args', {}).get('name', '')}",
            }
        yield moved
