"""Records what an input pipeline does: times of operations and batches, into one preallocated file per thread.

Recording an event reads two clocks and writes 40 bytes of mapped memory; it takes no lock and makes no other system call. A
full buffer drops events and counts them. The files are read by analysis/pipeline/merge.py, also those of killed processes.
Standard library only: this module is shipped with the peer.
"""

from __future__ import annotations

import logging
import mmap
import multiprocessing
import os
import platform
import threading
import time
from itertools import count
from pathlib import Path
from time import monotonic_ns, thread_time_ns
from typing import Any, cast

from experiments.pipeline.trace_format import (
    DROPPED_OFFSET,
    FIRST_RECORD,
    HEADER_BYTES,
    NAMES_BYTES,
    NO_BATCH,
    NO_CPU,
    NO_NUMBER,
    RECORD,
    SUFFIX,
    Code,
    Header,
)

_log = logging.getLogger(__name__)

RECORDS = 65_536  # 2.6 MB a thread: 13,107 samples of 5 operations

_pack_into = RECORD.pack_into
_OP = int(Code.OP)
_WIDE_MODES = {"I": 4, "F": 4, "I;16": 2, "I;16L": 2, "I;16B": 2}  # of PIL, bytes a pixel and band


class TraceError(Exception):
    """A trace cannot be recorded; the message is a sentence that says what to do."""


class TraceBuffer:
    """The events of one thread, which alone may call its methods.

    Operations of a sample follow each other without a gap: `mark` is the start of the first, and `op` is the end of one
    and the start of the next. So the time that recording takes is part of the next operation.
    """

    __slots__ = ("_at", "_cpu_ns", "_end", "_map", "_names", "_names_used", "_start_ns", "pid")

    def __init__(self, path: Path, header: Header) -> None:
        """Create the file `path`, with space for all records. Raises TraceError."""
        size = FIRST_RECORD + header.records * RECORD.size
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
            try:
                # Without the space, a write into mapped memory would end the process.
                os.posix_fallocate(descriptor, 0, size)
                self._map = mmap.mmap(descriptor, size)
            except OSError:
                path.unlink(missing_ok=True)
                raise
            finally:
                os.close(descriptor)
        except OSError as error:
            raise TraceError(
                f"{path}: a trace of {size} bytes cannot be written there ({error.strerror}); choose another folder, or "
                "fewer records a thread"
            ) from error
        self._map[:HEADER_BYTES] = header.pack()
        self._at, self._end = FIRST_RECORD, size
        self._names: dict[str, int] = {}
        self._names_used = 0
        self._start_ns = self._cpu_ns = 0
        self.pid = header.pid

    def name_id(self, name: str) -> int:
        """Return the number of an operation's or phase's name in this file. Raises TraceError if the names are too many."""
        known = self._names.get(name)
        if known is not None:
            return known
        text = (("\n" if self._names else "") + " ".join(name.split())).encode("utf-8", "replace")
        if self._names_used + len(text) > NAMES_BYTES:
            raise TraceError(
                f"the names of operations take more than {NAMES_BYTES} bytes with {name!r}; use fewer or shorter ones"
            )
        at = HEADER_BYTES + self._names_used
        self._map[at : at + len(text)] = text
        self._names_used += len(text)
        self._names[name] = len(self._names)
        return self._names[name]

    def mark(self) -> None:
        """Start the first operation of a sample."""
        self._start_ns = monotonic_ns()
        self._cpu_ns = thread_time_ns()

    def op(self, name: int, batch: int, sample: int, size: int) -> None:
        """End an operation and start the next one. NO_BATCH and NO_NUMBER stand for what is unknown."""
        now_ns = monotonic_ns()
        cpu_ns = thread_time_ns()
        at = self._at
        if at < self._end:
            start_ns = self._start_ns
            _pack_into(
                self._map,
                at,
                start_ns,
                now_ns - start_ns,
                cpu_ns - self._cpu_ns,
                batch,
                sample,
                size,
                name,
                _OP,
            )
            self._at = at + RECORD.size
        else:
            self._drop()
        self._start_ns = now_ns
        self._cpu_ns = cpu_ns

    def event(
        self,
        code: Code,
        start_ns: int,
        wall_ns: int,
        *,
        cpu_ns: int = NO_CPU,
        batch: int = NO_BATCH,
        sample: int = NO_NUMBER,
        size: int = NO_NUMBER,
        name: int = 0,
    ) -> None:
        """Record an event whose times the caller has measured."""
        at = self._at
        if at < self._end:
            _pack_into(self._map, at, start_ns, wall_ns, cpu_ns, batch, sample, size, name, code)
            self._at = at + RECORD.size
        else:
            self._drop()

    def _drop(self) -> None:
        dropped = int.from_bytes(self._map[DROPPED_OFFSET : DROPPED_OFFSET + 4], "little") + 1
        self._map[DROPPED_OFFSET : DROPPED_OFFSET + 4] = min(dropped, NO_NUMBER).to_bytes(4, "little")


