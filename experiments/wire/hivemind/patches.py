"""Cures for Hivemind 1.1.12 that no setting can replace (docs/hivemind.md tells the mechanisms)."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

from experiments.wire.hivemind.calls import keep_tasks, mend_calls
from experiments.wire.hivemind.values import guard_values

_EMPTYING_S = 5.0  # a reader sees within milliseconds that its handler has ended


def mend_hivemind() -> None:
    """All that is below, and late answers (`experiments.wire.hivemind.calls`). Safe to call twice."""
    _mend_reducer()
    _mend_contexts()
    _mend_loops()
    _mend_streams()
    mend_calls()
    guard_values()


def _mend_reducer() -> None:
    """Shield the part reducer's shared future from the death of one sender.

    `TensorPartReducer.accumulate_part` awaits one future per part from the handler of every
    sender. When a sender dies, cancelling its handler cancels that shared future: the reducer
    breaks for all, the local part never comes, and this peer hangs until `allreduce_timeout`.
    Waiting in a task of its own, shielded, cures it.
    """
    from hivemind.averaging.partition import TensorPartReducer

    original = TensorPartReducer.accumulate_part
    if hasattr(original, "unmended"):
        return

    async def accumulate_part(self: TensorPartReducer, *args: Any, **kwargs: Any) -> Any:
        task = asyncio.ensure_future(original(self, *args, **kwargs))
        task.add_done_callback(_look_at)
        return await asyncio.shield(task)

    accumulate_part.unmended = original  # type: ignore[attr-defined]
    TensorPartReducer.accumulate_part = accumulate_part  # type: ignore[method-assign]


def _mend_contexts() -> None:
    """Leave a context again that was entered for nobody.

    `enter_asynchronously` takes a lock in a thread; a task that is cancelled meanwhile goes, and the thread gets the lock
    that nobody will release. So an all-reduce that was given up within milliseconds of its beginning kept the gradients
    locked, and the peer waited for them for ever in its next round.
    """
    from hivemind.utils.asyncio import _AsyncContextWrapper

    original = _AsyncContextWrapper.__aenter__
    if hasattr(original, "unmended"):
        return

    async def enter(self: Any) -> Any:
        loop = asyncio.get_running_loop()
        entering = loop.run_in_executor(self.get_process_wide_executor(), self._context.__enter__)
        try:
            return await asyncio.shield(entering)
        except asyncio.CancelledError:
            entering.add_done_callback(lambda entered: _leave(self._context, entered))
            raise

    enter.unmended = original  # type: ignore[attr-defined]
    _AsyncContextWrapper.__aenter__ = enter  # type: ignore[method-assign]


def _mend_loops() -> None:
    """Keep each task of the DHT's and the averagers' processes until it is done."""
    import hivemind.averaging.averager as averager
    import hivemind.dht.dht as dht

    original = dht.switch_to_uvloop
    if hasattr(original, "unmended"):
        return

    def switch_to_uvloop() -> asyncio.AbstractEventLoop:
        loop = original()
        keep_tasks(loop)
        return loop

    switch_to_uvloop.unmended = original  # type: ignore[attr-defined]
    dht.switch_to_uvloop = averager.switch_to_uvloop = switch_to_uvloop


def _mend_streams() -> None:
    """Let a stream end when its handler has ended, though its sender went on.

    What a stream's reader takes in waits in a short queue for the handler. When the handler ends while the queue is
    full, the reader waits for ever: the stream is not closed, and whoever sends it is not told that this peer has failed.
    """
    from hivemind.p2p import P2P

    streams: Any = P2P
    original = streams._add_protobuf_stream_handler
    if hasattr(original, "unmended"):
        return

    async def add(self: Any, name: str, handler: Any, *args: Any, **kwargs: Any) -> None:
        async def handle(requests: Any, context: Any) -> AsyncIterator[Any]:
            try:
                async with contextlib.aclosing(handler(requests, context)) as responses:
                    async for response in responses:
                        yield response
            finally:
                task = asyncio.ensure_future(_empty(requests))
                task.add_done_callback(_look_at)

        await original(self, name, handle, *args, **kwargs)

    add.unmended = original  # type: ignore[attr-defined]
    streams._add_protobuf_stream_handler = add


async def _empty(requests: AsyncIterator[Any]) -> None:
    """Take what is left, so that the reader goes on to see that the handler has ended."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_EMPTYING_S):
            async for _ in requests:
                pass


def _leave(context: Any, entered: asyncio.Future[Any]) -> None:
    if not entered.cancelled() and entered.exception() is None:
        context.__exit__(None, None, None)


def own_locks() -> None:
    """Give this process, and those it will fork, Hivemind's module-wide locks for themselves. For a VM's first process.

    The emulated cloud forks its VMs from one process that has Hivemind loaded, and with it those locks: a VM killed
    while it holds one would stop all the others for ever, which no real VM can do.
    """
    import multiprocessing

    from hivemind.utils import asyncio as hivemind_asyncio
    from hivemind.utils.mpfuture import MPFuture

    MPFuture.reset_backend()
    hivemind_asyncio._AsyncContextWrapper.EXECUTOR_LOCK = multiprocessing.Lock()


def _look_at(task: asyncio.Task[Any]) -> None:
    """Retrieve a task's error: nobody awaits it any more once its sender has gone."""
    if not task.cancelled():
        task.exception()
