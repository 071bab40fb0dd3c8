"""The peers' reader: samples through the server, or from the store while there is none; each once, in order, unaltered."""

from __future__ import annotations

import http.client
import socket
import ssl
import threading
import time
from collections.abc import Callable, Generator
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any, BinaryIO, cast
from urllib.parse import urlencode

from cloud.storage.errors import CorruptShardError, TruncatedShardError
from cloud.storage.opener import ShardOpener
from cloud.storage.samples import Sample, read_entries
from experiments.offload.certificate import client_context
from experiments.offload.errors import OffloadError, RefusedError, ServerLostError
from experiments.offload.server import CHECK, SHARD
from experiments.offload.shard_stream import OFFSET_HEADER

_SENTENCE_BYTES = 4096
_LONGEST_OFFSET = 18  # digits
_LOST = (OSError, http.client.HTTPException, OffloadError, TruncatedShardError, CorruptShardError)


@dataclass(frozen=True)
class ServerAddress:
    """Where the server is and what it must be: `certificate` (PEM) is the only one accepted, `token` is this slot's.

    `fingerprint` is that of the pipeline, `plan` the plan's `sha256`.
    """

    host: str
    port: int
    certificate: str
    fingerprint: str
    plan: str
    token: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class Patience:
    """When the server counts as lost. Until samples come from the store, at most `connect_s` x 2 (TCP, TLS) + `silent_s`
    pass after the last sample, or `sample_s` if bytes come but no sample does. `connect_s` counts for each address that a
    host name has."""

    connect_s: float = 2.0
    silent_s: float = 4.0
    sample_s: float = 8.0
    retry_s: float = 5.0  # after which a lost server is asked again


@dataclass
class ReaderCounts:
    """What came which way. `fallbacks`: times that samples were read from the store because the server was lost."""

    server_samples: int = 0
    store_samples: int = 0
    server_bytes: int = 0  # without TLS and HTTP
    fallbacks: int = 0


class OffloadReader:
    """Reads shards through the server. `opener` reads them from the store; `report` gets a sentence at each fallback.

    Run the samples by MixedPipeline. Not thread-safe, apart from `counts` and `close`; use one reader a thread.
    """

    def __init__(
        self,
        address: ServerAddress,
        opener: ShardOpener,
        *,
        patience: Patience | None = None,
        report: Callable[[str], None],
    ) -> None:
        """Raises PlanError if the certificate cannot be read."""
        self.counts = ReaderCounts()
        self._address = address
        self._opener = opener
        self._patience = patience or Patience()
        self._report = report
        self._tls = client_context(address.certificate)
        self._certificate = ssl.PEM_cert_to_DER_cert(address.certificate)
        self._up = threading.Event()
        self._up.set()
        self._closed = threading.Event()
        self._checking: threading.Thread | None = None

    def close(self) -> None:
        """End the thread that waits for a lost server."""
        self._closed.set()
        if self._checking is not None:
            self._checking.join()

    def read(self, shard: str, pass_number: int, start: int = 0) -> Generator[Sample, None, None]:
        """Yield the samples of a shard from number `start` on, as the server sends them or as they are stored.

        Raises the errors of reading from the store.
        """
        at = _Position(start)
        stream_is_bad = False  # the server answers, but not with this shard's next sample
        while True:
            if self._up.is_set() and not stream_is_bad:
                begun = at.samples
                try:
                    with closing(self._from_server(shard, pass_number, at)) as samples:
                        for sample in samples:
                            self.counts.server_samples += 1
                            yield sample
                    return
                except _LOST as error:
                    has_come = at.samples > begun
                    if has_come and not isinstance(error, TimeoutError | ServerLostError):
                        at.was_lost = False
                        continue  # only the connection was lost: ask for the next sample
                    stream_is_bad = at.was_lost and not has_come
                    at.was_lost = True
                    self._lose(shard, at.samples, error)
            with closing(self._from_store(shard, at)) as samples:
                for sample in samples:
                    self.counts.store_samples += 1
                    yield sample
                    if self._up.is_set() and not stream_is_bad:
                        break
                else:
                    return

    def _from_server(self, shard: str, pass_number: int, at: _Position) -> Generator[Sample, None, None]:
        """Raises one of _LOST; ShardChangedError if the server reads another version of the shard than this peer."""
        query = {"shard": shard, "pass": pass_number, "from": at.samples}
        with closing(self._ask(SHARD, query)) as connection:
            if etag := connection.response.getheader("ETag"):
                self._opener.pin(
                    shard, etag
                )  # what is read from the store must be the version that the server reads
            body = _Body(connection, self._patience, self.counts)
            with closing(read_entries(shard, cast(BinaryIO, body))) as entries:
                while True:
                    body.expect_sample()
                    entry, sample = next(entries, (None, None))
                    if entry is None or sample is None:
                        return
                    if OFFSET_HEADER in entry.pax_headers:
                        at.mark(entry.pax_headers[OFFSET_HEADER])
                    at.samples += 1
                    yield sample

    def _from_store(self, shard: str, at: _Position) -> Generator[Sample, None, None]:
        begin_bytes, number = at.offset_bytes, at.offset_samples
        with closing(read_entries(shard, self._opener.open(shard, begin_bytes))) as entries:
            for entry, sample in entries:
                if number >= at.samples:
                    at.offset_bytes, at.offset_samples = begin_bytes + entry.offset, number
                    at.samples = number + 1
                    yield sample
                number += 1

    def _ask(self, path: str, query: dict[str, Any]) -> _Connection:
        """Send a request and return its connection if the answer is 200. Raises OSError, HTTPException, RefusedError."""
        address, patience = self._address, self._patience
        connection = http.client.HTTPSConnection(
            address.host, address.port, timeout=patience.connect_s, context=self._tls
        )
        try:
            connection.connect()
            shown = connection.sock.getpeercert(binary_form=True)  # pyright: ignore[reportAttributeAccessIssue]
            if shown != self._certificate:
                raise ServerLostError("it has another certificate than the run's")
            sock = connection.sock  # the connection gives it to the response
            sock.settimeout(patience.silent_s)
            common = {"fingerprint": address.fingerprint, "plan": address.plan}
            url = f"{path}?{urlencode({**common, **query}, errors='surrogatepass')}"
            connection.request("GET", url, headers={"Authorization": f"Bearer {address.token}"})
            response = connection.getresponse()
            if response.status != 200:
                raise RefusedError(
                    response.status, response.read(_SENTENCE_BYTES).decode("utf-8", "replace").strip()
                )
        except BaseException:
            connection.close()
            raise
        return _Connection(connection, response, sock)

    def _lose(self, shard: str, samples: int, error: Exception) -> None:
        """Report it, and wait for the server in a thread."""
        self._up.clear()
        self.counts.fallbacks += 1
        why = (
            str(error)
            if isinstance(error, RefusedError | ssl.SSLError) and str(error)
            else f"{type(error).__name__}"
        )
        self._report(
            f"the offload server at {self._address.host}:{self._address.port} is lost ({why}); {shard} is read from the store "
            f"from sample {samples} on until it is back"
        )
        if self._checking is not None and self._checking.is_alive():
            self._checking.join()  # it has set `_up` and is ending
        if not self._closed.is_set():
            self._checking = threading.Thread(target=self._wait_for_server, name="offload check", daemon=True)
            self._checking.start()

    def _wait_for_server(self) -> None:
        while not self._closed.wait(self._patience.retry_s):
            try:
                self._ask(CHECK, {}).close()
            except _LOST:
                continue
            self._up.set()
            return


