"""The HTTPS server next to the storage: sends shards whose samples are transformed as the plan says.

`GET /v1/shard?shard=URL&pass=N&from=N&fingerprint=HEX&plan=HEX` answers with a tar; `GET /v1/check?fingerprint=HEX&plan=HEX`
says whether the server would. Both need `Authorization: Bearer TOKEN`. An answer other than 200 is one sentence. A
stream that fails on its way ends without HTTP's last chunk.
"""

from __future__ import annotations

import contextlib
import functools
import io
import socket
import socketserver
import ssl
import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from http.client import HTTPException, parse_headers
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from cloud.storage.errors import StorageError
from cloud.storage.opener import ShardOpener
from cloud.storage.samples import Sample, read_entries
from experiments.offload.cores import Cores
from experiments.offload.errors import RefusedError
from experiments.offload.job import Job
from experiments.offload.mixed import as_stored, offloaded_members
from experiments.offload.shard_stream import Ahead, sample_bytes, transformed_shard

CHECK = "/v1/check"
SHARD = "/v1/shard"

_HEAD_BYTES = 8192
_SLICE_BYTES = 256 * 1024
_LARGEST_NUMBER = 2**40
_POLL_S = 0.25
_JOIN_S = 5.0


@dataclass(frozen=True, slots=True)
class Limits:
    """What peers and strangers may take.

    Of connections that have not shown a token, the oldest is closed if there are more than `waiting`, so that
    idle connections do not keep anyone out. All streams together hold about `memory_bytes` of samples.
    """

    streams: int = 64
    waiting: int = 32
    request_s: float = 5.0  # for handshake and request
    idle_s: float = 60.0  # a reader that takes nothing for so long is disconnected
    memory_bytes: int = 1 << 30


class OffloadServer:
    """Serves a job until `stop`. Raises OSError if the address cannot be used, PipelineError, PlanError.

    `opener` opens the job's shards; `report` gets sentences about requests that were refused and streams that failed.
    """

    def __init__(
        self,
        job: Job,
        cores: Cores,
        opener: ShardOpener,
        tls: ssl.SSLContext,
        *,
        host: str = "0.0.0.0",
        port: int = 0,
        limits: Limits | None = None,
        report: Callable[[str], None],
    ) -> None:
        self.limits = limits or Limits()
        self._answers = _Answers(job, cores, opener, self.limits)
        self._http = _Http((host, port), self._answers, tls, self.limits, report)
        self.port: int = self._http.server_address[1]
        self._thread = threading.Thread(
            target=self._http.serve_forever, args=(_POLL_S,), name="offload server", daemon=True
        )
        self._thread.start()

    @property
    def connections(self) -> int:
        """Number of open connections."""
        return self._http.open_connections

    def stop(self) -> None:
        """Close the address and all connections."""
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()
        self._http.disconnect_all(time.monotonic() + _JOIN_S)


@dataclass(frozen=True, slots=True)
class _Answer:
    """The body, and the source's ETag once the body has begun; None: it has no source."""

    body: Iterator[bytes]
    etag: Callable[[], str | None] = lambda: None


