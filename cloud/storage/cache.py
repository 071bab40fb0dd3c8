"""A bounded disk cache of whole shards with least-recently-used eviction; a full disk switches it off."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import logging
import os
import threading
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from cloud.storage.errors import CacheInUseError
from cloud.storage.url import S3Url

_log = logging.getLogger(__name__)
_TEMPORARY = ".part"


class ShardCache:
    """Stores shards as files in `folder`, named by bucket, key and ETag; used by one process at a time.

    `limit_bytes` bounds the total size of the files, including files being written; 0 disables the cache. If the disk is
    full or fails, the cache is switched off permanently (`off_because` is set and `warn` called once) and readers
    continue from the network. Raises CacheInUseError if another process uses the folder. `create` opens a new file for
    writing; tests use it to simulate a full disk.
    """

    def __init__(
        self,
        folder: Path,
        limit_bytes: int,
        *,
        warn: Callable[[str], None] = _log.warning,
        create: Callable[[Path], BinaryIO] | None = None,
    ) -> None:
        self.folder = folder
        self.limit_bytes = limit_bytes
        self.off_because = "" if limit_bytes > 0 else "the cache's size is 0"
        self._warn = warn
        self._create = create or _create
        self._lock = threading.Lock()
        self._sizes: OrderedDict[str, int] = OrderedDict()  # least recently used first
        self._reserved_bytes = 0  # of files being written
        self._lock_fd: int | None = None
        if not self.off_because:
            try:
                self._take_folder()
            except OSError as error:
                self._switch_off(error)

    @property
    def used_bytes(self) -> int:
        """Bytes held, including files being written."""
        with self._lock:
            return sum(self._sizes.values()) + self._reserved_bytes

    def open(self, url: S3Url, etag: str) -> BinaryIO | None:
        """Open a cached object for reading, or return None. The file stays readable even if it is evicted."""
        name = _name(url, etag)
        with self._lock:
            if self.off_because or name not in self._sizes:
                return None
            path = self.folder / name
            try:
                file = path.open("rb")
                os.utime(path)  # so that the order of use survives a restart
            except OSError:
                # The file was deleted by somebody else: treat it as a miss.
                del self._sizes[name]
                return None
            self._sizes.move_to_end(name)
            return file

    def writer(self, url: S3Url, etag: str, size_bytes: int) -> CacheWriter | None:
        """Reserve space for an object of this size; None if the cache is off or too small for it."""
        name = _name(url, etag)
        with self._lock:
            if self.off_because or name in self._sizes:
                return None
            if size_bytes + self._reserved_bytes > self.limit_bytes:
                return None
            self._make_room(size_bytes)
            path = self.folder / f"{name}.{os.getpid()}-{threading.get_ident()}{_TEMPORARY}"
            try:
                file = self._create(path)
            except OSError as error:
                self._switch_off(error)
                return None
            self._reserved_bytes += size_bytes
        return CacheWriter(self, name, path, file, size_bytes)

    def close(self) -> None:
        """Release the folder; its files stay for the next process."""
        with self._lock:
            self.off_because = self.off_because or "closed"
            if self._lock_fd is not None:
                os.close(self._lock_fd)
                self._lock_fd = None

    def _take_folder(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self._lock_fd = os.open(self.folder / ".lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._lock_fd)
            self._lock_fd = None
            raise CacheInUseError(
                f"{self.folder}: another process uses this shard cache; give each peer a folder of its own"
            ) from None
        found: list[tuple[float, str, int]] = []
        for path in self.folder.iterdir():
            if path.name.endswith(_TEMPORARY):
                path.unlink(missing_ok=True)  # its writer died
            elif path.name.endswith(".tar"):
                stat = path.stat()
                found.append((stat.st_mtime, path.name, stat.st_size))
        self._sizes.update((name, size) for _, name, size in sorted(found))
        self._make_room(0)

    def _make_room(self, size_bytes: int) -> None:
        held = sum(self._sizes.values()) + self._reserved_bytes
        while self._sizes and held + size_bytes > self.limit_bytes:
            name, size = self._sizes.popitem(last=False)
            with contextlib.suppress(OSError):  # already gone or read-only: not counted any more
                (self.folder / name).unlink(missing_ok=True)
            held -= size

    def _switch_off(self, error: OSError) -> None:
        if self.off_because:
            return
        self.off_because = error.strerror or str(error)
        self._warn(
            f"{self.folder}: the shard cache is off ({self.off_because}); "
            "shards are read from the network until the disk has space and the peer is restarted"
        )

    def _commit(self, writer: CacheWriter) -> None:
        with self._lock:
            self._reserved_bytes -= writer.size_bytes
            try:
                writer.path.rename(self.folder / writer.name)
            except OSError as error:
                self._switch_off(error)
                return
            self._sizes[writer.name] = writer.size_bytes

    def _abandon(self, writer: CacheWriter, error: OSError | None) -> None:
        with self._lock:
            self._reserved_bytes -= writer.size_bytes
            with contextlib.suppress(OSError):  # what cannot be deleted now is deleted by the next process
                writer.path.unlink(missing_ok=True)
            if error is not None:
                self._switch_off(error)


class CacheWriter:
    """Writes one object in order; it appears in the cache once all of its bytes are written."""

    def __init__(self, cache: ShardCache, name: str, path: Path, file: BinaryIO, size_bytes: int) -> None:
        self.name = name
        self.path = path
        self.size_bytes = size_bytes
        self._cache = cache
        self._file = file
        self._written = 0
        self._open = True

    def write(self, data: bytes | memoryview) -> None:
        """Append bytes. Never raises: a full disk ends this writer and switches the cache off."""
        if not self._open:
            return
        try:
            self._file.write(data)
            self._written += len(data)
            if self._written == self.size_bytes:
                self._open = False
                self._file.close()
                self._cache._commit(self)
        except OSError as error:
            self._end(error)

    def abandon(self) -> None:
        """Discard an incomplete object. Does nothing after the last byte."""
        if self._open:
            self._end(None)

    def _end(self, error: OSError | None) -> None:
        self._open = False
        with contextlib.suppress(OSError):  # closing flushes, which fails on a full disk
            self._file.close()
        self._cache._abandon(self, error)


def _create(path: Path) -> BinaryIO:
    return path.open("xb")


def _prefix(url: S3Url) -> str:
    return hashlib.sha256(f"{url.bucket}/{url.key}".encode()).hexdigest()[:32] + "-"


def _name(url: S3Url, etag: str) -> str:
    return _prefix(url) + hashlib.sha256(etag.encode()).hexdigest()[:16] + ".tar"
