"""The server by HTTPS: the same tensors, a sentence for each bad request, and limits that hold against strangers."""

from __future__ import annotations

import contextlib
import http.client
import io
import socket
import ssl
import time
from urllib.parse import urlencode

import pytest

from cloud.storage.samples import read_shard
from experiments.offload.certificate import Certificate, client_context, server_context
from experiments.offload.errors import PlanError
from experiments.offload.job import Job
from experiments.offload.plan import Choice, OffloadPlan
from experiments.offload.server import SHARD
from tests.cloud.storage_fakes import FakeStore, make_tar
from tests.experiments.offload.offload_rig import (
    CERTIFICATE,
    PIPELINE,
    SEED,
    TOKEN,
    Server,
    Store,
    mixed_choices,
    reader_of,
    stream,
    through,
)
from tests.experiments.offload.worker_ops import PIPELINE as ACTING

pytestmark = pytest.mark.processes

STORE = Store(2, 30)
PLAN = OffloadPlan.of(PIPELINE, SEED, mixed_choices(STORE.keys))
URL = STORE.urls[0]


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with Server(tmp_path_factory.mktemp("server"), PLAN, STORE, request_s=1.0, waiting=4) as made:
        yield made


def ask(server: Server, *, method="GET", path=SHARD, token=TOKEN, headers=None, body=None, **changes):
    """Status and body of one request."""
    query = {
        "shard": URL,
        "pass": 0,
        "from": 0,
        "fingerprint": PIPELINE.fingerprint(),
        "plan": PLAN.sha256,
        **changes,
    }
    connection = http.client.HTTPSConnection(
        "127.0.0.1", server.port, timeout=20, context=client_context(CERTIFICATE.certificate)
    )
    with contextlib.closing(connection):
        target = f"{path}?{urlencode({k: v for k, v in query.items() if v is not None})}"
        connection.request(method, target, body, {"Authorization": f"Bearer {token}", **(headers or {})})
        response = connection.getresponse()
        return response.status, response.read()


def tls_socket(server: Server) -> ssl.SSLSocket:
    raw = socket.create_connection(("127.0.0.1", server.port), timeout=20)
    return client_context(CERTIFICATE.certificate).wrap_socket(raw)


@pytest.mark.parametrize("cores", [1, 3])
def test_two_passes_through_the_server_give_the_same_tensors(cores: int, tmp_path) -> None:
    with Server(tmp_path, PLAN, STORE, cores=cores) as server:
        reader = reader_of(server.port, PLAN, FakeStore({}))
        with contextlib.closing(reader):
            assert through(reader, STORE) == STORE.as_stored()
        assert reader.counts.server_samples == 2 * len(STORE.keys)
        assert reader.counts.store_samples == reader.counts.fallbacks == 0
        assert server.reports == []


@pytest.mark.parametrize("start", [0, 7, 30])
def test_the_bytes_are_those_of_the_shard_transformed_here(server: Server, start: int) -> None:
    status, body = ask(server, **{"pass": 1, "from": start})
    expected = stream(STORE.objects["train-000000.tar"], PLAN, 1, start, URL)
    assert (status, body == expected) == (200, True)


