"""Cures for Hivemind 1.1.12 that no setting can replace (docs/hivemind.md tells the mechanisms)."""

from __future__ import annotations

import asyncio
from typing import Any

__all__ = ["mend_hivemind", "own_locks"]


def mend_hivemind() -> None:
    """Shield the part reducer's shared future from the death of one sender.

    `TensorPartReducer.accumulate_part` awaits one future per part from the handler of every
    sender. When a sender dies, cancelling its handler cancels that shared future: the reducer
    breaks for all, the local part never comes, and this peer hangs until `allreduce_timeout`.
    Waiting in a task of its own, shielded, cures it. Safe to call twice.
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
