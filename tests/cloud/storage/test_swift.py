"""The real embedded store: its answers, cut connections, dead processes, and that nothing is left."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from cloud.storage.cache import ShardCache
from cloud.storage.client import make_client
from cloud.storage.digits import decode_label, make_bucket, make_digits
from cloud.storage.errors import (
    BucketMissingError,
    EmbeddedStoreError,
    PortTakenError,
    ShardChangedError,
    StoreRefusedError,
    TruncatedShardError,
)
from cloud.storage.opener import RetryPolicy, ShardOpener
from cloud.storage.samples import SampleReader, read_shard
from cloud.storage.swift import SwiftServer
from cloud.storage.swift_environment import swift_environment

pytestmark = pytest.mark.processes


@pytest.fixture(scope="module")
def environment():
    """Made once on this machine: the store's own environment, wherever conftest keeps it."""
    with pytest.MonkeyPatch.context() as patch:
        if "ORCH_SWIFT_VENV" not in os.environ:
            cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "orch-tests"
            patch.setenv("ORCH_SWIFT_VENV", str(cache / "swift-venv"))
        return swift_environment()


@pytest.fixture(scope="module")
def store(environment, tmp_path_factory):
    with SwiftServer(tmp_path_factory.mktemp("store"), environment=environment) as server:
        yield server


@pytest.fixture(scope="module")
def client(store):
    with contextlib.closing(client_of(store)) as made:
        yield made


@pytest.fixture(scope="module")
def shards(store, client, tmp_path_factory):
    folder = tmp_path_factory.mktemp("shards")
    made = make_digits(
        4, "s3://digits", client, folder=folder, samples_per_shard=100, endpoint=store.endpoint
    )
    return [f"s3://digits/{name}" for name in made.train]


def client_of(store, endpoint="", secret=""):
    keys = store.credentials
    return make_client(
        endpoint or store.endpoint,
        access_key=keys.access_key,
        secret_key=secret or keys.secret_key,
        attempts=1,
    )


def test_range_reads(client, shards):
    answer = client.get_object(Bucket="digits", Key="train-000000.tar", Range="bytes=512-1023")
    assert answer["ResponseMetadata"]["HTTPStatusCode"] == 206
    assert len(answer["Body"].read()) == 512


def test_a_wrong_secret_is_refused_and_not_repeated_in_the_message(store, shards):
    with contextlib.closing(client_of(store, secret="hunter2")) as wrong:
        with pytest.raises(StoreRefusedError, match=rf"{store.endpoint} refused our credentials") as caught:
            ShardOpener(lambda: wrong, endpoint=store.endpoint).open(shards[0])
        with pytest.raises(StoreRefusedError):
            make_bucket(wrong, "other", endpoint=store.endpoint)
    assert "hunter2" not in str(caught.value)
    assert store.credentials.secret_key not in repr(store.credentials)
    assert (store.folder / "credentials.json").stat().st_mode & 0o777 == 0o600


def test_a_missing_bucket_is_named(store, client):
    with pytest.raises(BucketMissingError, match="'nowhere'"):
        ShardOpener(lambda: client, endpoint=store.endpoint).open("s3://nowhere/a.tar")


def test_no_sample_is_lost_over_connections_that_are_cut(store, shards, tmp_path):
    with CuttingProxy(store.port, carry_bytes=150_000) as proxy:
        with contextlib.closing(client_of(store, proxy.endpoint)) as client:
            opener = ShardOpener(
                lambda: client,
                endpoint=proxy.endpoint,
                cache=ShardCache(tmp_path, 1 << 24),
                retry=RetryPolicy(first_wait_s=0.01),
            )
            reader = SampleReader(shards, opener, seed=1)
            passes = [[next(reader) for _ in range(400)] for _ in range(2)]
        assert proxy.cuts >= 4
    assert [len({s["__key__"] for s in one}) for one in passes] == [400, 400]
    assert all(0 <= decode_label(sample["cls"]) <= 9 for sample in passes[0])
    counts = opener.counter.read()
    assert counts.reopens >= 4
    size = counts.cache_bytes  # the whole second pass
    assert size <= counts.network_bytes < 1.3 * size


