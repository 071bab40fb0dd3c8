"""Training batches from this slot's share of the shards, prefetched in a thread."""

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
from cloud.storage.opener import ShardOpener
from cloud.storage.samples import Sample, SampleReader, read_shard
from cloud.storage.shares import shards_for
from experiments.peer.config import PeerConfig
from experiments.pipeline.builtin import digits

Batch = tuple[torch.Tensor, torch.Tensor]
"""(float32[n, 64] pixels from 0 to 1, int64[n] digits)."""

_DIGITS = digits.pipeline()
_SHUFFLE_SAMPLES = 256
_AHEAD = 4  # batches


class BatchSource(Protocol):
    """An endless source of batches whose share of the shards can be changed at any time."""

    def next_batch(self, samples: int) -> Batch: ...

    def set_shards(self, shards: Sequence[str]) -> None: ...

    def close(self) -> None: ...


def open_shards(config: PeerConfig, folder: Path, warn: Callable[[str], None]) -> ShardOpener:
    """Create the opener of this peer's shards, with a disk cache in `folder`. Raises StorageError."""
    cache = ShardCache(folder, config.cache_bytes, warn=warn) if config.cache_bytes > 0 else None
    client = ClientPerProcess(config.endpoint, region=config.region)
    return ShardOpener(client, endpoint=config.endpoint, cache=cache, counter=ByteCounter())


class DigitSource:
    """Digits from a share of the shards (initially all), in an order determined by the seed."""

    def __init__(self, config: PeerConfig, opener: ShardOpener) -> None:
        shards = shards_for(config.slot, [config.slot], config.shards)
        self._reader = SampleReader(shards, opener.open, seed=config.seed, shuffle=_SHUFFLE_SAMPLES)

    def next_batch(self, samples: int) -> Batch:
        """Read the next `samples` digits. Raises StorageError."""
        return _stack([_decode(next(self._reader)) for _ in range(samples)])

    def set_shards(self, shards: Sequence[str]) -> None:
        """Change the share; takes effect with the next shard."""
        self._reader.set_shards(shards)

    def close(self) -> None:
        """Close the shard being read."""
        self._reader.close()


def read_heldout(config: PeerConfig, opener: ShardOpener) -> Batch | None:
    """Read all held-out digits; None if the experiment has none. Raises StorageError."""
    decoded = [_decode(s) for shard in config.heldout_shards for s in read_shard(shard, opener.open(shard))]
    return _stack(decoded) if decoded else None


def _decode(sample: Sample) -> tuple[np.ndarray, int]:
    item = _DIGITS.run(sample, seed=0, pass_number=0)  # no operation is random
    return item["image"], item["label"]


def _stack(decoded: Sequence[tuple[np.ndarray, int]]) -> Batch:
    pixels = torch.from_numpy(np.stack([image for image, _ in decoded]))
    return pixels, torch.tensor([label for _, label in decoded], dtype=torch.int64)


class Batches:
    """Prefetches batches from a source in a thread, so that `next` rarely waits.

    Call `start` once the share is known; otherwise the first batches of all slots would come from the same shard. An
    error of the source is raised by `next`, after the batches that were read before it.
    """

    def __init__(self, source: BatchSource, samples: int) -> None:
        self._source, self._samples = source, samples
        self._ready: queue.Queue[Batch | Exception] = queue.Queue(_AHEAD)
        self._ended = threading.Event()
        self._share: tuple[str, ...] = ()
        self._thread = threading.Thread(target=self._read, name="batches", daemon=True)

    def start(self) -> None:
        """Start prefetching."""
        self._thread.start()

    def next(self, ended: threading.Event | None = None) -> Batch | None:
        """Return the next batch; None if `ended` was set while waiting. Raises what the source raised."""
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
        """Switch to this slot's share of `shards` among the live `slots`. Returns whether it changed."""
        share = shards_for(slot, slots, shards)
        if share == self._share:
            return False
        self._share = share
        self._source.set_shards(share)
        return True

    def close(self, timeout_s: float = 1.0) -> None:
        """End the thread. A read that hangs ends with the process."""
        self._ended.set()
        if self._thread.ident is not None:
            self._thread.join(timeout_s)
        if not self._thread.is_alive():
            self._source.close()

    def _read(self) -> None:
        while not self._ended.is_set():
            try:
                item: Batch | Exception = self._source.next_batch(self._samples)
            except Exception as error:  # noqa: BLE001 - raised in the training thread
                item = error
            while not self._ended.is_set():
                try:
                    self._ready.put(item, timeout=0.2)
                    break
                except queue.Full:
                    continue
            if isinstance(item, Exception):
                return