class _NoTrace(TraceBuffer):
    """Takes the place of a buffer that cannot be written: it records nothing."""

    __slots__ = ()

    def __init__(self, pid: int) -> None:
        self._map = cast(Any, bytearray(HEADER_BYTES))
        self._at = self._end = 0
        self._names = {}
        self._names_used = self._start_ns = self._cpu_ns = 0
        self.pid = pid

    def name_id(self, name: str) -> int:
        """All names are alike."""
        return 0


class Recorder:
    """Gives each thread its buffer, in `folder`. Processes get a copy; each of their threads has a buffer of its own."""

    def __init__(self, folder: Path, *, vm: str = "", records: int = RECORDS, strict: bool = True) -> None:
        """`vm`: the name of this machine in the trace (default: its host name). Raises TraceError.

        Without `strict`, a thread whose file cannot be written logs a warning and records nothing.
        """
        if records < 1:
            raise TraceError(f"records: {records} is too small; a thread needs space for 1 record at least")
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise TraceError(
                f"{folder}: a trace cannot be written there ({error.strerror}); choose another folder"
            ) from error
        self.folder, self.vm, self.records = (
            folder.resolve(),
            vm or platform.node() or "this machine",
            records,
        )
        self._strict = strict
        self._local = threading.local()

    def buffer(self) -> TraceBuffer:
        """Return the calling thread's buffer; makes one at its first call. Raises TraceError, if strict."""
        found: TraceBuffer | None = getattr(self._local, "buffer", None)
        if found is None or found.pid != os.getpid():  # a forked process has its parent's thread-local values
            found = self._local.buffer = self._open()
        return found

    def _open(self) -> TraceBuffer:
        pid, tid = os.getpid(), threading.get_native_id()
        # Ids of threads are used again, and names of machines can contain slashes.
        paths = (self.folder / f"{pid}-{tid}-{number}{SUFFIX}" for number in count())
        path = next(path for path in paths if not path.exists())
        name, process = threading.current_thread().name, multiprocessing.current_process().name
        if process != "MainProcess":
            name = f"{process}, {name}"
        header = Header(self.vm, pid, tid, name, monotonic_ns(), time.time_ns(), self.records)
        try:
            return TraceBuffer(path, header)
        except TraceError as error:
            if self._strict:
                raise
            _log.warning("nothing is traced in thread %s: %s", name, error)
            return _NoTrace(pid)

    def __getstate__(self) -> dict[str, Any]:
        return {"folder": self.folder, "vm": self.vm, "records": self.records, "_strict": self._strict}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._local = threading.local()


class SampleTrace:
    """The operations on one sample, the `number`-th that its reader read."""

    __slots__ = ("_buffer", "_number")

    def __init__(self, buffer: TraceBuffer, number: int) -> None:
        self._buffer, self._number = buffer, number % NO_NUMBER
        buffer.mark()

    def op(self, name: str, item: Any) -> None:
        """An operation has ended; the sample is `item` now."""
        self._buffer.op(self._buffer.name_id(name), NO_BATCH, self._number, size_of(item))


def size_of(value: Any) -> int:
    """Return the bytes of a sample's values in memory; NO_NUMBER if they are unknown.

    Known are those of bytes, texts (in UTF-8), numbers (8), arrays and tensors, PIL's images, and lists, tuples and
    dicts of these.
    """
    size = _size(value)
    return NO_NUMBER if size is None or size > NO_NUMBER else size


def _size(value: Any) -> int | None:
    match value:
        case bytes() | bytearray():
            return len(value)
        case str():
            return len(value) if value.isascii() else len(value.encode("utf-8", "surrogatepass"))
        case int() | float():
            return 8
        case dict():
            return _sum(value.values())
        case list() | tuple():
            return _sum(value)
    bands = getattr(value, "getbands", None)
    if bands is not None:
        width, height = value.size
        return width * height * len(bands()) * _WIDE_MODES.get(value.mode, 1)
    size = getattr(value, "nbytes", None)
    return size if isinstance(size, int) else None


def _sum(values: Any) -> int | None:
    total = 0
    for value in values:
        size = _size(value)
        if size is None:
            return None
        total += size
    return total
