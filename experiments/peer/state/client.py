"""The client of a download: one stream at a time, gone on with where it was cut, from this donor or the next."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

import torch

from experiments.peer.state.encoding import ALIGNMENT, key_of

_PATIENCE = 2  # attempts of one donor that bring nothing, or another blob than the one begun


class TakingError(Exception):
    """No donor gave what was asked for."""


@dataclass(frozen=True)
class Wanted:
    """What is asked of a donor. `epoch`: of an update, the epoch it leads to; of a state, the lowest that helps."""

    kind: str  # "state" or "update"
    epoch: int
    key: str = ""  # of the blob whose beginning is here already; "": none is
    offset: int = 0  # bytes of it that are here


@dataclass(frozen=True)
class Chunk:
    """One message of a donor. The first has the header and the body's length."""

    key: str = ""
    header: bytes = b""
    total: int = 0
    offset: int = 0
    crc: int = 0
    data: bytes = b""
    refused: str = ""  # why nothing comes


OpenStream = Callable[[Any, Wanted], Awaitable[AsyncIterator[Chunk]]]


@dataclass
class Taken:
    """A whole blob. `received` counts every byte of state that arrived, thrown away ones included."""

    key: str = ""
    header: bytes = b""
    body: torch.Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.uint8))
    have: int = 0
    donor: Any = None  # who gave the last byte
    resumed: int = 0  # how often it went on in the middle
    restarted: int = 0  # how often it had to begin again
    accepted: int = 0  # chunks
    received: int = 0
    whole: bool = False


async def take(
    open_stream: OpenStream,
    donors: Sequence[Any],
    wanted: Wanted,
    silence_s: float,
    taken: Taken | None = None,
) -> Taken:
    """Download from the first donor, after a cut from it again or the next; `silence_s`: a chunk's time-out.

    `taken` is filled in and returned, and holds what came so far when this raises TakingError: each donor
    refused, or twice brought nothing or another blob than the one begun.
    """
    taken = taken if taken is not None else Taken()
    reasons: dict[Any, str] = {}
    patience = dict.fromkeys(donors, _PATIENCE)
    while waiting := [donor for donor in donors if patience[donor] > 0]:
        donor, before, restarted = waiting[0], taken.accepted, taken.restarted
        try:
            await _once(open_stream, donor, wanted, silence_s, taken)
        except _Refused as error:
            patience[donor], reasons[donor] = 0, str(error)
        except Exception as error:  # noqa: BLE001 - however a stream breaks, the next attempt goes on from there
            reasons[donor] = repr(error)
        if taken.whole:
            return taken
        if taken.accepted == before or taken.restarted > restarted:
            patience[donor] -= 1
    told = "; ".join(f"{donor}: {reason}" for donor, reason in reasons.items())
    raise TakingError(f"no donor gave {wanted.kind} {wanted.epoch}: {told or 'there is none'}")


class _Refused(Exception):
    """This donor has not got it."""


async def _once(open_stream: OpenStream, donor: Any, wanted: Wanted, silence_s: float, taken: Taken) -> None:
    asked = Wanted(wanted.kind, wanted.epoch, taken.key, taken.have)
    stream = await asyncio.wait_for(open_stream(donor, asked), silence_s)
    async with aclosing(stream):  # type: ignore[type-var] # whatever is handed in is a generator: it is closed here
        first = await asyncio.wait_for(anext(stream, Chunk(refused="it closed at once")), silence_s)
        if first.refused:
            raise _Refused(first.refused)
        if first.key != key_of(first.header):
            raise ConnectionError("the header is damaged")
        if first.key != taken.key or first.offset != taken.have:
            taken.restarted += taken.have > 0
            taken.key, taken.header, taken.have = first.key, first.header, 0
            taken.body = torch.empty(first.total, dtype=torch.uint8)
        began = taken.have
        while taken.have < taken.body.numel():
            chunk = await asyncio.wait_for(anext(stream, None), silence_s)
            if chunk is None:
                raise ConnectionError(f"cut at {taken.have} of {taken.body.numel()} bytes")
            taken.received += len(chunk.data)
            at = taken.have
            _add(taken, chunk)
            taken.resumed += 0 < at == began
            taken.donor = donor
        taken.whole = True


def _add(taken: Taken, chunk: Chunk) -> None:
    end = taken.have + len(chunk.data)
    if chunk.offset != taken.have or not chunk.data or end > taken.body.numel():
        raise ConnectionError(f"{len(chunk.data)} bytes for {chunk.offset} came where {taken.have} was due")
    if len(chunk.data) % ALIGNMENT or zlib.crc32(chunk.data) != chunk.crc:
        raise ConnectionError(f"the bytes at {chunk.offset} are damaged")
    taken.body[taken.have : end] = torch.frombuffer(bytearray(chunk.data), dtype=torch.uint8)
    taken.have, taken.accepted = end, taken.accepted + 1