def test_a_shard_that_changes_or_was_uploaded_in_part_is_an_error(store, client, shards):
    opener = ShardOpener(lambda: client, endpoint=store.endpoint, retry=RetryPolicy(first_wait_s=0.01))
    data = client.get_object(Bucket="digits", Key="train-000003.tar")["Body"].read()
    client.put_object(Bucket="digits", Key="cut.tar", Body=data[:100_000])
    with pytest.raises(TruncatedShardError, match=r"s3://digits/cut\.tar: the tar ends at byte 100000"):
        list(read_shard("s3://digits/cut.tar", opener.open("s3://digits/cut.tar")))
    client.put_object(Bucket="digits", Key="changing.tar", Body=data)
    opener.open("s3://digits/changing.tar").close()
    client.put_object(Bucket="digits", Key="changing.tar", Body=data + bytes(512))
    with pytest.raises(ShardChangedError, match="changed while it was read"):
        opener.open("s3://digits/changing.tar")


@pytest.mark.parametrize("name", ["object", "proxy"])
def test_a_killed_server_is_started_again_while_a_reader_waits(store, client, shards, name):
    opener = ShardOpener(lambda: client, endpoint=store.endpoint, retry=RetryPolicy(first_wait_s=0.05))
    before = dict(store.pids)
    os.kill(before[name], signal.SIGKILL)
    watcher = threading.Timer(0.5, store.supervise)
    watcher.start()
    with opener.open(shards[1]) as file:
        assert len(list(read_shard(shards[1], file))) == 100
    watcher.join()
    store.wait_ready()
    assert store.supervise() == ()
    assert {n for n in before if store.pids[n] != before[n]} == {name}


def test_a_folder_in_use_and_a_port_that_is_taken(store, environment, tmp_path):
    with pytest.raises(EmbeddedStoreError, match="another embedded store runs in this folder"):
        SwiftServer(store.folder, environment=environment).start()
    with pytest.raises(PortTakenError, match=rf"127\.0\.0\.1:{store.port} is in use by another program"):
        SwiftServer(tmp_path, port=store.port, environment=environment).start()
    assert store.health()


def test_data_and_credentials_survive_a_restart_and_nothing_is_left(environment, tmp_path):
    server = SwiftServer(tmp_path / "store", environment=environment)
    secrets = []
    for start in range(2):
        with server, contextlib.closing(client_of(server)) as client:
            if start == 0:
                make_bucket(client, "kept")
                client.put_object(Bucket="kept", Key="k", Body=b"kept")
            assert client.get_object(Bucket="kept", Key="k")["Body"].read() == b"kept"
            secrets.append(server.credentials.secret_key)
            pids = list(server.pids.values())
        assert not any(Path(f"/proc/{pid}").exists() for pid in pids)
    assert secrets[0] == secrets[1]
    logs = "".join(path.read_text() for path in (tmp_path / "store").glob("*.log"))
    assert secrets[0] not in logs


def test_the_store_dies_with_a_killed_owner(environment, tmp_path):
    program = (
        "import sys, time; from pathlib import Path; from cloud.storage.swift import SwiftServer\n"
        "s = SwiftServer(Path(sys.argv[1]), environment=Path(sys.argv[2])); s.start()\n"
        "print(*s.pids.values(), flush=True); time.sleep(60)"
    )
    owner = subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path), str(environment)],
        stdout=subprocess.PIPE,
        cwd=Path(__file__).parents[3],
    )
    with owner:
        assert owner.stdout is not None
        pids = [int(pid) for pid in owner.stdout.readline().split()]
        assert len(pids) == 4
        owner.kill()
    deadline = time.monotonic() + 10
    while any(_alive(pid) for pid in pids):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def _alive(pid: int) -> bool:
    try:
        # A container without an init that reaps keeps the dead as zombies.
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


class CuttingProxy:
    """A TCP proxy on loopback that resets a connection after it carried so many bytes to the client."""

    def __init__(self, port: int, carry_bytes: int) -> None:
        self._port = port
        self._carry_bytes = carry_bytes
        self.cuts = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._threads: list[threading.Thread] = []
        self._open: list[socket.socket] = []
        self.endpoint = f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    def __enter__(self):
        self._start(self._accept)
        return self

    def __exit__(self, *_):
        self._listener.shutdown(socket.SHUT_RDWR)
        for end in self._open:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(5)
        for end in (self._listener, *self._open):
            end.close()

    def _start(self, target, *arguments):
        thread = threading.Thread(target=target, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self):
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                far = socket.create_connection(("127.0.0.1", self._port))
                self._open += [near, far]
                self._start(self._carry, near, far, None)
                self._start(self._carry, far, near, self._carry_bytes)

    def _carry(self, source, target, limit):
        carried = 0
        with contextlib.suppress(OSError):
            while data := source.recv(8192):
                carried += len(data)
                if limit is not None and carried > limit:
                    self.cuts += 1
                    break
                target.sendall(data)
        for end in (source, target):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
