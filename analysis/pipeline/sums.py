"""Sums of a VM's trace by epoch and operation: what a run keeps of it in its records.

Operations are added up as arrays, file by file, so that a trace of millions of them takes the memory of one file.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from analysis.pipeline.merge import merge
from analysis.pipeline.records import BatchRecord, Trace
from analysis.pipeline.statistics import out_of_order_batches
from experiments.pipeline.trace_format import (
    FIRST_RECORD,
    HEADER_BYTES,
    NO_CPU,
    NO_NUMBER,
    RECORD,
    SUFFIX,
    Code,
    Header,
    ThreadTrace,
    TraceFileError,
    read_thread,
)
from metrics.records import NO_EPOCH, EpochRecord, InputBatchRecord, InputOpRecord, InputTraceRecord

LARGEST_BYTES = 32_000_000
"""Of one file; a peer's have 20 MB."""
MOST_BYTES = 8_000_000_000
"""Of all files of a VM; the others are not read."""
_FIELDS = ("start", "wall", "cpu", "batch", "sample", "size", "name", "code")
_RECORD = np.dtype(
    {
        "names": _FIELDS,
        "formats": ["<i8", "<i8", "<i8", "<i4", "<u4", "<u4", "<u2", "u1"],
        "offsets": [0, 8, 16, 24, 28, 32, 36, 38],
        "itemsize": RECORD.size,
    }
)
_OF_BATCHES = (Code.FETCH, Code.COLLATE, Code.ARRIVED, Code.WAIT, Code.CONSUMED, Code.SENT)
_NS = 1e9
_LATEST_NS = 2**61  # the year 2043; later times are damaged

_Records = npt.NDArray[np.void]


@dataclass(frozen=True, slots=True)
class VmInput:
    """Sums of one VM's trace. `problems`: what could not be read, as sentences."""

    ops: tuple[InputOpRecord, ...]
    batches: tuple[InputBatchRecord, ...]
    trace: InputTraceRecord
    problems: tuple[str, ...]


@dataclass(slots=True)
class _OpSum:
    first_ns: int
    n: int = 0
    wall_ns: float = 0.0
    cpu_ns: float | None = 0.0
    bytes_out: int | None = 0


