"""A round in a thread of its own; what it came to is kept for the training thread."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

Result = TypeVar("Result")


class HiddenRound(threading.Thread, Generic[Result]):
    """Runs `average` once. A daemon: a peer that has to go does not wait for it."""

    def __init__(self, average: Callable[[], Result], clock: Callable[[], float]) -> None:
        """`clock`: seconds, as the training loop's."""
        super().__init__(name="round", daemon=True)
        self._average, self._clock = average, clock
        self._over = threading.Event()
        self._error: BaseException | None = None
        self._result: Result | None = None
        self._ended_s = 0.0
        self._calculating_s: float | None = None

    @property
    def over(self) -> bool:
        """Whether it ended, in whatever way."""
        return self._over.is_set()

    def wait(self, seconds: float) -> bool:
        """Whether it ended within `seconds`."""
        return self._over.wait(seconds)

    def result(self) -> Result | None:
        """What `average` returned, once it is over. Raises what it raised."""
        assert self.over
        if self._error is not None:
            raise self._error
        return self._result

    def calculating_from_now(self) -> None:
        """The peer begins to calculate beside it; the first call counts."""
        if self._calculating_s is None:
            self._calculating_s = self._clock()

    def hidden_s(self, until_s: float) -> float:
        """Seconds of the round in which the peer calculated, when it stopped for it at `until_s`; it is over."""
        if self._calculating_s is None:
            return 0.0
        return max(0.0, min(until_s, self._ended_s) - self._calculating_s)

    def run(self) -> None:
        """In its thread."""
        try:
            self._result = self._average()
        except BaseException as error:  # noqa: BLE001 - the training thread raises it where it takes the result
            self._error = error
        finally:
            self._ended_s = self._clock()
            self._over.set()
