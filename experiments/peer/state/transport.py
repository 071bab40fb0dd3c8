"""Queries to several peers at once, and `Chunk`s encoded in Hivemind's messages, without own protobuf definitions."""

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
    """Return the responses that arrive within `soon_s`; if there are none, those within another `late_s`.

    So dead peers are not waited for if any other peer responds.
    """
    tasks = [asyncio.ensure_future(call) for call in calls]
    waiting, found = set(tasks), list[Answer]()
    for wait_s in (soon_s, late_s):
        if waiting and not found:
            _, waiting = await asyncio.wait(waiting, timeout=wait_s)
            found = [answer for task in tasks if task.done() and (answer := task.result()) is not None]
    for task in waiting:
        task.cancel()
    return found


def message_of(chunk: Chunk) -> Any:
    """Encode a chunk as a DownloadData message."""
    fields = (
        [chunk.refused] if chunk.refused else [chunk.key, chunk.header, chunk.total, chunk.offset, chunk.crc]
    )
    message = DownloadData(metadata=MSGPackSerializer.dumps(fields))
    message.tensor_part.buffer = chunk.data
    return message


async def chunks_of(stream: Any) -> AsyncIterator[Chunk]:
    """Decode the messages of a stream. Closing the generator closes the call."""
    async with contextlib.aclosing(stream):
        async for message in stream:
            fields: Any = MSGPackSerializer.loads(message.metadata)
            whole = len(fields) == 5
            yield Chunk(*fields, data=message.tensor_part.buffer) if whole else Chunk(refused=fields[0])
