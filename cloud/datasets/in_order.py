"""Apply a function in several threads and yield the results in the order of the items."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


def in_order(
    function: Callable[[_Item], _Result], items: Iterable[_Item], *, threads: int = 0, ahead: int = 64
) -> Generator[_Result]:
    """Yield function(item) for each item in order, at most `ahead` of them computed in advance.

    `threads` 0: one for each processor. Raises what the function raises, at that item.
    """
    pool = ThreadPoolExecutor(threads or os.cpu_count() or 1, thread_name_prefix="make-samples")
    waiting: deque[Future[_Result]] = deque()
    try:
        for item in items:
            waiting.append(pool.submit(function, item))
            if len(waiting) >= ahead:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)
