"""The swarm's clock: what Hivemind's nodes take for the time, the same for all although their machines' clocks differ.

Hivemind stores everything until an absolute time by the writer's clock (`get_dht_time`, which is `time.time`), and a node
that is more than 3 s off is refused at its start (docs/hivemind.md). Here a newcomer takes the time over from the peers it
joins: each answer to a ping tells it. From then on it runs by the machine's monotonic clock, which nobody sets.
"""

from __future__ import annotations

import ctypes
import logging
import math
import mmap
import sys
import time
from collections.abc import Callable
from typing import Any

from cloud.clock import MAX_SKEW_S, SET_THE_CLOCK, ticks_s

_log = logging.getLogger(__name__)

CLOCK_VARIABLE = (
    "ORCH_CLOCK"  # "<unix s> <s of the machine's monotonic clock at that time>", as the controller told
)


def told_time(
    text: str, wall_s: Callable[[], float] = time.time, ticks_s: Callable[[], float] = ticks_s
) -> Callable[[], float]:
    """Unix time as a controller told it in `CLOCK_VARIABLE`; this machine's own where it told none."""
    try:
        unix_s, at_ticks = (float(part) for part in text.split())
    except ValueError:
        return wall_s
    if not math.isfinite(unix_s) or not 0.0 <= at_ticks <= ticks_s():
        return wall_s
    return lambda: unix_s + ticks_s() - at_ticks


class SwarmClock:
    """Unix seconds of the swarm; one clock for this process and those forked from it."""

    def __init__(
        self, wall_s: Callable[[], float] = time.time, ticks_s: Callable[[], float] = ticks_s
    ) -> None:
        """`wall_s`: the time until a peer tells the swarm's; looked at once."""
        self._ticks_s = ticks_s
        self._memory = mmap.mmap(-1, 16)
        self._offset_s = ctypes.c_double.from_buffer(self._memory, 0)
        self._error_s = ctypes.c_double.from_buffer(self._memory, 8)
        self._own_s = wall_s() - ticks_s()
        self._offset_s.value, self._error_s.value = self._own_s, math.inf

    def now_s(self) -> float:
        """The swarm's time; this machine's as long as no peer has told it."""
        return self._ticks_s() + self._offset_s.value

    def ticks_s(self) -> float:
        """This machine's monotonic clock."""
        return self._ticks_s()

    @property
    def adopted(self) -> bool:
        """Whether a peer has told the time."""
        return math.isfinite(self._error_s.value)

    @property
    def skew_s(self) -> float:
        """What this machine's clock was ahead of the swarm's when the program started."""
        return self._own_s - self._offset_s.value

    def heard(self, theirs_s: float, asked_ticks: float, answered_ticks: float) -> float | None:
        """A peer told `theirs_s` at some moment between these two of `ticks_s`.

        The first answer is taken, later ones only make it more exact within what it left open: nobody moves the clock of
        a peer that has joined. Returns None, or the difference in seconds when it is above `MAX_SKEW_S`, which is not taken.
        """
        error_s = max(0.0, answered_ticks - asked_ticks) / 2
        offset_s = theirs_s - (asked_ticks + answered_ticks) / 2
        if not abs(offset_s - self._own_s) <= MAX_SKEW_S:  # NaN too
            return self._own_s - offset_s
        if not self.adopted:
            self._offset_s.value, self._error_s.value = offset_s, error_s
            return None
        low_s = max(self._offset_s.value - self._error_s.value, offset_s - error_s)
        high_s = min(self._offset_s.value + self._error_s.value, offset_s + error_s)
        if low_s <= high_s and (high_s - low_s) / 2 < self._error_s.value:
            self._offset_s.value, self._error_s.value = (low_s + high_s) / 2, (high_s - low_s) / 2
        return None


class _TimedStub:
    """A stub of Hivemind's for calls to one peer; the answers to its pings tell the time."""

    def __init__(self, stub: Any, clock: SwarmClock) -> None:
        self._stub, self._clock = stub, clock
        self.skew_s: float | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stub, name)

    async def rpc_ping(self, *args: Any, **kwargs: Any) -> Any:
        asked = self._clock.ticks_s()
        response = await self._stub.rpc_ping(*args, **kwargs)
        if response.dht_time and (
            skew_s := self._clock.heard(response.dht_time, asked, self._clock.ticks_s())
        ):
            _log.warning("a peer's clock is not followed: this machine's is %+.0f s from it", skew_s)
        return response


def follow(clock: SwarmClock) -> None:
    """From now on Hivemind, in this process and those forked from it, takes the time from `clock`."""
    from hivemind.dht import protocol
    from hivemind.utils import timed_storage

    original = timed_storage.get_dht_time
    for module in list(sys.modules.values()):
        if getattr(module, "__dict__", {}).get("get_dht_time") is original:
            module.get_dht_time = clock.now_s  # pyright: ignore[reportAttributeAccessIssue] - Hivemind imports it by name
    node: Any = protocol.DHTProtocol
    call_ping = getattr(node.call_ping, "unpatched", node.call_ping)
    get_stub = getattr(node.get_stub, "unpatched", node.get_stub)

    def timed_stub(self: Any, peer: Any) -> _TimedStub:
        return _TimedStub(get_stub(self, peer), clock)

    # While a node begins, Hivemind measures by this clock how long it waits for the peers it joins: a clock that was far behind
    # waits for the first answer only, one that was ahead until each call's own time-out. (To begin again leaves dead entries
    # in the others' routing tables.)
    async def ping(self: Any, peer: Any, validate: bool = False, strict: bool = True) -> Any:
        if validate and not clock.adopted:  # the one that validates compares the clocks
            found = await call_ping(self, peer, validate=False)
            if found is not None and not clock.adopted:
                raise protocol.ValidationError(
                    f"this machine's clock is more than {MAX_SKEW_S:.0f} s from the swarm's: {SET_THE_CLOCK}"
                )
        return await call_ping(self, peer, validate=validate, strict=strict)

    timed_stub.unpatched, ping.unpatched = get_stub, call_ping  # type: ignore[attr-defined]
    node.get_stub, node.call_ping = timed_stub, ping
