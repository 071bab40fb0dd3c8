"""Sums of a VM's trace by epoch and operation, added up from its files while they are recorded.

Each file is read once, from where the last reading ended, so that a trace takes the memory of what the open epochs need.
"""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from experiments.pipeline.trace_format import (
    FIRST_RECORD,
    HEADER_BYTES,
    MAGIC,
    NO_CPU,
    NO_NUMBER,
    RECORD,
    SUFFIX,
    Code,
    TraceFileError,
    read_thread,
)
from metrics.records import NO_EPOCH, EpochRecord, InputBatchRecord, InputOpRecord, InputTraceRecord

_log = logging.getLogger(__name__)

InputRow = InputOpRecord | InputBatchRecord | InputTraceRecord

_CHUNK_BYTES = 1_000_000 // RECORD.size * RECORD.size  # read at once
_RECORD = np.dtype(
    {
        "names": ("start", "wall", "cpu", "batch", "sample", "size", "name", "code"),
        "formats": ["<i8", "<i8", "<i8", "<i4", "<u4", "<u4", "<u2", "u1"],
        "offsets": [0, 8, 16, 24, 28, 32, 36, 38],
        "itemsize": RECORD.size,
    }
)
_OF_BATCHES = (Code.FETCH, Code.COLLATE, Code.ARRIVED, Code.WAIT, Code.CONSUMED)
_NS = 1e9
_LATEST_NS = 2**61  # the year 2043; later times are damaged

_Records = npt.NDArray[np.void]


@dataclass(slots=True)
class _File:
    """A trace file, and how far it was read."""

    path: Path
    read_bytes: int = 0  # 0: its header is not there yet
    names: tuple[str, ...] = ()
    last_ns: float = -math.inf  # end of its last record
    dropped: int = 0
    damaged: bool = False


@dataclass(slots=True)
class _OpSum:
    first_ns: int
    n: int = 0
    wall_ns: int = 0
    cpu_ns: int | None = 0
    bytes_out: int | None = 0


@dataclass(slots=True)
class _Batch:
    """What was recorded of one batch."""

    samples: int | None = None
    fetch_ns: int | None = None
    collate_ns: int | None = None
    ready_ns: int | None = None  # end of the collation, or of the fetch without one
    arrived_ns: int | None = None
    wait_ns: int | None = None
    received_ns: int | None = None  # end of the wait
    consumed_ns: int | None = None
    read_before: bool = False  # its use had ended at an earlier reading

    @property
    def delay_ns(self) -> int | None:
        if self.ready_ns is None or self.received_ns is None:
            return None
        return self.received_ns - self.ready_ns

    @property
    def complete(self) -> bool:
        """Whether all of the batch was read. Its parts come from several threads, in any order."""
        if self.consumed_ns is None:
            return False
        values = (self.fetch_ns, self.collate_ns, self.arrived_ns, self.received_ns)
        return self.read_before or None not in values


@dataclass(slots=True)
class _BatchSum:
    n: int = 0
    samples: int | None = 0
    fetch_ns: int | None = 0
    collate_ns: int | None = 0
    wait_ns: int | None = 0
    delay_ns: int | None = 0
    late: int = 0

    def add(self, batch: _Batch, late: bool) -> None:
        self.n += 1
        self.samples = _plus(self.samples, batch.samples)
        self.fetch_ns = _plus(self.fetch_ns, batch.fetch_ns)
        self.collate_ns = _plus(self.collate_ns, batch.collate_ns)
        self.wait_ns = _plus(self.wait_ns, batch.wait_ns)
        self.delay_ns = _plus(self.delay_ns, batch.delay_ns)
        self.late += late


