"""SIGTERM and SIGHUP as Ctrl-C, for commands that have something to remove when they end."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager

_SIGNALS = (signal.SIGTERM, signal.SIGHUP)


@contextmanager
def ended_like_ctrl_c() -> Iterator[None]:
    """Raise KeyboardInterrupt in the main thread at the first SIGTERM or SIGHUP inside the block.

    Later ones do nothing, so that they do not interrupt the removal of what the first one has ended. A signal that this
    process ignores, as nohup makes it ignore SIGHUP, stays ignored.
    """
    raised = False

    def interrupt(number: int, frame: object) -> None:
        nonlocal raised
        if not raised:
            raised = True
            raise KeyboardInterrupt

    before = {number: signal.getsignal(number) for number in _SIGNALS}
    replaced = [number for number, handler in before.items() if handler is not signal.SIG_IGN]
    for number in replaced:
        signal.signal(number, interrupt)
    try:
        yield
    finally:
        for number in replaced:
            signal.signal(number, before[number] or signal.SIG_DFL)
