"""One line of progress on stderr, redrawn on a terminal and printed now and then elsewhere."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable

from orchestrator.cli.render.terminal import say, wants_live_view

_REDRAW_S = 0.2
_PRINT_S = 10.0


class ProgressLine:
    """Shows the newest text; `show` may be called from any thread and as often as one likes."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._live = wants_live_view()
        self._lock = threading.Lock()
        self._next_s = clock() if self._live else clock() + _PRINT_S
        self._drawn = False

    def show(self, text: Callable[[], str]) -> None:
        """Show the text if it is time; it is made only then."""
        with self._lock:
            if self._clock() < self._next_s:
                return
            self._next_s = self._clock() + (_REDRAW_S if self._live else _PRINT_S)
            if not self._live:
                say(text())
                return
            sys.stderr.write(f"\r\x1b[K{text()}")
            sys.stderr.flush()
            self._drawn = True

    def clear(self) -> None:
        """Remove the line from the terminal."""
        with self._lock:
            if self._drawn:
                sys.stderr.write("\r\x1b[K")
                sys.stderr.flush()
                self._drawn = False