class _Epochs:
    """A VM's epochs, by which a time is looked up."""

    def __init__(self, records: Iterable[EpochRecord]) -> None:
        rows = sorted(records, key=lambda row: row.began_s)
        self._began_ns = np.array([round(row.began_s * _NS) for row in rows], np.int64)
        self._ended_ns = np.array([round(row.ended_s * _NS) for row in rows], np.int64)
        self._numbers = np.array([row.epoch for row in rows], np.int64)
        self.ends_ns = dict(zip(self._numbers.tolist(), self._ended_ns.tolist(), strict=True))

    def at(self, times_ns: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return the epoch of each time; NO_EPOCH where there is none."""
        if not len(self._numbers):
            return np.full(len(times_ns), NO_EPOCH, np.int64)
        index = np.searchsorted(self._began_ns, times_ns, side="right") - 1
        known = np.maximum(index, 0)
        inside = (index >= 0) & (times_ns < self._ended_ns[known])
        return np.where(inside, self._numbers[known], NO_EPOCH)


@dataclass(slots=True)
class _Sums:
    """Sums of the files read so far."""

    epochs: _Epochs
    offset_ns: int
    ops: dict[tuple[str, int], _OpSum] = field(default_factory=dict[tuple[str, int], _OpSum])
    full_ns: float = math.inf  # when the first buffer was full

    def add(self, thread: ThreadTrace, records: _Records, names: Sequence[str]) -> None:
        """Add a file's operations."""
        if thread.header.dropped:
            last = int(records["start"][-1]) + int(records["wall"][-1]) if len(records) else -math.inf
            self.full_ns = min(self.full_ns, last + self.offset_ns)
        ops = records[records["code"] == Code.OP]
        starts_ns = ops["start"] + self.offset_ns
        pairs = np.stack([self.epochs.at(starts_ns), ops["name"].astype(np.int64)])
        order = np.lexsort(pairs)
        begins = np.flatnonzero(np.diff(pairs[:, order], axis=1, prepend=-1).any(axis=0))
        for mine in np.split(order, begins[1:]) if len(order) else ():
            epoch, name = (int(value) for value in pairs[:, mine[0]])
            first_ns = int(starts_ns[mine].min())
            found = self.ops.setdefault((names[name], epoch), _OpSum(first_ns))
            found.first_ns = min(found.first_ns, first_ns)
            found.n += len(mine)
            found.wall_ns += float(ops["wall"][mine].sum(dtype=np.float64))
            cpus, sizes = ops["cpu"][mine], ops["size"][mine]
            known_cpu = found.cpu_ns is not None and not (cpus == NO_CPU).any()
            found.cpu_ns = (found.cpu_ns or 0.0) + float(cpus.sum(dtype=np.float64)) if known_cpu else None
            known_size = found.bytes_out is not None and not (sizes == NO_NUMBER).any()
            found.bytes_out = (found.bytes_out or 0) + int(sizes.sum(dtype=np.int64)) if known_size else None


def trace_files(folder: Path) -> list[Path]:
    """Return the trace files below a folder, sorted."""
    return sorted(path for path in folder.rglob(f"*{SUFFIX}") if path.is_file() and not path.is_symlink())


def sums_of(files: Sequence[Path], vm: str, epochs: Iterable[EpochRecord]) -> VmInput:
    """Add up the trace of one VM, whatever name its files contain. `epochs`: the VM's own.

    Operations belong to the epoch in which they began, batches to the one in which the training used them: by the middle of
    their use, because epochs are on the swarm's clock, which differs from the VM's by milliseconds. Files that are damaged
    are left out, of cut ones the whole records count; both are named in `problems`.
    """
    problems = list[str]()
    damaged = 0
    headers = list[tuple[Path, Header]]()
    left = MOST_BYTES
    for file in files:
        try:
            size = file.stat().st_size
            if size > LARGEST_BYTES:
                raise TraceFileError(
                    f"{file}: a trace file has at most {LARGEST_BYTES} bytes, this one {size}"
                )
            if size > left:
                raise TraceFileError(f"{file}: the trace of {vm} has more than {MOST_BYTES} bytes")
            left -= size
            with file.open("rb") as opened:
                header = read_thread(opened.read(FIRST_RECORD), str(file)).header
            if not (0 <= header.monotonic_ns <= _LATEST_NS and 0 <= header.real_ns <= _LATEST_NS):
                raise TraceFileError(f"{file}: the clocks in its header are damaged")
            headers.append((file, replace(header, vm=vm)))
        except (TraceFileError, OSError) as error:
            damaged += 1
            problems.append(str(error))
    first = min((header for _, header in headers), key=lambda h: h.monotonic_ns, default=None)
    sums = _Sums(_Epochs(epochs), 0 if first is None else first.real_ns - first.monotonic_ns)
    threads = list[ThreadTrace]()
    for file, header in headers:
        try:
            data = file.read_bytes()
            records, names = _records(data, file)
            reduced = records[np.isin(records["code"], _OF_BATCHES)]
            thread = read_thread(data[:FIRST_RECORD] + reduced.tobytes(), str(file))
            sums.add(thread, records, names)
        except (TraceFileError, OSError) as error:
            damaged += 1
            problems.append(str(error))
            continue
        threads.append(replace(thread, header=header))
        if len(data) < FIRST_RECORD + header.records * RECORD.size:
            damaged += 1
            problems.append(f"{file}: the end of the file is missing")
    try:
        merged = merge(threads)
    except TraceFileError as error:
        merged = Trace()
        problems.append(f"the batches of {vm} are left out: {error}")
    dropped = sum(header.dropped for _, header in headers)
    ops = sorted(sums.ops.items(), key=lambda item: item[1].first_ns)
    return VmInput(
        tuple(_op_record(vm, name, epoch, found) for (name, epoch), found in ops),
        tuple(_batch_records(vm, merged.batches, sums)),
        InputTraceRecord(vm, len(files), damaged, dropped),
        tuple(problems),
    )


def _records(data: bytes, file: Path) -> tuple[_Records, list[str]]:
    """Return the used records and the names of a file. Raises TraceFileError."""
    count = (len(data) - FIRST_RECORD) // RECORD.size
    if count < 0:
        raise TraceFileError(f"{file}: this is not a trace, or its header is cut off")
    records = np.frombuffer(data, _RECORD, count, FIRST_RECORD)
    unused = np.flatnonzero(records["code"] == Code.UNUSED)
    records = records[: unused[0]] if len(unused) else records
    names = data[HEADER_BYTES:FIRST_RECORD].rstrip(b"\0").decode("utf-8", "replace").split("\n")
    named = np.isin(records["code"], (Code.OP, Code.PHASE))
    bad = ~np.isin(records["code"], tuple(Code)) | (named & (records["name"] >= len(names)))
    for time in ("start", "wall"):
        bad |= (records[time] < 0) | (records[time] > _LATEST_NS)
    if bad.any():
        raise TraceFileError(f"{file}: record {int(np.flatnonzero(bad)[0])} is damaged")
    return records, names


def _op_record(vm: str, name: str, epoch: int, found: _OpSum) -> InputOpRecord:
    cpu_s = None if found.cpu_ns is None else found.cpu_ns / _NS
    return InputOpRecord(vm, epoch, name, found.n, found.wall_ns / _NS, cpu_s, found.bytes_out)


def _batch_records(vm: str, batches: Sequence[BatchRecord], sums: _Sums) -> Iterator[InputBatchRecord]:
    received = [
        (batch, at_ns + (batch.consumed_ns or 0) // 2)
        for batch in batches
        if (at_ns := batch.consumed_start_ns) is not None
    ]
    numbers = sums.epochs.at(np.array([at_ns for _, at_ns in received], np.int64)).tolist()
    late = out_of_order_batches(batches)
    by_epoch: dict[int, list[BatchRecord]] = {}
    for (batch, _), epoch in zip(received, numbers, strict=True):
        by_epoch.setdefault(epoch, []).append(batch)
    for epoch, own in sorted(by_epoch.items()):
        whole = sums.epochs.ends_ns.get(epoch, math.inf) <= sums.full_ns
        samples = [batch.samples for batch in own if batch.samples is not None]
        yield InputBatchRecord(
            vm=vm,
            epoch=epoch,
            n=len(own),
            samples=sum(samples) if len(samples) == len(own) else None,
            fetch_s=_seconds([batch.fetch_ns for batch in own]),
            collate_s=_seconds([batch.collate_ns for batch in own]),
            wait_s=_seconds([batch.wait_ns for batch in own]),
            delay_s=_seconds([batch.delay_ns for batch in own]),
            out_of_order=None if late is None else len({(vm, b.batch) for b in own} & {*late}),
            dropped=0 if whole else None,
        )


def _seconds(values_ns: Sequence[int | None]) -> float | None:
    known = [value for value in values_ns if value is not None]
    return sum(known) / _NS if len(known) == len(values_ns) else None