@dataclass
class _Position:
    """Where the reading of a shard is: the next sample, and the last known place of one at or before it in the source."""

    samples: int
    offset_bytes: int = 0
    offset_samples: int = 0
    was_lost: bool = False

    def mark(self, offset: str) -> None:
        """The next sample begins at this byte of the source. Raises ServerLostError."""
        if not offset.isascii() or not offset.isdigit() or len(offset) > _LONGEST_OFFSET or int(offset) % 512:
            raise ServerLostError(f"the server names byte {offset[:20]!r} of the source")
        self.offset_bytes, self.offset_samples = int(offset), self.samples


@dataclass(frozen=True, slots=True)
class _Connection:
    connection: http.client.HTTPSConnection
    response: http.client.HTTPResponse
    socket: socket.socket

    def close(self) -> None:
        self.response.close()
        self.connection.close()


class _Body:
    """The bytes of an answer as a file. Raises ServerLostError if no whole sample comes in time; OSError, HTTPException."""

    def __init__(self, connection: _Connection, patience: Patience, counts: ReaderCounts) -> None:
        self._response, self._socket = connection.response, connection.socket
        self._sample_s, self._silent_s = patience.sample_s, patience.silent_s
        self._counts = counts
        self._deadline = 0.0

    def expect_sample(self) -> None:
        """The time of the next sample begins: what the trainer took for the last one does not count."""
        self._deadline = time.monotonic() + self._sample_s

    def read(self, size: int) -> bytes:
        parts: list[bytes] = []
        while size > 0 and not self._response.isclosed():  # its end has closed the socket, too
            left_s = self._deadline - time.monotonic()
            if left_s <= 0:
                raise ServerLostError(f"no whole sample came within {self._sample_s:g} s")
            self._socket.settimeout(min(self._silent_s, left_s))
            data = self._response.read1(size)
            if not data:
                break
            parts.append(data)
            size -= len(data)
            self._counts.server_bytes += len(data)
        return b"".join(parts)

    def __enter__(self) -> _Body:
        return self

    def __exit__(self, *_: object) -> None:
        self._response.close()
