"""Cures for Hivemind 1.1.12's calls that are never answered (docs/hivemind.md tells the mechanisms).

Every process that runs a DHT node needs them: peers' and the monitor.
"""

# pyright: reportMissingTypeStubs=false, reportPrivateUsage=false
from __future__ import annotations

import asyncio
from typing import Any


class _OpenCalls(dict[Any, "asyncio.Future[Any]"]):
    """Calls by their id; one that was given up is none of them any more, though its caller has not taken it out yet."""

    def __contains__(self, call_id: object) -> bool:
        call = self.get(call_id)
        return call is not None and not call.done()


def mend_calls() -> None:
    """From now on a late answer does not make a process deaf. Safe to call twice.

    One task reads the answers to all of a process's calls from p2pd. When a call is given up in the moment its
    answer is there, the answer is put into a cancelled future; that raises, the task is over, and no call of this process
    is ever answered again.
    """
    from hivemind.p2p.p2p_daemon_bindings.control import ControlClient

    original = ControlClient.__init__
    if hasattr(original, "unmended"):
        return

    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        self._pending_calls = _OpenCalls()

    init.unmended = original  # type: ignore[attr-defined]
    ControlClient.__init__ = init  # type: ignore[method-assign]


def keep_tasks(loop: asyncio.AbstractEventLoop) -> None:
    """From now on the loop's tasks live until they are done.

    A loop refers weakly to its tasks, and a connection weakly to the reader whom a task waits for
    (https://github.com/python/cpython/issues/91887): where nobody else holds it, the garbage collector ends the task amid its
    work.
    """
    kept: set[asyncio.Future[Any]] = set()

    def keep(loop: asyncio.AbstractEventLoop, coroutine: Any, **kwargs: Any) -> asyncio.Task[Any]:
        task: asyncio.Task[Any] = asyncio.Task(coroutine, loop=loop, **kwargs)
        kept.add(task)
        task.add_done_callback(kept.discard)
        return task

    loop.set_task_factory(keep)
