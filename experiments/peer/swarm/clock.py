"""The swarm's clock: one time for all Hivemind nodes, even if their machines' clocks differ.

Hivemind stores every record until an absolute time by the writer's clock (`get_dht_time`, which is `time.time`), and
refuses to start a node that is more than 3 s off (docs/hivemind.md). Here a joining peer adopts the time of the peers
it joins, from their ping responses. From then on the clock follows the machine's monotonic clock, which is never set.
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

from cloud.clock import MAX_SKEW_S, SET_CLOCK_HINT, ticks_s

_log = logging.getLogger(__name__)

# set by the controller: "<unix s> <s of this machine's monotonic clock at that time>"
CLOCK_VARIABLE = "ORCH_CLOCK"


def controller_time(
    text: str, wall_s: Callable[[], float] = time.time, ticks_s: Callable[[], float] = ticks_s
) -> Callable[[], float]:
    """Clock that continues the unix time passed in `CLOCK_VARIABLE`; this machine's clock if there is none."""
    try:
        unix_s, at_ticks = (float(part) for part in text.split())
    except ValueError:
        return wall_s
    if not math.isfinite(unix_s) or not 0.0 <= at_ticks <= ticks_s():
        return wall_s
    return lambda: unix_s + ticks_s() - at_ticks


class SwarmClock:
    """The swarm's unix time in seconds, shared by this process and those forked from it."""

    def __init__(
        self, wall_s: Callable[[], float] = time.time, ticks_s: Callable[[], float] = ticks_s
    ) -> None:
        """`wall_s`: the time used until the swarm's is adopted; read once."""
        self._ticks_s = ticks_s
        self._memory = mmap.mmap(-1, 16)
        self._offset_s = ctypes.c_double.from_buffer(self._memory, 0)
        self._error_s = ctypes.c_double.from_buffer(self._memory, 8)
        self._own_s = wall_s() - ticks_s()
        self._offset_s.value, self._error_s.value = self._own_s, math.inf

    def now_s(self) -> float:
        """The swarm's time; this machine's time until a peer's has been adopted."""
        return self._ticks_s() + self._offset_s.value

    def ticks_s(self) -> float:
        """This machine's monotonic clock."""
        return self._ticks_s()

    @property
    def adopted(self) -> bool:
        """Whether the time of a peer has been adopted."""
        return math.isfinite(self._error_s.value)

    @property
    def skew_s(self) -> float:
        """Seconds by which this machine's clock was ahead of the swarm's when the program started."""
        return self._own_s - self._offset_s.value

    def observe(self, theirs_s: float, asked_ticks: float, answered_ticks: float) -> float | None:
        """Take a peer's time `theirs_s`, read at some moment between the two readings of `ticks_s`.

        The first response is adopted. Later ones only refine it within its error bounds, so no peer can move the clock
        of one that has joined. Returns None, or the difference in seconds if it exceeds `MAX_SKEW_S` and was rejected.
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
    """Hivemind's stub for calls to one peer, which also passes the time in ping responses to the clock."""

    def __init__(self, stub: Any, clock: SwarmClock) -> None:
        self._stub, self._clock = stub, clock
        self.skew_s: float | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stub, name)

    async def rpc_ping(self, *args: Any, **kwargs: Any) -> Any:
        asked = self._clock.ticks_s()
        response = await self._stub.rpc_ping(*args, **kwargs)
        if response.dht_time and (
            skew_s := self._clock.observe(response.dht_time, asked, self._clock.ticks_s())
        ):
            _log.warning("ignored a peer's clock: this machine's clock is %+.0f s from it", skew_s)
        return response


def install_clock(clock: SwarmClock) -> None:
    """Make Hivemind, in this process and those forked from it, use `clock`."""
    from hivemind.dht import protocol
    from hivemind.utils import timed_storage

    original = timed_storage.get_dht_time
    for module in list(sys.modules.values()):
        if getattr(module, "__dict__", {}).get("get_dht_time") is original:
            module.get_dht_time = clock.now_s  # pyright: ignore[reportAttributeAccessIssue] - imported by name
    node: Any = protocol.DHTProtocol
    call_ping = getattr(node.call_ping, "unpatched", node.call_ping)
    get_stub = getattr(node.get_stub, "unpatched", node.get_stub)

    def timed_stub(self: Any, peer: Any) -> _TimedStub:
        return _TimedStub(get_stub(self, peer), clock)

    # While a node starts, Hivemind uses this clock to measure how long it waits for the peers it joins: if the clock was far
    # behind, it waits for the first response only; if it was ahead, until each call's own timeout. (Restarting the node
    # would leave dead entries in the others' routing tables.)
    async def ping(self: Any, peer: Any, validate: bool = False, strict: bool = True) -> Any:
        if validate and not clock.adopted:  # validation compares the clocks
            found = await call_ping(self, peer, validate=False)
            if found is not None and not clock.adopted:
                raise protocol.ValidationError(
                    f"this machine's clock is more than {MAX_SKEW_S:.0f} s from the swarm's: {SET_CLOCK_HINT}"
                )
        return await call_ping(self, peer, validate=validate, strict=strict)

    timed_stub.unpatched, ping.unpatched = get_stub, call_ping  # type: ignore[attr-defined]
    node.get_stub, node.call_ping = timed_stub, ping
