"""Cures for Hivemind 1.1.12 that no setting can replace (docs/hivemind.md tells the mechanisms)."""

from __future__ import annotations

import asyncio
from typing import Any

__all__ = ["mend_hivemind", "own_locks"]


def mend_hivemind() -> None:
    """`_mend_reducer` and `_mend_contexts`. Safe to call twice."""
    _mend_reducer()
    _mend_contexts()


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