@pytest.mark.parametrize(
    ("changes", "status", "sentence"),
    [
        ({"token": "wrong"}, 401, "the token is that of no slot"),
        ({"token": ""}, 401, "the token is that of no slot"),
        ({"token": "wrong", "path": "/etc/passwd"}, 401, "the token is that of no slot"),
        ({"fingerprint": "0" * 64}, 409, "another fingerprint than imagenet"),
        ({"plan": "0" * 64}, 409, "another plan than the server"),
        ({"pass": -1}, 400, "pass is '-1', not a whole number"),
        ({"pass": "NaN"}, 400, "pass is 'NaN', not a whole number"),
        ({"pass": "9" * 5000}, 400, "pass is '9999"),
        ({"pass": "²"}, 400, "pass is"),
        ({"from": "1.5"}, 400, "from is '1.5', not a whole number"),
        ({"from": 31}, 416, "the shard has 30 samples, so it cannot be read from 31 on"),
        ({"pass": None}, 400, "needs fingerprint, from, pass, plan, shard, each once"),
        ({"more": 1}, 400, "needs fingerprint, from, pass, plan, shard, each once"),
        ({"shard": "s3://photos/other.tar"}, 403, "none of the experiment's 2 shards"),
        ({"shard": "s3://photos/../photos/train-000000.tar"}, 403, "none of the experiment's 2 shards"),
        ({"shard": "/etc/passwd"}, 403, "none of the experiment's 2 shards"),
        ({"path": "/v1/../etc/passwd"}, 404, "there is nothing at"),
        ({"method": "POST"}, 405, "'POST' is not allowed"),
        ({"method": "POST", "headers": {"Content-Length": str(10**9)}}, 413, "a request has no body"),
        ({"headers": {"Transfer-Encoding": "chunked"}}, 413, "a request has no body"),
    ],
)
def test_a_bad_request_is_answered_with_a_sentence(
    server: Server, changes, status: int, sentence: str
) -> None:
    before = len(server.reports)
    found, body = ask(server, **changes)
    assert found == status
    assert sentence in body.decode()
    assert body.count(b"\n") == 1
    while len(server.reports) == before:  # it is reported after it has been sent
        time.sleep(0.01)
    assert TOKEN not in server.reports[-1]


def test_a_head_without_end_is_refused(server: Server) -> None:
    with tls_socket(server) as stream_:
        stream_.sendall(b"GET / HTTP/1.1\r\nX: " + b"x" * 8192)
        assert b" 431 " in stream_.recv(100)


@pytest.mark.parametrize("head", [b"\r\n\r\n", b"GET\r\n\r\n", b"SSH-2.0-x y z\r\n\r\n"])
def test_what_is_not_http_is_refused(server: Server, head: bytes) -> None:
    with tls_socket(server) as stream_:
        stream_.sendall(head)
        assert b" 400 " in stream_.recv(100)


def test_without_tls_nothing_is_answered(server: Server) -> None:
    with socket.create_connection(("127.0.0.1", server.port), timeout=20) as plain:
        plain.sendall(b"GET /v1/check HTTP/1.1\r\n\r\n")
        with contextlib.suppress(ConnectionError):
            assert b"HTTP" not in plain.recv(1000)


def test_another_certificate_is_not_accepted(server: Server) -> None:
    reports: list[str] = []
    reader = reader_of(server.port, PLAN, STORE, reports=reports, certificate=Certificate.make().certificate)
    with contextlib.closing(reader):
        assert through(reader, STORE, (0,)) == STORE.as_stored((0,))
    assert reader.counts.server_samples == 0
    assert "CERTIFICATE_VERIFY_FAILED" in reports[0]


def test_certificates_that_cannot_be_read_are_a_sentence(tmp_path) -> None:
    with pytest.raises(PlanError, match="certificate cannot be read"):
        client_context("no certificate")
    paths = CERTIFICATE.write(tmp_path)
    assert paths[1].stat().st_mode & 0o777 == 0o600
    paths[0].write_text("no certificate")
    with pytest.raises(PlanError, match="cannot be used"):
        server_context(*paths)


def test_connections_that_only_wait_keep_nobody_out_and_are_closed(server: Server) -> None:
    held = [socket.create_connection(("127.0.0.1", server.port), timeout=20) for _ in range(200)]
    try:
        for _ in range(3):
            assert ask(server)[0] == 200
        assert server.http.connections <= 4 + 2  # those that wait, and what is just being closed
        for one in held:
            with contextlib.suppress(ConnectionError):
                assert one.recv(1) == b""  # closed, the last ones after their time
    finally:
        for one in held:
            one.close()


def test_a_drop_of_bytes_a_second_is_no_request(server: Server) -> None:
    with tls_socket(server) as stream_, contextlib.suppress(OSError):
        while True:
            stream_.sendall(b"G")
            time.sleep(0.2)
    assert ask(server)[0] == 200


BIG = "s3://b/big.tar"
BIG_KEYS = [f"{n:04d}" for n in range(60)]
ACTING_PLAN = OffloadPlan.of(ACTING, SEED, {})
TO_BIG = {"shard": BIG, "fingerprint": ACTING.fingerprint(), "plan": ACTING_PLAN.sha256}


