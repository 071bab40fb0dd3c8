"""A transformed shard as a stream of tar bytes, which can begin at any sample."""

from __future__ import annotations

import tarfile
from collections import deque
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import Future
from dataclasses import dataclass

from cloud.storage.samples import Sample
from cloud.storage.shards import Record
from experiments.offload.errors import RefusedError

OFFSET_EVERY = 16
OFFSET_HEADER = "ORCH.source-offset"
"""Pax header of a sample's first member, of every 16th sample: the byte in the source's tar at which it begins."""

END_OF_TAR = bytes(1024)
KEEP_ALIVE = tarfile.TarInfo.create_pax_global_header({"comment": "waiting"})
"""Sent while the next sample is not ready. Readers of tars pass over it."""
KEEP_ALIVE_S = 1.0
_BLOCK_BYTES = 512


@dataclass(frozen=True, slots=True)
class Ahead:
    """How much of a shard is read and transformed before it has been sent: at most `samples`, and of those no further one
    is begun while they have more than `held_bytes`."""

    samples: int
    held_bytes: int


@dataclass(frozen=True, slots=True)
class _Waiting:
    """A sample that is being transformed; `size_bytes` as it is stored."""

    size_bytes: int
    future: Future[bytes]

    @property
    def held_bytes(self) -> int:
        future = self.future
        is_there = future.done() and not future.cancelled() and future.exception() is None
        return len(future.result()) if is_there else self.size_bytes


def transformed_shard(
    entries: Iterator[tuple[tarfile.TarInfo, Sample]],
    start: int,
    transform: Callable[[Sample, dict[str, str]], Future[bytes]],
    ahead: Ahead,
) -> Iterator[bytes]:
    """Yield the tar from sample `start` on, a sample at a time; `entries` are those of the whole source.

    `transform` gets a sample and its pax headers, and makes what `sample_bytes` returns. The bytes from a sample on are
    the same wherever the stream begins, apart from what is sent while a sample is not ready. Raises RefusedError if the source
    has fewer samples than `start`, what reading
    the source raises, and what the futures raise.
    """
    waiting: deque[_Waiting] = deque()
    number = 0
    try:
        for number, (entry, sample) in enumerate(entries, start=1):
            if number <= start:
                continue
            headers = {OFFSET_HEADER: str(entry.offset)} if (number - 1) % OFFSET_EVERY == 0 else {}
            size_bytes = sum(len(data) for data in sample.values() if isinstance(data, bytes))
            waiting.append(_Waiting(size_bytes, transform(sample, headers)))
            while waiting and (_is_full(waiting, ahead) or waiting[0].future.done()):
                yield from _ready(waiting[0].future)
                waiting.popleft()
        if number < start:
            raise RefusedError(416, f"the shard has {number} samples, so it cannot be read from {start} on")
        while waiting:
            yield from _ready(waiting[0].future)
            waiting.popleft()
        yield END_OF_TAR
    finally:
        for one in waiting:
            one.future.cancel()


def _ready(future: Future[bytes]) -> Iterator[bytes]:
    while True:
        try:
            yield future.result(KEEP_ALIVE_S)
            return
        except TimeoutError:
            if future.done():  # the error is the transformation's own
                raise
            yield KEEP_ALIVE


def _is_full(waiting: Collection[_Waiting], ahead: Ahead) -> bool:
    return len(waiting) >= ahead.samples or sum(one.held_bytes for one in waiting) > ahead.held_bytes


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
