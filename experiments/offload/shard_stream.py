"""A transformed shard as a stream of tar bytes, which can begin at any sample."""

from __future__ import annotations

import tarfile
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass

from cloud.storage.samples import Sample
from cloud.storage.shards import Record
from experiments.offload.errors import RefusedError

OFFSET_EVERY = 16
OFFSET_HEADER = "ORCH.source-offset"
"""Pax header of a sample's first member, of every 16th sample: the byte in the source's tar at which it begins."""

END_OF_TAR = bytes(1024)
_BLOCK_BYTES = 512


@dataclass(frozen=True, slots=True)
class Ahead:
    """How much of a shard is read and transformed before it has been sent: at most `samples`, and of those no further one
    is begun while they have more than `held_bytes`."""

    samples: int
    held_bytes: int


def transformed_shard(
    entries: Iterator[tuple[tarfile.TarInfo, Sample]],
    start: int,
    transform: Callable[[Sample], Future[Record]],
    ahead: Ahead,
) -> Iterator[bytes]:
    """Yield the tar from sample `start` on, a sample at a time; `entries` are those of the whole source.

    The bytes from a sample on are the same wherever the stream begins. Raises RefusedError if the source has fewer
    samples than `start`, what reading the source raises, and what the futures raise.
    """
    waiting: deque[tuple[int, int, int, Future[Record]]] = deque()  # number, offset, bytes as stored
    number = 0
    try:
        for entry, sample in entries:
            number += 1
            if number <= start:
                continue
            size_bytes = sum(len(data) for data in sample.values() if isinstance(data, bytes))
            waiting.append((number - 1, entry.offset, size_bytes, transform(sample)))
            while waiting and (_is_full(waiting, ahead) or waiting[0][3].done()):
                yield _next(waiting)
        if number < start:
            raise RefusedError(416, f"the shard has {number} samples, so it cannot be read from {start} on")
        while waiting:
            yield _next(waiting)
        yield END_OF_TAR
    finally:
        for *_, future in waiting:
            future.cancel()


def _is_full(waiting: deque[tuple[int, int, int, Future[Record]]], ahead: Ahead) -> bool:
    if len(waiting) >= ahead.samples:
        return True
    held = 0
    for _, _, size_bytes, future in waiting:
        is_there = future.done() and not future.cancelled() and future.exception() is None
        held += sum(map(len, future.result().members.values())) if is_there else size_bytes
    return held > ahead.held_bytes


def _next(waiting: deque[tuple[int, int, int, Future[Record]]]) -> bytes:
    number, offset, _, future = waiting[0]
    record = future.result()
    waiting.popleft()
    return sample_bytes(record, {OFFSET_HEADER: str(offset)} if number % OFFSET_EVERY == 0 else {})


def sample_bytes(record: Record, pax_headers: dict[str, str]) -> bytes:
    """The entries of one sample in a tar, the first of them with the headers. Equal records give equal bytes."""
    parts: list[bytes] = []
    for extension, data in record.members.items():
        entry = tarfile.TarInfo(f"{record.key}.{extension}")
        entry.size = len(data)
        entry.pax_headers = dict(pax_headers) if not parts else {}
        parts += (
            entry.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape"),
            data,
            bytes(-len(data) % _BLOCK_BYTES),
        )
    return b"".join(parts)
