"""Download client: one stream at a time, resumed where it was interrupted, from the same donor or the next."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

import torch

from experiments.peer.state.encoding import ALIGNMENT, key_of

_PATIENCE = 2  # attempts per donor that deliver nothing, or a different blob than the one begun


class DownloadError(Exception):
    """No donor provided the requested blob."""


@dataclass(frozen=True)
class BlobRequest:
    """A request to a donor. `epoch`: of an update, the epoch it leads to; of a state, the lowest useful one."""

    kind: str  # "state" or "update"
    epoch: int
    key: str = ""  # of the partially received blob to resume; "": none
    offset: int = 0  # bytes of it already received


@dataclass(frozen=True)
class Chunk:
    """One message from a donor. The first one holds the header and the body's length."""

    key: str = ""
    header: bytes = b""
    total: int = 0
    offset: int = 0
    crc: int = 0
    data: bytes = b""
    refused: str = ""  # reason of a refusal


OpenStream = Callable[[Any, BlobRequest], Awaitable[AsyncIterator[Chunk]]]


@dataclass
class ReceivedBlob:
    """A downloaded blob and the statistics of its download."""

    key: str = ""
    header: bytes = b""
    body: torch.Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.uint8))
    have: int = 0
    donor: Any = None  # that sent the last byte
    resumed: int = 0  # number of resumptions in the middle
    restarted: int = 0  # number of restarts from the beginning
    accepted: int = 0  # chunks
    received: int = 0  # bytes of state, including discarded ones
    whole: bool = False


async def download(
    open_stream: OpenStream,
    donors: Sequence[Any],
    wanted: BlobRequest,
    silence_s: float,
) -> ReceivedBlob:
    """Download from the first donor; after an interruption from it again or the next. `silence_s`: chunk timeout.

    Raises DownloadError once each donor has refused, or has twice delivered nothing or a different blob than the one
    begun.
    """
    blob = ReceivedBlob()
    reasons: dict[Any, str] = {}
    patience = dict.fromkeys(donors, _PATIENCE)
    while waiting := [donor for donor in donors if patience[donor] > 0]:
        donor, before, restarted = waiting[0], blob.accepted, blob.restarted
        try:
            await _attempt(open_stream, donor, wanted, silence_s, blob)
        except _Refused as error:
            patience[donor], reasons[donor] = 0, str(error)
        except Exception as error:  # noqa: BLE001 - however a stream breaks, the next attempt resumes from there
            reasons[donor] = repr(error)
        if blob.whole:
            return blob
        if blob.accepted == before or blob.restarted > restarted:
            patience[donor] -= 1
    listed = "; ".join(f"{donor}: {reason}" for donor, reason in reasons.items())
    raise DownloadError(f"no donor provided {wanted.kind} {wanted.epoch}: {listed or 'there is no donor'}")


class _Refused(Exception):
    """This donor does not have the blob."""


async def _attempt(
    open_stream: OpenStream, donor: Any, wanted: BlobRequest, silence_s: float, blob: ReceivedBlob
) -> None:
    request = BlobRequest(wanted.kind, wanted.epoch, blob.key, blob.have)
    stream = await asyncio.wait_for(open_stream(donor, request), silence_s)
    async with aclosing(stream):  # type: ignore[type-var] # it is always a generator, closed here
        first = await asyncio.wait_for(
            anext(stream, Chunk(refused="it closed the stream at once")), silence_s
        )
        if first.refused:
            raise _Refused(first.refused)
        if first.key != key_of(first.header):
            raise ConnectionError("the header is damaged")
        if first.key != blob.key or first.offset != blob.have:
            blob.restarted += blob.have > 0
            blob.key, blob.header, blob.have = first.key, first.header, 0
            blob.body = torch.empty(first.total, dtype=torch.uint8)
        began = blob.have
        while blob.have < blob.body.numel():
            chunk = await asyncio.wait_for(anext(stream, None), silence_s)
            if chunk is None:
                raise ConnectionError(f"interrupted at {blob.have} of {blob.body.numel()} bytes")
            blob.received += len(chunk.data)
            at = blob.have
            _add(blob, chunk)
            blob.resumed += 0 < at == began
            blob.donor = donor
        blob.whole = True


def _add(blob: ReceivedBlob, chunk: Chunk) -> None:
    end = blob.have + len(chunk.data)
    if chunk.offset != blob.have or not chunk.data or end > blob.body.numel():
        raise ConnectionError(
            f"received {len(chunk.data)} bytes at offset {chunk.offset}, expected offset {blob.have}"
        )
    if len(chunk.data) % ALIGNMENT or zlib.crc32(chunk.data) != chunk.crc:
        raise ConnectionError(f"the bytes at {chunk.offset} are damaged")
    blob.body[blob.have : end] = torch.frombuffer(bytearray(chunk.data), dtype=torch.uint8)
    blob.have, blob.accepted = end, blob.accepted + 1