@pytest.fixture
def big_store():
    return FakeStore({"big.tar": make_tar({key: {"bin": bytes(1 << 20)} for key in BIG_KEYS})})


def big_server(folder, store, **limits):
    job = Job("tests.experiments.offload.worker_ops:PIPELINE", ACTING_PLAN, frozenset({BIG}), {"a-0": TOKEN})
    return Server(folder, ACTING_PLAN, store, job=job, memory_bytes=4 << 20, **limits)


@contextlib.contextmanager
def stopped_reader(server: Server):
    """A connection that has asked for the big shard and takes nothing more."""
    query = urlencode({"pass": 0, "from": 0, **TO_BIG})
    with tls_socket(server) as made:
        made.sendall(f"GET {SHARD}?{query} HTTP/1.1\r\nAuthorization: Bearer {TOKEN}\r\n\r\n".encode())
        made.recv(100)
        yield


def test_a_reader_that_stops_holds_back_its_own_stream_only_and_is_disconnected(tmp_path, big_store) -> None:
    with big_server(tmp_path, big_store, streams=2, idle_s=1.0) as server:
        with stopped_reader(server):
            status, body = ask(server, **TO_BIG)
            assert status == 200
            assert [s["__key__"] for s in read_shard("x", io.BytesIO(body))] == BIG_KEYS
            while server.http.connections:
                time.sleep(0.01)
        assert (
            big_store.bodies[0]._file.tell() < 30 << 20
        )  # of 60: what was read ahead, and the buffers of the sockets


def test_more_streams_than_the_limit_are_refused(tmp_path, big_store) -> None:
    with big_server(tmp_path, big_store, streams=1) as server, stopped_reader(server):
        status, body = ask(server, **TO_BIG)
    assert status == 503
    assert b"come back later" in body


def test_a_shard_that_cannot_be_read_is_a_sentence(tmp_path) -> None:
    objects = {
        **STORE.objects,
        "train-000001.tar": b"",
        "train-000000.tar": STORE.objects["train-000000.tar"][:40_000],
    }
    broken = Store(2, 30)
    broken.objects = objects
    with Server(tmp_path, PLAN, broken) as server:
        status, body = ask(server, shard=STORE.urls[1])
        assert (status, b"the tar ends at byte 0" in body) == (502, True)
        with pytest.raises(http.client.IncompleteRead):
            ask(server)
        assert "broken off" in server.reports[-1]


def test_a_member_that_looks_like_the_servers_is_not_sent(tmp_path) -> None:
    store = Store(1, 2)
    store.objects["train-000000.tar"] = make_tar({"a": {"image.op1.npy": b"", "jpg": b"", "cls": b"1"}})
    with Server(tmp_path, PLAN, store) as server:
        status, body = ask(server)
    assert (status, b"has a member image.op1.npy as the server writes" in body) == (422, True)


def test_an_operation_that_fails_there_is_run_by_the_peer(tmp_path) -> None:
    samples = {text: {"txt": text.encode()} for text in ("plain", "raise", "hang", "exit", "print")}
    store = FakeStore({"t.tar": make_tar(samples)})
    plan = OffloadPlan.of(ACTING, SEED, {key: Choice(1) for key in samples})
    job = Job(
        "tests.experiments.offload.worker_ops:PIPELINE", plan, frozenset({"s3://b/t.tar"}), {"a-0": TOKEN}
    )
    with Server(tmp_path, plan, store, job=job, sample_s=1.0) as server:
        fingerprint = ACTING.fingerprint()
        status, body = ask(server, shard="s3://b/t.tar", fingerprint=fingerprint, plan=plan.sha256)
        assert status == 200
        found = {s["__key__"]: s for s in read_shard("x", io.BytesIO(body))}
        assert list(found) == list(samples)
        assert [key for key in found if "txt" in found[key]] == ["raise", "hang", "exit"]
        assert found["plain"]["text.op1.txt"] == b"PLAIN"
        assert len(server.reports) == 3