class _Epochs:
    """A VM's epochs that have ended, by which a time is looked up."""

    def __init__(self) -> None:
        self._began_ns = self._ended_ns = self._numbers = np.array([], np.int64)
        self.ends_ns: dict[int, int] = {}

    def add(self, records: Iterable[EpochRecord]) -> None:
        for record in records:
            self._began_ns = np.append(self._began_ns, round(record.began_s * _NS))
            self._ended_ns = np.append(self._ended_ns, round(record.ended_s * _NS))
            self._numbers = np.append(self._numbers, record.epoch)
            self.ends_ns[record.epoch] = int(self._ended_ns[-1])
        order = np.argsort(self._began_ns, kind="stable")
        self._began_ns, self._ended_ns = self._began_ns[order], self._ended_ns[order]
        self._numbers = self._numbers[order]

    @property
    def until_ns(self) -> float:
        """When the last epoch ended; what began later may belong to a later one."""
        return int(self._ended_ns.max()) if len(self._ended_ns) else -math.inf

    def at(self, times_ns: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return the epoch of each time; NO_EPOCH where there is none."""
        if not len(self._numbers):
            return np.full(len(times_ns), NO_EPOCH, np.int64)
        index = np.searchsorted(self._began_ns, times_ns, side="right") - 1
        known = np.maximum(index, 0)
        inside = (index >= 0) & (times_ns < self._ended_ns[known])
        return np.where(inside, self._numbers[known], NO_EPOCH)


class TraceSums:
    """Sums of the trace of one VM, of all its threads and processes, which may go on recording. For one thread.

    Operations belong to the epoch in which they began, batches to the one in which the training used them: by the middle of
    their use, because epochs are on the swarm's clock, which differs from the VM's by milliseconds.
    """

    def __init__(self, folder: Path, vm: str) -> None:
        """`folder`: that of the trace files, which need not exist yet."""
        self._folder, self._vm = folder, vm
        self._files: dict[Path, _File] = {}
        self._epochs = _Epochs()
        self._offset_ns: int | None = None  # of the real clock
        self._ops: dict[tuple[str, int], _OpSum] = {}  # by name and epoch
        self._open_ops: list[
            tuple[_Records, tuple[str, ...]]
        ] = []  # of epochs that may not have ended, with their names
        self._open: dict[int, _Batch] = {}  # not counted yet, by number
        self._batches: dict[int, _BatchSum] = {}  # by epoch
        self._latest_ns: int | None = None  # arrival of any batch so far
        self._full_ns: float = math.inf  # when the first buffer was full
        self._returned: dict[tuple[type, int, str], InputRow] = {}

    def update(self, ended: Iterable[EpochRecord]) -> list[InputRow]:
        """Read what was recorded since the last call, with the epochs that have ended since.

        Returns the sums that have changed. Raises OSError.
        """
        self._epochs.add(ended)
        self._read()
        self._count(self._epochs.until_ns)
        return self._changed()

    def finish(self, ended: Iterable[EpochRecord] = ()) -> list[InputRow]:
        """Read the rest, after recording has ended. Returns as `update`; what is in no epoch counts as NO_EPOCH's."""
        self._epochs.add(ended)
        self._read()
        for batch in self._open.values():
            if batch.consumed_ns is None:
                batch.consumed_ns = 0
            batch.read_before = True
        self._count(math.inf)
        return self._changed()

    def _read(self) -> None:
        for path in sorted(self._folder.rglob(f"*{SUFFIX}")):
            self._files.setdefault(path, _File(path))
        opened = [file for file in self._files.values() if not file.damaged]
        headers = [self._header(file) for file in opened]
        clocks = [clocks for clocks in headers if clocks is not None]
        if self._offset_ns is None and clocks:
            monotonic_ns, real_ns = min(clocks)
            self._offset_ns = real_ns - monotonic_ns
        for file, known in zip(opened, headers, strict=True):
            if known is not None and not file.damaged:
                self._read_file(file)

    def _header(self, file: _File) -> tuple[int, int] | None:
        """Read a file's header and names. Returns its pair of clocks (monotonic, real); None: not written yet."""
        try:
            with file.path.open("rb") as opened:
                data = opened.read(FIRST_RECORD)
        except FileNotFoundError:
            self._damage(file, "the file was removed")
            return None
        if len(data) < FIRST_RECORD or not data.startswith(MAGIC):
            if any(data[: len(MAGIC)]) and not data.startswith(MAGIC):
                self._damage(file, "this is not a trace")
            return None
        try:
            header = read_thread(data, str(file.path)).header
        except TraceFileError as error:
            self._damage(file, str(error))
            return None
        if not (0 <= header.monotonic_ns <= _LATEST_NS and 0 <= header.real_ns <= _LATEST_NS):
            self._damage(file, "the clocks in its header are damaged")
            return None
        file.dropped = header.dropped
        file.read_bytes = file.read_bytes or FIRST_RECORD
        return header.monotonic_ns, header.real_ns

    def _read_file(self, file: _File) -> None:
        with file.path.open("rb") as opened:
            while True:
                seen = os.pread(opened.fileno(), _CHUNK_BYTES, file.read_bytes)
                records = np.frombuffer(seen, _RECORD, len(seen) // RECORD.size)
                unused = np.flatnonzero(records["code"] == Code.UNUSED)
                count = int(unused[0]) if len(unused) else len(records)
                if not count:
                    break
                # A record whose code was there may have been written while the rest of it was read: read it again.
                data = os.pread(opened.fileno(), count * RECORD.size, file.read_bytes)
                file.read_bytes += len(data)
                names = os.pread(opened.fileno(), FIRST_RECORD - HEADER_BYTES, HEADER_BYTES)
                file.names = tuple(names.rstrip(b"\0").decode("utf-8", "replace").split("\n"))
                records = np.frombuffer(data, _RECORD)
                if not _is_sound(records, len(file.names)):
                    self._damage(file, "a record is damaged")
                    return
                file.last_ns = int(records["start"][-1]) + int(records["wall"][-1]) + (self._offset_ns or 0)
                self._add(records, file.names)
        if file.dropped:
            self._full_ns = min(self._full_ns, file.last_ns)

    def _damage(self, file: _File, why: str) -> None:
        file.damaged = True
        _log.warning("%s: %s; the rest of it is left out of the sums", file.path, why)

    def _add(self, records: _Records, names: tuple[str, ...]) -> None:
        ops = records[records["code"] == Code.OP]
        if len(ops):
            self._open_ops.append((ops, names))
        offset_ns = self._offset_ns or 0
        for start, wall, _, number, sample, _, _, code in records[
            np.isin(records["code"], _OF_BATCHES)
        ].tolist():
            if number < 0:
                continue
            batch = self._open.setdefault(number, _Batch())
            start_ns = start + offset_ns
            if code == Code.FETCH:
                batch.samples = None if sample == NO_NUMBER else sample
                batch.fetch_ns = wall
                batch.ready_ns = start_ns + wall if batch.collate_ns is None else batch.ready_ns
            elif code == Code.COLLATE:
                batch.collate_ns, batch.ready_ns = wall, start_ns + wall
            elif code == Code.ARRIVED:
                batch.arrived_ns = start_ns
            elif code == Code.WAIT:
                batch.wait_ns, batch.received_ns = wall, start_ns + wall
            else:
                batch.consumed_ns = wall

    def _count(self, until_ns: float) -> None:
        """Count what began before `until_ns`, of whose time all epochs are known."""
        waiting, self._open_ops = self._open_ops, []
        for ops, names in waiting:
            starts_ns = ops["start"] + (self._offset_ns or 0)
            due = starts_ns < until_ns
            self._count_ops(ops[due], starts_ns[due], names)
            if not due.all():
                self._open_ops.append((ops[~due], names))
        for number in sorted(self._open):
            batch = self._open[number]
            if not batch.complete:
                batch.read_before = batch.consumed_ns is not None
                continue
            used_ns = None if batch.received_ns is None else batch.received_ns + (batch.consumed_ns or 0) // 2
            if used_ns is not None and used_ns >= until_ns:
                continue
            del self._open[number]
            late = self._arrive(batch)
            if used_ns is not None:
                (epoch,) = self._epochs.at(np.array([used_ns], np.int64)).tolist()
                self._batches.setdefault(epoch, _BatchSum()).add(batch, late)

    def _arrive(self, batch: _Batch) -> bool:
        """Whether a batch arrived after one with a higher number. Batches come in the order of their numbers."""
        at_ns, before_ns = batch.arrived_ns, self._latest_ns
        if at_ns is None:
            return False
        self._latest_ns = at_ns if before_ns is None else max(at_ns, before_ns)
        return before_ns is not None and at_ns < before_ns

    def _count_ops(self, ops: _Records, starts_ns: npt.NDArray[np.int64], names: Sequence[str]) -> None:
        pairs = np.stack([self._epochs.at(starts_ns), ops["name"].astype(np.int64)])
        order = np.lexsort(pairs)
        begins = np.flatnonzero(np.diff(pairs[:, order], axis=1, prepend=-1).any(axis=0))
        for mine in np.split(order, begins[1:]) if len(order) else ():
            epoch, name = (int(value) for value in pairs[:, mine[0]])
            first_ns = int(starts_ns[mine].min())
            found = self._ops.setdefault((names[name], epoch), _OpSum(first_ns))
            found.first_ns = min(found.first_ns, first_ns)
            found.n += len(mine)
            found.wall_ns += int(ops["wall"][mine].sum(dtype=np.int64))
            cpus, sizes = ops["cpu"][mine], ops["size"][mine]
            cpu_ns = None if (cpus == NO_CPU).any() else int(cpus.sum(dtype=np.int64))
            size = None if (sizes == NO_NUMBER).any() else int(sizes.sum(dtype=np.int64))
            found.cpu_ns, found.bytes_out = _plus(found.cpu_ns, cpu_ns), _plus(found.bytes_out, size)

    def _changed(self) -> list[InputRow]:
        found = list[InputRow]()
        for row in self._rows():
            key = row_key(row)
            if self._returned.get(key) != row:
                self._returned[key] = row
                found.append(row)
        return found

    def _rows(self) -> Iterator[InputRow]:
        for (name, epoch), op in sorted(self._ops.items(), key=lambda item: item[1].first_ns):
            yield InputOpRecord(
                self._vm, epoch, name, op.n, op.wall_ns / _NS, _seconds(op.cpu_ns), op.bytes_out
            )
        for epoch, own in sorted(self._batches.items()):
            yield InputBatchRecord(
                vm=self._vm,
                epoch=epoch,
                n=own.n,
                samples=own.samples,
                fetch_s=_seconds(own.fetch_ns),
                collate_s=_seconds(own.collate_ns),
                wait_s=_seconds(own.wait_ns),
                delay_s=_seconds(own.delay_ns),
                out_of_order=None if self._latest_ns is None else own.late,
                dropped=0 if self._epochs.ends_ns.get(epoch, math.inf) <= self._full_ns else None,
            )
        files = self._files.values()
        if files:
            damaged, dropped = sum(file.damaged for file in files), sum(file.dropped for file in files)
            yield InputTraceRecord(self._vm, len(files), damaged, dropped)


def row_key(row: InputRow) -> tuple[type, int, str]:
    """Return what a later sum of the same has in common with this one, beside the VM."""
    epoch = NO_EPOCH if isinstance(row, InputTraceRecord) else row.epoch
    return type(row), epoch, row.op if isinstance(row, InputOpRecord) else ""


def _is_sound(records: _Records, names: int) -> bool:
    named = np.isin(records["code"], (Code.OP, Code.PHASE))
    bad = ~np.isin(records["code"], tuple(Code)) | (named & (records["name"] >= names))
    for time in ("start", "wall"):
        bad |= (records[time] < 0) | (records[time] > _LATEST_NS)
    return not bad.any()


def _plus(total: int | None, value: int | None) -> int | None:
    return None if total is None or value is None else total + value


def _seconds(value_ns: int | None) -> float | None:
    return None if value_ns is None else value_ns / _NS
