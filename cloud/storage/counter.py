"""Bytes of training data by where they came from."""

from __future__ import annotations

import threading
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class BytesRead:
    """A reading of the counter; differences of two readings are an epoch's ingress."""

    network_bytes: int  # bodies that came over the network, sent-again parts included
    cache_bytes: int  # read from the disk cache
    reopens: int  # connections that had to be opened again in the middle of a shard


class ByteCounter:
    """Counts bytes; safe from several threads."""

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
