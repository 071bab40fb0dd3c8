"""A long path to a store that is near: each response is delayed by a round trip and limited to the rate of one stream."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

_LEAST_WINDOW_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class Link:
    """What one TCP stream of a path carries. Raises ValueError unless the rate is above 0 and the time at least 0."""

    rate_mbps: float
    rtt_ms: float

    def __post_init__(self) -> None:
        if not (0 < self.rate_mbps < math.inf and 0 <= self.rtt_ms < math.inf):
            raise ValueError(
                f"a link of {self.rate_mbps:g} Mb/s and {self.rtt_ms:g} ms: the rate must be above 0, the round-trip "
                "time 0 or more"
            )

    @classmethod
    def parse(cls, text: str) -> Link:
        """Parse "210,103": Mb/s of a stream, round-trip time in ms. Raises ValueError with one sentence."""
        rate, comma, rtt = text.partition(",")
        try:
            numbers = float(rate), float(rtt)
        except ValueError:
            comma = ""
        if not comma:
            raise ValueError(
                f"'{text}' is not a link; write Mb/s of a stream and the round-trip time in ms, such as 210,103"
            )
        return cls(*numbers)

    @property
    def bytes_per_s(self) -> float:
        """The rate in bytes per second."""
        return self.rate_mbps * 1e6 / 8

    @property
    def rtt_s(self) -> float:
        """The round-trip time in seconds."""
        return self.rtt_ms / 1e3

    @property
    def window_bytes(self) -> float:
        """What a sender may have under way before it is read: what the stream carries in a round trip, at least 64 KiB."""
        return max(self.bytes_per_s * self.rtt_s, _LEAST_WINDOW_BYTES)


@dataclass(frozen=True, slots=True)
class TokenBucket:
    """Bytes that a stream may deliver at `at_s`; below 0, it has delivered bytes that arrive later."""

    tokens: float
    at_s: float

    def take(self, count_bytes: int, now_s: float, link: Link) -> tuple[TokenBucket, float]:
        """Deliver bytes. Returns the bucket afterwards and the seconds until the last of them has arrived."""
        earned = max(0.0, now_s - self.at_s) * link.bytes_per_s
        tokens = min(self.tokens + earned, link.window_bytes) - count_bytes
        return TokenBucket(tokens, max(now_s, self.at_s)), max(0.0, -tokens / link.bytes_per_s)


class LinkedClient:
    """An S3 client whose objects are read as over `link`: each request waits for a round trip and is a stream of its own.

    Only `get_object` is limited. Use it as the client of a ShardOpener, whose cache stays as fast as it is.
    """

    def __init__(
        self,
        client: Any,
        link: Link,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._client = client
        self._link = link
        self._clock = clock
        self._sleep = sleep

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    def get_object(self, **request: Any) -> dict[str, Any]:
        """Get an object whose body arrives at the link's rate."""
        self._sleep(self._link.rtt_s)
        answer = self._client.get_object(**request)
        return {**answer, "Body": _LinkedBody(answer["Body"], self._link, self._clock, self._sleep)}


class _LinkedBody:
    def __init__(
        self, body: Any, link: Link, clock: Callable[[], float], sleep: Callable[[float], None]
    ) -> None:
        self._body = body
        self._link = link
        self._clock = clock
        self._sleep = sleep
        self._bucket = TokenBucket(0.0, clock())

    def read(self, size: int) -> bytes:
        data = self._body.read(size)
        self._bucket, wait_s = self._bucket.take(len(data), self._clock(), self._link)
        if wait_s > 0:
            self._sleep(wait_s)
        return data

    def close(self) -> None:
        self._body.close()


def linked(client: Callable[[], Any], link: Link) -> Callable[[], Any]:
    """Return a source of clients that read as over `link`, for a ShardOpener."""
    return lambda: LinkedClient(client(), link)
