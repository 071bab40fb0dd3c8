"""Batches for training, read ahead by a thread, from the share of the shards that is this slot's."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

import numpy as np
import torch

from cloud.storage.cache import ShardCache
from cloud.storage.client import ClientPerProcess
from cloud.storage.counter import ByteCounter
from cloud.storage.digits import decode_digit
from cloud.storage.opener import ShardOpener
from cloud.storage.samples import SampleReader, read_shard
from cloud.storage.shares import shards_for
from experiments.peer.config import PeerConfig

Batch = tuple[torch.Tensor, torch.Tensor]
"""(float32[n, 64] pixels from 0 to 1, int64[n] digits)."""

_SHUFFLE_SAMPLES = 256
_AHEAD = 4  # batches


class BatchSource(Protocol):
    """An endless source of batches that may be given another share of the shards at any time."""

    def next_batch(self, samples: int) -> Batch: ...

    def set_shards(self, shards: Sequence[str]) -> None: ...

    def close(self) -> None: ...


def open_shards(config: PeerConfig, folder: Path, warn: Callable[[str], None]) -> ShardOpener:
    """The opener of this peer's shards, with a disk cache in `folder`. Raises StorageError."""
    cache = ShardCache(folder, config.cache_bytes, warn=warn) if config.cache_bytes > 0 else None
    client = ClientPerProcess(config.endpoint, region=config.region)
    return ShardOpener(client, endpoint=config.endpoint, cache=cache, counter=ByteCounter())


class DigitSource:
    """Digits of a share of the shards (at first: of all), in an order that follows from the seed."""

    def __init__(self, config: PeerConfig, opener: ShardOpener) -> None:
        shards = shards_for(config.slot, [config.slot], config.shards)
        self._reader = SampleReader(shards, opener.open, seed=config.seed, shuffle=_SHUFFLE_SAMPLES)

    def next_batch(self, samples: int) -> Batch:
        """The next `samples` digits. Raises StorageError."""
        decoded = [decode_digit(next(self._reader)) for _ in range(samples)]
        return _stack(decoded)

    def set_shards(self, shards: Sequence[str]) -> None:
        """Another share, from the next shard on."""
        self._reader.set_shards(shards)

    def close(self) -> None:
        """Close the shard being read."""
        self._reader.close()


def read_heldout(config: PeerConfig, opener: ShardOpener) -> Batch | None:
    """All held-out digits, or None when the experiment has none. Raises StorageError."""
    decoded = [
        decode_digit(s) for shard in config.heldout_shards for s in read_shard(shard, opener.open(shard))
    ]
    return _stack(decoded) if decoded else None


def _stack(decoded: Sequence[tuple[np.ndarray, int]]) -> Batch:
    pixels = torch.from_numpy(np.stack([image for image, _ in decoded]))
    return pixels, torch.tensor([label for _, label in decoded], dtype=torch.int64)


class Batches:
    """Reads a source ahead in a thread, so that `next` seldom waits. It begins with `start`: once the share is known,
    else all slots' first batches would be the same shard's.

    An error of the source is raised by `next`, after the batches that were read before it.
    """

    def __init__(self, source: BatchSource, samples: int) -> None:
        self._source, self._samples = source, samples
        self._ready: queue.Queue[Batch | Exception] = queue.Queue(_AHEAD)
        self._ended = threading.Event()
        self._share: tuple[str, ...] = ()
        self._thread = threading.Thread(target=self._read, name="batches", daemon=True)

    def start(self) -> None:
        """Begin to read."""
        self._thread.start()

    def next(self, ended: threading.Event | None = None) -> Batch | None:
        """The next batch; None when `ended` was set while waiting. Raises what the source raised."""
        while True:
            try:
                item = self._ready.get(timeout=0.2)
            except queue.Empty:
                if ended is not None and ended.is_set():
                    return None
                continue
            if isinstance(item, Exception):
                raise item
            return item

    def share_among(self, slot: str, slots: Sequence[str], shards: Sequence[str]) -> bool:
        """Take this slot's share of `shards` among the `slots` alive; True when it changed."""
        share = shards_for(slot, slots, shards)
        if share == self._share:
            return False
        self._share = share
        self._source.set_shards(share)
        return True

    def close(self, timeout_s: float = 1.0) -> None:
        """End the thread; a read that hangs is left to the process's end."""
        self._ended.set()
        if self._thread.ident is not None:
            self._thread.join(timeout_s)
        if not self._thread.is_alive():
            self._source.close()

    def _read(self) -> None:
        while not self._ended.is_set():
            try:
                item: Batch | Exception = self._source.next_batch(self._samples)
            except Exception as error:  # noqa: BLE001 - handed over to the training thread, which raises it
                item = error
            while not self._ended.is_set():
                try:
                    self._ready.put(item, timeout=0.2)
                    break
                except queue.Full:
                    continue
            if isinstance(item, Exception):
                return
