"""A round in a thread of its own, whose result is kept for the training thread."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

Result = TypeVar("Result")


class BackgroundRound(threading.Thread, Generic[Result]):
    """Runs `average` once. A daemon thread, so that a peer that has to leave does not wait for it."""

    def __init__(self, average: Callable[[], Result], clock: Callable[[], float]) -> None:
        """`clock`: the training loop's clock, in seconds."""
        super().__init__(name="round", daemon=True)
        self._average, self._clock = average, clock
        self._over = threading.Event()
        self._error: BaseException | None = None
        self._result: Result | None = None
        self._ended_s = 0.0
        self._calculating_s: float | None = None

    @property
    def over(self) -> bool:
        """Whether the round has ended, with or without an error."""
        return self._over.is_set()

    def wait(self, seconds: float) -> bool:
        """Wait at most `seconds`. Returns whether the round has ended."""
        return self._over.wait(seconds)

    def result(self) -> Result | None:
        """Return what `average` returned, or raise what it raised. The round must be over."""
        assert self.over
        if self._error is not None:
            raise self._error
        return self._result

    def calculation_begins(self) -> None:
        """Call when the peer begins to calculate during the round. Only the first call counts."""
        if self._calculating_s is None:
            self._calculating_s = self._clock()

    def hidden_s(self, until_s: float) -> float:
        """Seconds of the finished round during which the peer calculated; it stopped calculating at `until_s`."""
        if self._calculating_s is None:
            return 0.0
        return max(0.0, min(until_s, self._ended_s) - self._calculating_s)

    def run(self) -> None:
        """Run the round in its thread."""
        try:
            self._result = self._average()
        except BaseException as error:  # noqa: BLE001 - raised in the training thread by `result`
            self._error = error
        finally:
            self._ended_s = self._clock()
            self._over.set()
