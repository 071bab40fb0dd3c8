"""The controller's loop: one tick per second until the run has ended, with retries when a tick raises."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Protocol

from cloud.provider import ProviderError
from metrics.store.database import FencedError, RunStore
from orchestrator.controller.calls import Call, Calls
from orchestrator.controller.tick import Shell
from orchestrator.disk_reserve import is_disk_full
from orchestrator.launch.keys import forget_keys

_PERIOD_S = 1.0
_CLOSE_TRIES = 5
_TICK_TRIES = 5  # consecutive failing ticks before the run is ended

_log = logging.getLogger("orchestrator.controller")


class Ticking(Protocol):
    """The interface of `Shell` that the loop uses."""

    def tick(self) -> bool: ...


class Shells:
    """Provides the shell for each tick.

    After a failed tick it creates a new one from the journal, as after a restart. A run whose disk is full is
    ended, using the disk reserve.
    """

    def __init__(
        self,
        make: Callable[[], Shell],
        folder: Path,
        *,
        asked_to_stop: Callable[[Path], str],
        free_reserve: Callable[[Path], bool],
    ) -> None:
        """Create the first shell. Raises StoreError, JournalError."""
        self._make, self._folder = make, folder
        self._asked_to_stop, self._free_reserve = asked_to_stop, free_reserve
        self._stop_wanted: tuple[str, str] | None = None
        self.shell = make()

    def stop(self, status: str, cause: str) -> None:
        """Stop the run gracefully; only the first reason is kept. Thread-safe."""
        self._stop_wanted = self._stop_wanted or (status, cause)
        self.shell.stop(status, cause)

    def next(self, broken: Exception | None) -> Shell:
        """The shell for the next tick. `broken`: the exception of the last tick. Raises StoreError."""
        if self._stop_wanted is None and (cause := self._asked_to_stop(self._folder)):
            self.stop("stopped", cause)
        if is_disk_full(broken) and self._free_reserve(self._folder):
            self.stop("failed", f"no space left on the disk of {self._folder}")
        if broken is not None:
            self.shell = self._make()
            if self._stop_wanted is not None:
                self.shell.stop(*self._stop_wanted)
        return self.shell


def ticks(shell: Callable[[Exception | None], Ticking]) -> Generator[float, None, None]:
    """Tick until the run has ended and its cloud is closed; yields the seconds to wait after each tick but the last.

    A failed tick is logged and repeated by a new shell from the journal (`shell(error)`), as after a restart
    of the controller. Raises the exception of the last of `_TICK_TRIES` consecutive failed ticks,
    ProviderError after `_CLOSE_TRIES` attempts to close the cloud of a finished run, and FencedError
    immediately.
    """
    failed = 0
    broken: Exception | None = None
    while True:
        try:
            if shell(broken).tick():
                return
            failed, broken = 0, None
        except FencedError:
            raise
        except ProviderError as error:  # only closing the cloud raises it: the run is over
            failed += 1
            _log.warning("closing failed (%d of %d): %s", failed, _CLOSE_TRIES, error)
            if failed >= _CLOSE_TRIES:
                raise
        except Exception as error:
            failed, broken = failed + 1, error
            _log.exception("a tick failed (%d of %d)", failed, _TICK_TRIES)
            if failed >= _TICK_TRIES:
                raise
        yield _PERIOD_S if broken is None else _PERIOD_S * 2 ** max(0, failed - 1)


def run_to_the_end(
    shell: Callable[[Exception | None], Ticking],
    ticked: Callable[[float], None],
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Run `ticks` in real time. `ticked` is called with the duration of each tick.

    Raises what `ticks` raises.
    """
    next_s = began_s = clock()
    for pause_s in ticks(shell):
        ticked(clock() - began_s)
        next_s = max(next_s + pause_s, clock())
        sleep(max(0.0, next_s - clock()))
        began_s = clock()


def abort(
    store: RunStore, calls: Calls, folder: Path, now_s: float, failure: str, close_deadline_s: float
) -> str:
    """Terminate the VMs of a run whose controller gives up, and record that if the database is still writable.

    Returns the failure, extended by what may be left.
    """
    try:
        calls.wait(Call("close", "close", (), close_deadline_s))
    except ProviderError as error:
        failure = f"{failure}; and VMs may be left: {error}"
    try:
        forget_keys(folder)
        with store.transaction():
            store.set_meta("error", failure)
            store.set_meta("ended_s", now_s)
            store.set_meta("status", "failed")
    except Exception:  # noqa: BLE001 - `failure` already has the original error
        _log.exception("the end of the run could not be recorded")
    return failure
