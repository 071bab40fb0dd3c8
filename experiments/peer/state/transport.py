"""Asking several peers at once, and `Chunk`s in Hivemind's messages: no protobuf of our own."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Coroutine, Iterable
from typing import Any, TypeVar

from hivemind.proto.averaging_pb2 import DownloadData  # type: ignore[attr-defined]
from hivemind.utils import MSGPackSerializer

from experiments.peer.state.client import Chunk

Answer = TypeVar("Answer")


async def answers(
    calls: Iterable[Coroutine[Any, Any, Answer | None]], soon_s: float, late_s: float
) -> list[Answer]:
    """What came soon; where nothing did, what came late. Who is dead is not waited for where anybody answers."""
    asked = [asyncio.ensure_future(call) for call in calls]
    waiting, found = set(asked), list[Answer]()
    for wait_s in (soon_s, late_s):
        if waiting and not found:
            _, waiting = await asyncio.wait(waiting, timeout=wait_s)
            found = [answer for task in asked if task.done() and (answer := task.result()) is not None]
    for task in waiting:
        task.cancel()
    return found


def message_of(chunk: Chunk) -> Any:
    """A DownloadData."""
    said = (
        [chunk.refused] if chunk.refused else [chunk.key, chunk.header, chunk.total, chunk.offset, chunk.crc]
    )
    message = DownloadData(metadata=MSGPackSerializer.dumps(said))
    message.tensor_part.buffer = chunk.data
    return message


async def chunks_of(stream: Any) -> AsyncIterator[Chunk]:
    """And back; closing it closes the call."""
    async with contextlib.aclosing(stream):
        async for message in stream:
            said: Any = MSGPackSerializer.loads(message.metadata)
            yield Chunk(*said, data=message.tensor_part.buffer) if len(said) == 5 else Chunk(refused=said[0])
