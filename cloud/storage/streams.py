"""Download the next shards before they are read, each over a stream of its own, in bounded memory."""

from __future__ import annotations

import io
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any, BinaryIO, cast

from cloud.storage.errors import StorageError, is_final

AHEAD_BYTES = 256 << 20  # of each stream
_CHUNK_BYTES = 256 * 1024
_JOIN_S = 0.5


@dataclass(eq=False)
class _Download:
    """A shard on its way. `place`: its number in the order of reading, from 0 on."""

    shard: str
    place: int
    wanted: bool = False  # its reader has opened it
    chunks: deque[bytes] = field(default_factory=deque)
    opened: bool = False
    ended: bool = False  # all bytes have arrived, or `error` follows them
    error: BaseException | None = None
    dropped: bool = False
    thread: threading.Thread | None = None


class Streams:
    """Opens shards in an order that the caller knows in advance, and downloads up to `count` of them at once.

    The bytes of a file, and where it raises an error, are those of `open_shard`, which is called in other threads.
    Downloaded and not yet read are at most `limit_bytes` (None: `AHEAD_BYTES` per stream) and one chunk per stream; the
    shards read first have precedence. `open`, `begin` and the files belong to one thread; `retain` may be called in any
    thread.
    """

    def __init__(
        self, open_shard: Callable[[str], BinaryIO], count: int, *, limit_bytes: int | None = None
    ) -> None:
        self.count = count
        self._open_shard = open_shard
        self._limit_bytes = count * AHEAD_BYTES if limit_bytes is None else limit_bytes
        self._changed = threading.Condition()
        self._downloads: dict[str, _Download] = {}
        self._leaving: list[threading.Thread] = []  # of dropped downloads
        self._held_bytes = 0
        self._closed = False
        self.most_held_bytes = 0

    def open(self, shard: str, following: Sequence[str]) -> BinaryIO:
        """Return a file over `shard`, and start downloading the first `count - 1` of `following`.

        Downloads of other shards are dropped. Raises what `open_shard` raised for `shard`.
        """
        with self._changed:
            if self._closed:
                raise RuntimeError(f"{shard} is opened after its streams were closed")
            self._keep_on((shard, *following))
            found = self._downloads[shard]
            found.wanted = True
            self._changed.notify_all()
            while not (found.opened or found.ended or found.dropped):
                self._changed.wait()
            if not found.opened and found.error is not None:
                self._drop(found)
                raise found.error
        return io.BufferedReader(_File(self, found), _CHUNK_BYTES)

    def begin(self, following: Sequence[str]) -> None:
        """Start downloading the first `count` of `following` while no shard is being read, and drop all others."""
        with self._changed:
            if not self._closed:
                self._keep_on(following)

    def retain(self, shards: Collection[str]) -> None:
        """Drop the downloads of shards that are not in `shards`, apart from the one being read."""
        with self._changed:
            reading = [one.shard for one in self._downloads.values() if one.wanted]
            self._drop_all_but({*shards, *reading})

    def close(self) -> None:
        """Drop all downloads and end their threads. One that hangs in a read ends with that read."""
        with self._changed:
            self._closed = True
            self._drop_all_but(())
            threads = list(self._leaving)
        until_s = time.monotonic() + _JOIN_S
        for thread in threads:
            thread.join(max(0.0, until_s - time.monotonic()))

    def take(self, download: _Download) -> bytes:
        """Return the next bytes of a download, b"" at its end, when they have arrived. Raises its error."""
        with self._changed:
            while not (download.chunks or download.ended or download.dropped):
                self._changed.wait()
            if download.dropped:
                raise RuntimeError(f"{download.shard} is read after its streams were closed")
            if download.chunks:
                data = download.chunks.popleft()
                self._held_bytes -= len(data)
                self._changed.notify_all()
                return data
            if download.error is not None:
                raise download.error
            return b""

    def drop(self, download: _Download) -> None:
        """End a download. Does nothing if it was dropped before."""
        with self._changed:
            if not download.dropped:
                self._drop(download)

    def _keep_on(self, shards: Sequence[str]) -> None:
        """Download the first `count` of these shards and no others."""
        window = list(dict.fromkeys(shards))[: self.count]
        self._drop_all_but(window)
        for place, name in enumerate(window):
            if name in self._downloads:
                self._downloads[name].place = place
            else:
                self._start(name, place)
        self._changed.notify_all()

    def _start(self, shard: str, place: int) -> None:
        download = _Download(shard, place)
        download.thread = threading.Thread(
            target=self._run, args=(download,), name=f"stream {shard}", daemon=True
        )
        self._downloads[shard] = download
        download.thread.start()

    def _drop_all_but(self, shards: Collection[str]) -> None:
        for download in [one for one in self._downloads.values() if one.shard not in shards]:
            self._drop(download)

    def _drop(self, download: _Download) -> None:
        download.dropped = True
        self._held_bytes -= sum(map(len, download.chunks))
        download.chunks.clear()
        if self._downloads.get(download.shard) is download:
            del self._downloads[download.shard]
        self._leaving = [thread for thread in self._leaving if thread.is_alive()]
        if download.thread is not None:
            self._leaving.append(download.thread)
        self._changed.notify_all()

    def _run(self, download: _Download) -> None:
        try:
            self._download(download)
        except BaseException as error:  # noqa: BLE001 - raised by the file
            download.error = error
        with self._changed:
            download.ended = True
            self._changed.notify_all()

    def _download(self, download: _Download) -> None:
        file: Any = None
        try:
            while self._wait_for_room(download):
                needed = download.wanted
                try:
                    if file is None:
                        file = self._open_shard(download.shard)
                        with self._changed:
                            download.opened = True
                            self._changed.notify_all()
                    # At most one read of the stream: `read` would lose its bytes with the error of a later one.
                    data = cast(io.BufferedReader, file).read1(_CHUNK_BYTES)
                except StorageError as error:
                    # Nobody has waited for these bytes: the store has its full time to answer once somebody does.
                    if is_final(error) or needed or not self._wait_until_read(download):
                        raise
                    continue
                if not data:
                    return
                with self._changed:
                    if not download.dropped:
                        download.chunks.append(data)
                        self._held_bytes += len(data)
                        self.most_held_bytes = max(self.most_held_bytes, self._held_bytes)
                        self._changed.notify_all()
        finally:
            if file is not None:
                file.close()

    def _wait_for_room(self, download: _Download) -> bool:
        """Wait until the download may read on; False: it was dropped."""
        with self._changed:
            while not (download.dropped or self._has_room(download)):
                self._changed.wait()
            return not download.dropped

    def _has_room(self, download: _Download) -> bool:
        if download.wanted and not download.chunks:
            return True  # its reader waits
        return self._held_bytes * self.count < self._limit_bytes * (self.count - download.place)

    def _wait_until_read(self, download: _Download) -> bool:
        """Wait until it is the shard's turn to be read; False: the download was dropped."""
        with self._changed:
            while not (download.dropped or download.wanted):
                self._changed.wait()
            return not download.dropped


class _File(io.RawIOBase):
    """The bytes of one download."""

    def __init__(self, streams: Streams, download: _Download) -> None:
        super().__init__()
        self._streams = streams
        self._download = download
        self._rest = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer).cast("B")
        if not self._rest:
            self._rest = memoryview(self._streams.take(self._download))
        count = min(len(view), len(self._rest))
        view[:count] = self._rest[:count]
        self._rest = self._rest[count:]
        return count

    def close(self) -> None:
        if not self.closed:
            self._streams.drop(self._download)
        super().close()
