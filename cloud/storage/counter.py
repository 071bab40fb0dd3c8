"""Count the bytes of training data by their source."""

from __future__ import annotations

import threading
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class BytesRead:
    """One reading of the counter; the difference of two readings is an epoch's ingress."""

    network_bytes: int  # bodies received over the network, including parts that were sent again
    cache_bytes: int  # read from the disk cache
    reopens: int  # connections that were reopened in the middle of a shard


class ByteCounter:
    """Counts bytes; thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._network_bytes = 0
        self._cache_bytes = 0
        self._reopens = 0

    def add_network(self, count_bytes: int) -> None:
        with self._lock:
            self._network_bytes += count_bytes

    def add_cache(self, count_bytes: int) -> None:
        with self._lock:
            self._cache_bytes += count_bytes

    def add_reopen(self) -> None:
        with self._lock:
            self._reopens += 1

    def read(self) -> BytesRead:
        with self._lock:
            return BytesRead(self._network_bytes, self._cache_bytes, self._reopens)
