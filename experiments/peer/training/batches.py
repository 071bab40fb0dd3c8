"""Training batches of this slot's share of the shards, prefetched in a thread."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Generic, Protocol, TypeVar

from cloud.storage.cache import ShardCache
from cloud.storage.client import ClientPerProcess
from cloud.storage.counter import ByteCounter
from cloud.storage.opener import ShardOpener
from cloud.storage.samples import Cursor
from cloud.storage.shares import shards_for
from experiments.peer.config import PeerConfig
from experiments.peer.training.input_trace import ConsumerTrace
from experiments.pipeline.errors import PipelineError, describe_error

_T = TypeVar("_T", covariant=True)
_AHEAD = 4  # batches
_OTHER_CONNECTIONS = 9  # besides the training shards': held-out shards, checkpoints


class BatchSource(Protocol[_T]):
    """An endless source of batches whose share of the shards can be changed at any time."""

    def next_batch(self, samples: int) -> _T: ...

    def set_shards(self, shards: Sequence[str]) -> None: ...

    def start_at(self, cursor: Cursor) -> None: ...

    def close(self) -> None: ...


def open_shards(config: PeerConfig, folder: Path, warn: Callable[[str], None]) -> ShardOpener:
    """Create the opener of this peer's shards, with a disk cache in `folder`. Raises StorageError."""
    cache = ShardCache(folder, config.cache_bytes, warn=warn) if config.cache_bytes > 0 else None
    client = ClientPerProcess(
        config.endpoint, region=config.region, connections=config.streams + _OTHER_CONNECTIONS
    )
    return ShardOpener(client, endpoint=config.endpoint, cache=cache, counter=ByteCounter())


class Batches(Generic[_T]):
    """Prefetches batches from a source in a thread, so that `next` rarely waits.

    Call `start` once the share is known; otherwise the first batches of all slots would come from the same shard. An
    error of the source is raised by `next`, after the batches that were read before it.
    """

    def __init__(self, source: BatchSource[_T], samples: int, trace: ConsumerTrace | None = None) -> None:
        self.trace = trace
        self._source, self._samples = source, samples
        self._ready: queue.Queue[_T | Exception] = queue.Queue(_AHEAD)
        self._ended = threading.Event()
        self._share: tuple[str, ...] = ()
        self._thread = threading.Thread(target=self._read, name="batches", daemon=True)

    def start_at(self, cursor: Cursor) -> None:
        """Change the position in the data, before `start`."""
        self._source.start_at(cursor)

    def start(self) -> None:
        """Start prefetching."""
        self._thread.start()

    def next(self, ended: threading.Event | None = None) -> _T | None:
        """Return the next batch; None if `ended` was set while waiting. Raises what the source raised."""
        if self.trace is not None:
            self.trace.asked()
        while True:
            try:
                item = self._ready.get(timeout=0.2)
            except queue.Empty:
                if ended is not None and ended.is_set():
                    return None
                continue
            if isinstance(item, Exception):
                raise item
            if self.trace is not None:
                self.trace.got()
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
        """End the thread and its source. A read that hangs ends with the process."""
        self._ended.set()
        if self._thread.ident is None:
            self._source.close()
        else:
            self._thread.join(timeout_s)

    def _read(self) -> None:
        try:
            self._read_until_closed()
        finally:
            self._source.close()  # in this thread: worker processes are killed when the thread that started them ends

    def _read_until_closed(self) -> None:
        while not self._ended.is_set():
            try:
                item: _T | Exception = self._source.next_batch(self._samples)
            except Exception as error:  # noqa: BLE001 - raised in the training thread
                item = error
            except BaseException as error:  # noqa: BLE001 - sys.exit() of the user's code would only end this thread
                item = PipelineError(
                    f"reading samples ended: {describe_error(error)}; remove what ends the process"
                )
            if self.trace is not None and not isinstance(item, Exception):
                self.trace.arrived()
            while not self._ended.is_set():
                try:
                    self._ready.put(item, timeout=0.2)
                    break
                except queue.Full:
                    continue
            if isinstance(item, Exception):
                return
