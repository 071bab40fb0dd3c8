"""Stream an object over a connection that may break at any byte, and detect changes of the object."""

from __future__ import annotations

import contextlib
import io
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, BinaryIO

from cloud.storage.cache import CacheWriter, ShardCache
from cloud.storage.client import is_transient, translate
from cloud.storage.counter import ByteCounter
from cloud.storage.errors import ShardChangedError, StorageError, StoreUnreachableError
from cloud.storage.url import S3Url


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Back-off of a stream after errors: waits of first, first x 2, ... up to the longest."""

    first_wait_s: float = 0.2
    longest_wait_s: float = 10.0
    deadline_s: float = 120.0  # without a new byte, after which the error is raised

    def wait_s(self, failures: int) -> float:
        """Seconds to wait after this many consecutive failures (1 is the first)."""
        return min(self.longest_wait_s, self.first_wait_s * 2.0 ** min(failures - 1, 30))


class ShardStream(io.RawIOBase):
    """A read-only, forward-only file over one object.

    On any transient error it reopens the object at the current position, with `Range: bytes=POS-` and `If-Match: ETAG`.
    Raises ShardChangedError if the object is no longer the same version, StoreUnreachableError if no byte arrived within
    the policy's deadline, and other StorageErrors for errors that a retry does not fix. `etag` pins a known version.
    `start_bytes`: offset of the first byte to read.
    """

    def __init__(
        self,
        client: Any,
        url: S3Url,
        *,
        endpoint: str = "",
        etag: str | None = None,
        counter: ByteCounter | None = None,
        retry: RetryPolicy | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        start_bytes: int = 0,
    ) -> None:
        super().__init__()
        self.url = url
        self.etag = etag
        self.size_bytes = -1  # unknown until the first response
        self._client = client
        self._endpoint = endpoint
        self._counter = counter or ByteCounter()
        self._retry = retry or RetryPolicy()
        self._clock = clock
        self._sleep = sleep
        self._position = start_bytes
        self._body: Any = None
        self._failures = 0
        self._progress_at = clock()
        self.sink: CacheWriter | None = None

    def readable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def connect(self) -> None:
        """Open the object now, so that `etag` and `size_bytes` are known."""
        self._progress_at = self._clock()  # idle time before this call does not count towards the deadline
        while self._body is None:
            try:
                self._open()
            except Exception as error:  # noqa: BLE001 - `_fail` raises unless it is transient
                self._fail(error)

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer).cast("B")
        if not view or self._position == self.size_bytes:
            return 0
        self._progress_at = self._clock()
        while True:
            try:
                body = self._open() if self._body is None else self._body
                if self._position == self.size_bytes:
                    return 0
                data = body.read(min(len(view), self.size_bytes - self._position))
                if not data:
                    raise ConnectionError("the body ended early")
            except Exception as error:  # noqa: BLE001 - as above
                self._fail(error)
                continue
            break
        self._failures = 0
        self._position += len(data)
        self._counter.add_network(len(data))
        view[: len(data)] = data
        if self.sink is not None:
            self.sink.write(data)
        if self._position == self.size_bytes:
            self._drop_body()
        return len(data)

    def close(self) -> None:
        if not self.closed:
            self._drop_body()
            if self.sink is not None:
                self.sink.abandon()
        super().close()

    def _open(self) -> Any:
        ask: dict[str, str] = {"Bucket": self.url.bucket, "Key": self.url.key}
        if self.etag is not None:
            ask["IfMatch"] = self.etag
        if self._position:
            ask["Range"] = f"bytes={self._position}-"
        answer = self._client.get_object(**ask)
        body = answer["Body"]
        size = int(answer["ContentLength"])
        if self._position and "ContentRange" in answer:
            size += self._position
        changed = self.etag is not None and answer["ETag"] != self.etag
        if changed or (self.size_bytes >= 0 and size != self.size_bytes):
            body.close()
            raise ShardChangedError(
                f"{self.url} changed while it was read (ETag {self.etag} became {answer['ETag']}); "
                "do not modify shards during a run, then launch again"
            )
        self.etag = answer["ETag"]
        self.size_bytes = size
        self._body = body
        if self._position and "ContentRange" not in answer:
            # Some stores answer 200 to a range request: skip to the position, and count the bytes.
            self._skip(self._position)
        return body

    def _skip(self, count_bytes: int) -> None:
        while count_bytes:
            data = self._body.read(min(count_bytes, 1 << 20))
            if not data:
                raise ConnectionError("the body ended early")
            self._counter.add_network(len(data))
            count_bytes -= len(data)

    def _fail(self, error: Exception) -> None:
        """Wait before the next attempt, or raise the error's translation if it is final."""
        self._drop_body()
        if isinstance(error, StorageError):
            raise error
        if not is_transient(error):
            raise translate(error, self._endpoint, self.url.bucket, self.url.key) from error
        self._failures += 1
        wait_s = self._retry.wait_s(self._failures)
        silent_s = self._clock() - self._progress_at
        if silent_s + wait_s > self._retry.deadline_s:
            place = f"the object store at {self._endpoint}" if self._endpoint else "the object store"
            raise StoreUnreachableError(
                f"{place} sent no byte of {self.url} for {silent_s:.0f} s ({type(error).__name__}, "
                f"{self._failures} attempts); start the store or check its log, then launch again"
            ) from error
        self._counter.add_reopen()
        self._sleep(wait_s)

    def _drop_body(self) -> None:
        body, self._body = self._body, None
        if body is not None:
            with contextlib.suppress(OSError):  # closing a broken connection may fail
                body.close()


