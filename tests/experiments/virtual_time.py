"""An event loop whose clock goes on only while everybody waits: time-outs end at once, whatever else the host does.

Work for an executor is done on the spot, since a thread's progress is not seen in this clock.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

_T = TypeVar("_T")


class _Selector(selectors.DefaultSelector):  # type: ignore[misc,valid-type]
    """Nothing but the clock wakes the loop."""

    now_s = 0.0

    def select(self, timeout: float | None = None) -> list[Any]:
        assert timeout is not None, "all wait for something that never comes"
        self.now_s += max(timeout, 0.0)
        return super().select(0)


class _Loop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._virtual = _Selector()
        super().__init__(self._virtual)

    def time(self) -> float:
        return self._virtual.now_s

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(func(*args))
        except Exception as error:  # noqa: BLE001 - as executors do
            future.set_exception(error)
        return asyncio.wrap_future(future, loop=self)


def run(coroutine: Coroutine[Any, Any, _T]) -> _T:
    """Run `coroutine` to its end; its `loop.time()` starts at 0 s."""
    with asyncio.Runner(loop_factory=_Loop) as runner:
        return runner.run(coroutine)
