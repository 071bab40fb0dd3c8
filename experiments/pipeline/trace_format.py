"""The format of trace files: one file per thread, with a header, the names used in it, and records of fixed size.

A file is preallocated and mapped into memory while its thread records; it is read after the thread has ended, however that
happened. All numbers are little-endian. Records follow each other from the end of the names; the first unused one has code 0.
Standard library only: this module is shipped with the peer, and the analysis of traces imports it.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from hashlib import sha256

MAGIC = b"orchtrc1"
SUFFIX = ".trace"
RECORD = struct.Struct("<qqqiIIHBx")
"""start ns, wall ns, CPU ns, batch, sample, bytes, name, code."""
NAMES_BYTES = 4096
NO_BATCH = -1
NO_CPU = -1
NO_NUMBER = 0xFFFF_FFFF
"""A sample or size that is unknown. Larger sizes than 4,294,967,294 bytes are unknown, too."""

# magic, sizes of a record and of the names, pid, tid, monotonic ns, real ns, dropped, unused, records, VM, thread
_VM_BYTES, _THREAD_BYTES = 128, 64
_HEADER = struct.Struct(f"<8sIIqqqqIIQ{_VM_BYTES}s{_THREAD_BYTES}s")
HEADER_BYTES = 256
DROPPED_OFFSET = 8 + 4 + 4 + 4 * 8
"""Where the number of dropped events is: its thread counts it there."""
FIRST_RECORD = HEADER_BYTES + NAMES_BYTES


class Code(IntEnum):
    """What a record is about. `sample` of a fetch is the number of samples, `name` that of an operation or phase."""

    UNUSED = 0
    OP = 1  # one operation on one sample
    FETCH = 2  # all samples of a batch, in its worker
    COLLATE = 3  # of a batch, in its worker
    ARRIVED = 4  # of a batch, in the consumer; an instant
    WAIT = 5  # of the consumer for a batch
    CONSUMED = 6  # from the end of that wait until the consumer asks for another batch
    PHASE = 7  # of the training
    SENT = 8  # `sample` is the worker's own number of this batch, `bytes` its process, `CPU ns` its thread
    SAMPLES = 9  # of a batch: `bytes` samples from number `sample` on


_CODES = frozenset(map(int, Code))


class TraceFileError(Exception):
    """A file is no trace, or its header is damaged; the message is a sentence that names the file."""


@dataclass(frozen=True, slots=True)
class Header:
    """Who recorded, and one moment on both clocks: monotonic time becomes comparable between VMs by it."""

    vm: str
    pid: int
    tid: int
    thread: str
    monotonic_ns: int
    real_ns: int
    records: int  # that fit
    dropped: int = 0

    def pack(self) -> bytes:
        """HEADER_BYTES bytes."""
        packed = _HEADER.pack(
            MAGIC,
            RECORD.size,
            NAMES_BYTES,
            self.pid,
            self.tid,
            self.monotonic_ns,
            self.real_ns,
            self.dropped,
            0,
            self.records,
            _cut(self.vm, _VM_BYTES),
            _cut(self.thread, _THREAD_BYTES),
        )
        return packed.ljust(HEADER_BYTES, b"\0")


@dataclass(frozen=True, slots=True)
class Event:
    """One record, as it lies in the file: times are on the monotonic clock, absent values are None."""

    code: Code
    name: str
    start_ns: int
    wall_ns: int
    cpu_ns: int | None
    batch: int | None
    sample: int | None
    bytes_out: int | None
    local: int | None = None  # the thread's own number of the batch, if it does not know the consumer's


@dataclass(frozen=True, slots=True)
class ThreadTrace:
    """A trace file's content."""

    header: Header
    events: tuple[Event, ...]


def local_batch(number: int) -> int:
    """Return what stands in a record for a thread's own batch `number`, and the number for what stands there."""
    return -2 - number


def read_thread(data: bytes, file: str) -> ThreadTrace:
    """Decode a trace file; `file` is its name for messages. Raises TraceFileError."""
    if len(data) < FIRST_RECORD or data[: len(MAGIC)] != MAGIC:
        raise TraceFileError(f"{file}: this is not a trace, or its header is cut off; remove the file")
    _, size, names_bytes, pid, tid, monotonic, real, dropped, _, records, vm, thread = _HEADER.unpack_from(
        data
    )
    if size != RECORD.size or names_bytes != NAMES_BYTES:
        raise TraceFileError(
            f"{file}: its records have {size} bytes, but this version reads {RECORD.size}; read it with the version of orch "
            "that wrote it"
        )
    header = Header(_text(vm), pid, tid, _text(thread), monotonic, real, records, dropped)
    names = data[HEADER_BYTES:FIRST_RECORD].rstrip(b"\0").decode("utf-8", "replace").split("\n")
    return ThreadTrace(header, tuple(_events(data, names, file)))


def _events(data: bytes, names: list[str], file: str) -> Iterator[Event]:
    whole = len(data) - (len(data) - FIRST_RECORD) % RECORD.size
    for start, wall, cpu, batch, sample, size, name, code in RECORD.iter_unpack(data[FIRST_RECORD:whole]):
        if code == Code.UNUSED:
            return
        named = code in (Code.OP, Code.PHASE)
        if code not in _CODES or (named and name >= len(names)):
            raise TraceFileError(f"{file}: a record is damaged (code {code}, name {name}); remove the file")
        yield Event(
            Code(code),
            names[name] if named else "",
            start,
            wall,
            None if cpu == NO_CPU else cpu,
            None if batch < 0 else batch,
            None if sample == NO_NUMBER else sample,
            None if size == NO_NUMBER else size,
            local_batch(batch) if batch < NO_BATCH else None,
        )


def _cut(text: str, size: int) -> bytes:
    """At most `size` bytes. A longer text ends with a hash, so that different ones stay different."""
    data = text.encode("utf-8", "replace")
    if len(data) <= size:
        return data
    end = f"~{sha256(data).hexdigest()[:12]}".encode()
    return data[: size - len(end)].decode("utf-8", "ignore").encode() + end


def _text(field: bytes) -> str:
    return field.rstrip(b"\0").decode("utf-8", "replace")