class ShardOpener:
    """Opens s3:// URLs from the cache if it has the version in use, or else over the network.

    A URL's version (ETag) is pinned when it is first opened; a different one later raises ShardChangedError. `client` is
    called for each opening (see ClientPerProcess). Thread-safe.
    """

    def __init__(
        self,
        client: Callable[[], Any],
        *,
        endpoint: str = "",
        cache: ShardCache | None = None,
        counter: ByteCounter | None = None,
        retry: RetryPolicy | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        buffer_bytes: int = 256 * 1024,
    ) -> None:
        self.cache = cache
        self.counter = counter or ByteCounter()
        self._client = client
        self._endpoint = endpoint
        self._retry = retry or RetryPolicy()
        self._clock = clock
        self._sleep = sleep
        self._buffer_bytes = buffer_bytes
        self._etags: dict[S3Url, str] = {}
        self._lock = threading.Lock()

    def open(self, text: str, start_bytes: int = 0) -> BinaryIO:
        """Return a buffered file over the object from byte `start_bytes` on; only whole ones are put into the cache.

        Raises BadUrlError and the errors of ShardStream.
        """
        url = S3Url.parse(text)
        with self._lock:
            etag = self._etags.get(url)
        if etag is not None and (held := self._from_cache(url, etag, start_bytes)) is not None:
            return held
        stream = ShardStream(
            self._client(),
            url,
            endpoint=self._endpoint,
            etag=etag,
            counter=self.counter,
            retry=self._retry,
            clock=self._clock,
            sleep=self._sleep,
            start_bytes=start_bytes,
        )
        stream.connect()
        assert stream.etag is not None
        with self._lock:
            self._etags.setdefault(url, stream.etag)
        if self.cache is not None:
            # The cache may have this version from an earlier process, which the headers now show.
            if etag is None and (held := self._from_cache(url, stream.etag, start_bytes)) is not None:
                stream.close()
                return held
            if not start_bytes:
                stream.sink = self.cache.writer(url, stream.etag, stream.size_bytes)
        return io.BufferedReader(stream, self._buffer_bytes)

    __call__ = open

    def etag(self, text: str) -> str | None:
        """The version of a URL that is in use; None: it has not been opened. Raises BadUrlError."""
        with self._lock:
            return self._etags.get(S3Url.parse(text))

    def pin(self, text: str, etag: str) -> None:
        """Use this version of a URL. Raises ShardChangedError if another one is in use, BadUrlError."""
        url = S3Url.parse(text)
        with self._lock:
            known = self._etags.setdefault(url, etag)
        if known != etag:
            raise ShardChangedError(
                f"{url} changed while it was read (ETag {known} became {etag}); "
                "do not modify shards during a run, then launch again"
            )

    def _from_cache(self, url: S3Url, etag: str, start_bytes: int) -> BinaryIO | None:
        held = self.cache.open(url, etag) if self.cache is not None else None
        if held is None:
            return None
        held.seek(start_bytes)
        return io.BufferedReader(_Counted(held, self.counter), self._buffer_bytes)


class _Counted(io.RawIOBase):
    """A file of the cache that counts the bytes read from it."""

    def __init__(self, file: BinaryIO, counter: ByteCounter) -> None:
        super().__init__()
        self._file = file
        self._counter = counter

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        count = self._file.readinto(buffer)  # type: ignore[attr-defined]
        self._counter.add_cache(count)
        return count

    def close(self) -> None:
        self._file.close()
        super().close()


def install(opener: ShardOpener) -> None:
    """Make webdataset read s3:// URLs through `opener`, in this process from now on."""
    from webdataset.gopen import gopen_schemes

    def open_s3(url: str, mode: str = "rb", bufsize: int = 8192, **_: Any) -> BinaryIO:
        if mode != "rb":
            raise ValueError(f"{url}: this opener is read-only (mode '{mode}')")
        return opener.open(url)

    gopen_schemes["s3"] = open_s3