class _Answers:
    """What the server answers, apart from HTTP."""

    def __init__(self, job: Job, cores: Cores, opener: ShardOpener, limits: Limits) -> None:
        self._job = job
        self._cores = cores
        self._opener = opener
        self._pipeline = job.work.pipeline()
        self._fingerprint = self._pipeline.fingerprint()
        self._ahead = Ahead(2 * cores.count + 2, limits.memory_bytes // limits.streams)
        self._limit = limits.streams
        self._streams = 0
        self._lock = threading.Lock()

    def slot_of(self, authorization: str) -> str:
        """Raises RefusedError."""
        scheme, _, token = authorization.partition(" ")
        slot = self._job.slot_of(token) if scheme == "Bearer" else None
        if slot is None:
            raise RefusedError(401, "the token is that of no slot; use the token that the run gave this peer")
        return slot

    @contextlib.contextmanager
    def answer(self, target: str) -> Iterator[_Answer]:
        """What answers a request's path and query; closed at the end. Raises RefusedError."""
        try:
            split = urlsplit(target)
            pairs = parse_qsl(split.query, keep_blank_values=True, strict_parsing=True, max_num_fields=8)
        except ValueError as error:
            raise RefusedError(400, f"the path and query cannot be read ({error})") from error
        query = dict(pairs)
        wanted = {CHECK: {"fingerprint", "plan"}, SHARD: {"fingerprint", "plan", "shard", "pass", "from"}}
        if split.path not in wanted:
            raise RefusedError(404, f"there is nothing at {split.path!r}; ask for {SHARD} or {CHECK}")
        if len(pairs) != len(query) or set(query) != wanted[split.path]:
            raise RefusedError(
                400, f"the query of {split.path} needs {', '.join(sorted(wanted[split.path]))}, each once"
            )
        if query["fingerprint"] != self._fingerprint:
            raise RefusedError(
                409,
                f"the peer's pipeline has another fingerprint than {self._pipeline.name} here; start both from one version",
            )
        if query["plan"] != self._job.plan.sha256:
            raise RefusedError(409, "the peer has another plan than the server; give both the same")
        if split.path == CHECK:
            yield _Answer(iter((b"ready\n",)))
            return
        pass_number, start = _number("pass", query["pass"]), _number("from", query["from"])
        if query["shard"] not in self._job.shards:
            raise RefusedError(
                403,
                f"{query['shard']!r} is none of the experiment's {len(self._job.shards)} shards; ask for one of them",
            )
        with self._lock:
            if self._streams >= self._limit:
                raise RefusedError(503, f"the server sends {self._limit} streams already; come back later")
            self._streams += 1
        try:
            with contextlib.closing(self._shard(query["shard"], pass_number, start)) as body:
                yield _Answer(body, functools.partial(self._opener.etag, query["shard"]))
        finally:
            with self._lock:
                self._streams -= 1

    def _shard(self, shard: str, pass_number: int, start: int) -> Any:
        def transform(sample: Sample, headers: dict[str, str]) -> Future[bytes]:
            if found := offloaded_members(self._pipeline, sample):
                raise RefusedError(
                    422,
                    f"{shard}: sample {sample['__key__']} has a member {min(found)} as the server writes; rename it",
                )
            if self._job.plan.offloads(sample["__key__"]):
                return self._cores.submit(sample, pass_number, headers)
            done: Future[bytes] = Future()
            done.set_result(sample_bytes(as_stored(sample), headers))
            return done

        with contextlib.closing(read_entries(shard, self._opener.open(shard))) as entries:
            yield from transformed_shard(entries, start, transform, self._ahead)


def _number(name: str, text: str) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > 13 or int(text) > _LARGEST_NUMBER:
        raise RefusedError(400, f"{name} is {text[:40]!r}, not a whole number from 0 to {_LARGEST_NUMBER}")
    return int(text)


class _Http(socketserver.ThreadingTCPServer):
    """Accepts connections, each in a thread of its own."""

    allow_reuse_address = True
    daemon_threads = True
    block_on_close = False
    request_queue_size = 128

    def __init__(
        self,
        address: tuple[str, int],
        answers: _Answers,
        tls: ssl.SSLContext,
        limits: Limits,
        report: Callable[[str], None],
    ) -> None:
        self.answers, self.tls, self.limits, self.report = answers, tls, limits, report
        self._lock = threading.Condition()
        self._open: set[socket.socket] = set()
        self._waiting: OrderedDict[socket.socket, float] = OrderedDict()  # deadline of the request
        super().__init__(address, _Connection)

    @property
    def open_connections(self) -> int:
        with self._lock:
            return len(self._open)

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._lock:
            self._open.add(request)
            self._waiting[request] = time.monotonic() + self.limits.request_s
            if len(self._waiting) > self.limits.waiting:
                _disconnect(self._waiting.popitem(last=False)[0])
        super().process_request(request, client_address)

    def service_actions(self) -> None:
        """Close connections whose request has not come in time."""
        now = time.monotonic()
        with self._lock:
            for request in [one for one, deadline in self._waiting.items() if deadline < now]:
                del self._waiting[request]
                _disconnect(request)

    def admit(self, request: socket.socket) -> None:
        """The connection has shown a token. Raises ConnectionError if it was closed before."""
        with self._lock:
            if self._waiting.pop(request, None) is None:
                raise ConnectionError

    def close_request(self, request: Any) -> None:
        with self._lock:
            self._waiting.pop(request, None)
            self._open.discard(request)
            self._lock.notify_all()
        super().close_request(request)

    def disconnect_all(self, until_s: float) -> None:
        """Close all connections and wait for their threads until this time of the monotonic clock."""
        with self._lock:
            for request in self._open:
                _disconnect(request)
            self._lock.wait_for(lambda: not self._open, max(0.0, until_s - time.monotonic()))

    def handle_error(self, request: Any, client_address: Any) -> None:
        """An error of the connection's thread that is none of the peer's is reported, and the server goes on."""
        error = sys.exc_info()[1]
        self.report(f"a request of {client_address[0]} failed ({type(error).__name__}: {error})")


def _disconnect(request: socket.socket) -> None:
    with contextlib.suppress(OSError):  # it may be closed already
        request.shutdown(socket.SHUT_RDWR)


class _Connection(socketserver.BaseRequestHandler):
    """One request and its answer."""

    server: _Http

    def handle(self) -> None:
        limits = self.server.limits
        self.request.settimeout(limits.request_s)
        try:
            # a copy of the socket: the server closes its own
            with self.server.tls.wrap_socket(self.request.dup(), server_side=True) as stream:
                self._answer(stream)
        except (OSError, EOFError):  # of the connection: the peer asks again, if it wants
            return

    def _answer(self, stream: ssl.SSLSocket) -> None:
        """Raises OSError, EOFError."""
        sent, who = False, self.client_address[0]
        try:
            method, target, headers = _request(stream)
            who = f"slot {self.server.answers.slot_of(headers.get('Authorization', ''))}"
            self.server.admit(self.request)
            if headers.get("Content-Length", "0") != "0" or "Transfer-Encoding" in headers:
                raise RefusedError(413, "a request has no body here; send none")
            if method != "GET":
                raise RefusedError(405, f"{method[:20]!r} is not allowed; use GET")
            stream.settimeout(self.server.limits.idle_s)
            with self.server.answers.answer(target) as answer:
                first = next(answer.body)  # an error before it is an answer
                head = "HTTP/1.1 200 OK\r\nContent-Type: application/x-tar\r\nTransfer-Encoding: chunked\r\n"
                if etag := answer.etag():
                    head += f"ETag: {etag}\r\n"
                stream.sendall(f"{head}Connection: close\r\n\r\n".encode("latin-1"))
                sent = True
                _send_chunk(stream, first)
                for piece in answer.body:
                    _send_chunk(stream, piece)
            stream.sendall(b"0\r\n\r\n")
            with contextlib.suppress(OSError):
                stream.unwrap()
        except (RefusedError, StorageError, RuntimeError) as error:
            refused = error if isinstance(error, RefusedError) else RefusedError(502, str(error))
            self.server.report(f"a request of {who} was {'broken off' if sent else 'refused'}: {refused}")
            if not sent:
                _send_refusal(stream, refused)


def _request(stream: ssl.SSLSocket) -> tuple[str, str, Any]:
    """Read a request's head: method, target, headers. Raises RefusedError, EOFError, OSError."""
    head = b""
    while b"\r\n\r\n" not in head:
        if len(head) >= _HEAD_BYTES:
            raise RefusedError(
                431, f"the request's head has more than {_HEAD_BYTES} bytes; send a shorter one"
            )
        data = stream.recv(_HEAD_BYTES - len(head))
        if not data:
            raise EOFError
        head += data
    line, _, rest = head.partition(b"\r\n")
    parts = line.decode("latin-1").split(" ")
    if len(parts) != 3 or not parts[2].startswith("HTTP/1."):
        raise RefusedError(400, "the request is not HTTP/1.1")
    try:
        return parts[0], parts[1], parse_headers(io.BytesIO(rest))
    except HTTPException as error:
        raise RefusedError(400, f"the request's headers cannot be read ({type(error).__name__})") from error


def _send_chunk(stream: ssl.SSLSocket, data: bytes) -> None:
    """Send a chunk of HTTP. The time limit counts for each slice, so a slow reader has time."""
    stream.sendall(b"%x\r\n" % len(data))
    view = memoryview(data)
    for at in range(0, len(view), _SLICE_BYTES):
        stream.sendall(view[at : at + _SLICE_BYTES])
    stream.sendall(b"\r\n")


def _send_refusal(stream: ssl.SSLSocket, refused: RefusedError) -> None:
    body = f"{refused}\n".encode("utf-8", "replace")
    head = f"HTTP/1.1 {refused.status} Refused\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: {len(body)}\r\n"
    stream.sendall(head.encode() + b"Connection: close\r\n\r\n" + body)
    with contextlib.suppress(OSError):
        stream.unwrap()
