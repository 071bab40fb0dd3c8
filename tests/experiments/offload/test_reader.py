"""The peers' reader: whatever happens to the server or the link, each sample comes once, in order, with the same tensor."""

from __future__ import annotations

import contextlib
import io
import socket
import threading
import time

import pytest

from cloud.storage.errors import ShardChangedError, TruncatedShardError
from cloud.storage.samples import read_entries
from experiments.offload.plan import Choice, OffloadPlan
from experiments.offload.reader import Patience
from tests.cloud.storage_fakes import make_tar
from tests.experiments.offload.offload_rig import (
    PIPELINE,
    QUICK,
    SEED,
    Server,
    Store,
    mixed_choices,
    reader_of,
    samples,
    through,
)

pytestmark = pytest.mark.processes

STORE = Store(2, 30)
PLAN = OffloadPlan.of(PIPELINE, SEED, mixed_choices(STORE.keys))
URL = STORE.urls[0]


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with Server(tmp_path_factory.mktemp("server"), PLAN, STORE) as made:
        yield made


class Link:
    """Forwards connections to a port: the first ones carry `cuts` bytes from the server, then they are cut or go silent."""

    def __init__(self, port: int, cuts: list[int], *, silent: bool = False):
        self._port, self._cuts, self._silent = port, list(cuts), silent
        self._ended = threading.Event()
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port = self._socket.getsockname()[1]
        self._carrying: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._ended.set()
        self._socket.shutdown(socket.SHUT_RDWR)
        self._threads[0].join()
        for one in self._carrying:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
        self._socket.close()

    def _accept(self):
        with contextlib.suppress(OSError):
            while True:
                client = self._socket.accept()[0]
                server = socket.create_connection(("127.0.0.1", self._port))
                self._carrying += [client, server]
                cut = self._cuts.pop(0) if self._cuts else None
                self._threads += [
                    threading.Thread(target=self._carry, args=(client, server, None)),
                    threading.Thread(target=self._carry, args=(server, client, cut)),
                ]
                for thread in self._threads[-2:]:
                    thread.start()

    def _carry(self, source, target, left):
        with source, contextlib.suppress(OSError):
            while (left is None or left > 0) and (data := source.recv(4096)):
                target.sendall(data if left is None else data[:left])
                left = left if left is None else left - len(data)
            if left is not None and left <= 0 and self._silent:
                self._ended.wait()
            target.shutdown(socket.SHUT_RDWR)


def test_a_link_that_is_cut_anywhere_goes_on_at_its_sample(server: Server) -> None:
    cuts = [20_000, 9000, 33_333, 25_001, 10, 15_000, 40_000, 30_000, 1000, 15_000, 50_001, 21_000]
    quick = Patience(connect_s=1, silent_s=1, sample_s=3, retry_s=0.01)
    passes = tuple(range(6))
    with (
        Link(server.port, cuts) as link,
        contextlib.closing(reader_of(link.port, PLAN, STORE, quick)) as reader,
    ):
        assert through(reader, STORE, passes) == STORE.as_stored(passes)
        assert reader.counts.server_samples + reader.counts.store_samples == 6 * 60
        assert reader.counts.server_samples > 0
        assert reader.counts.fallbacks > 0


def test_a_link_that_goes_silent_is_left_for_the_store_within_ten_seconds(server: Server) -> None:
    patience = Patience()
    assert 2 * patience.connect_s + patience.silent_s < 10
    assert patience.sample_s < 10
    reports: list[str] = []
    quick = Patience(connect_s=1, silent_s=0.5, sample_s=3, retry_s=60)
    with (
        Link(server.port, [40_000], silent=True) as link,
        contextlib.closing(reader_of(link.port, PLAN, STORE, quick, reports)) as reader,
    ):
        assert through(reader, STORE) == STORE.as_stored()
        assert reader.counts.fallbacks == 1
        assert 0 < reader.counts.server_samples < 30
        assert f"from sample {reader.counts.server_samples} on" in reports[0]


def test_the_store_is_read_from_the_place_of_the_sample(server: Server) -> None:
    quick = Patience(connect_s=1, silent_s=0.5, sample_s=3, retry_s=60)
    store = Store(2, 30)
    with (
        Link(server.port, [140_000], silent=True) as link,
        contextlib.closing(reader_of(link.port, PLAN, store, quick)) as reader,
    ):
        found = [sample["__key__"] for sample in reader.read(URL, 0)]
    assert found == store.keys[:30]
    assert reader.counts.server_samples > 16
    assert reader.counts.store_samples > 0
    entries = list(read_entries(URL, io.BytesIO(store.objects["train-000000.tar"])))
    assert store.requests[0]["Range"] == f"bytes={entries[16][0].offset}-"


def test_a_server_that_comes_back_is_used_from_the_next_sample_on(tmp_path) -> None:
    with Server(tmp_path, PLAN, STORE) as server:
        port = server.port
    reader = reader_of(port, PLAN, STORE)
    with contextlib.closing(reader):
        found = []
        reading = reader.read(URL, 0)
        found += [next(reading)["__key__"] for _ in range(5)]
        assert reader.counts.store_samples == 5
        with Server(tmp_path, PLAN, STORE, port=port):
            while not reader._up.is_set():
                time.sleep(0.01)
            found += [sample["__key__"] for sample in reading]
        assert found == STORE.keys[:30]
        assert (reader.counts.store_samples, reader.counts.server_samples) == (5, 25)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"token": "wrong"}, "the token is that of no slot"),
        ({"fingerprint": "0" * 64}, "another fingerprint than imagenet"),
        ({"plan": "0" * 64}, "another plan than the server"),
    ],
)
def test_a_server_that_refuses_costs_no_sample(server: Server, changes, why: str) -> None:
    reports: list[str] = []
    with contextlib.closing(reader_of(server.port, PLAN, STORE, reports=reports, **changes)) as reader:
        assert through(reader, STORE) == STORE.as_stored()
    assert len(reports) == 1
    assert why in reports[0]


def test_a_shard_that_only_the_server_lacks_is_read_from_the_store(tmp_path) -> None:
    more = Store(3, 30)
    plan = OffloadPlan.of(PIPELINE, SEED, {key: Choice(2) for key in more.keys})
    with (
        Server(tmp_path, plan, Store(2, 30)) as server,
        contextlib.closing(reader_of(server.port, plan, more)) as reader,
    ):
        assert through(reader, more) == more.as_stored()
        assert reader.counts.server_samples >= 60
        assert reader.counts.store_samples >= 60


def test_reading_begins_at_any_sample(server: Server) -> None:
    with contextlib.closing(reader_of(server.port, PLAN, STORE)) as reader:
        assert [s["__key__"] for s in reader.read(URL, 0, 28)] == ["0028", "0029"]
        assert list(reader.read(URL, 0, 30)) == []
        assert reader.counts.server_samples == 2


def test_a_shard_that_is_damaged_in_the_store_raises_the_stores_error(tmp_path) -> None:
    store = Store(1, 30)
    store.objects["train-000000.tar"] = make_tar(samples(30))[:60_000]
    with (
        Server(tmp_path, PLAN, store) as server,
        contextlib.closing(reader_of(server.port, PLAN, store)) as reader,
        pytest.raises(TruncatedShardError),
    ):
        list(reader.read(URL, 0))


def test_a_trainer_that_pauses_longer_than_the_server_waits_loses_nothing(tmp_path) -> None:
    store = Store(1, 300)
    plan = OffloadPlan.of(PIPELINE, SEED, {key: Choice(5) for key in store.keys})
    with (
        Server(tmp_path, plan, store, idle_s=0.3) as server,
        contextlib.closing(reader_of(server.port, plan, store)) as reader,
    ):
        reading = reader.read(store.urls[0], 0)
        found = [next(reading)["__key__"]]
        time.sleep(1.0)
        found += [sample["__key__"] for sample in reading]
    assert found == store.keys


def test_the_store_may_not_have_another_version_than_the_server_reads(server: Server) -> None:
    """The server's places in a shard would be those of other samples."""
    changed = Store(2, 30)
    changed.objects = {name: data + bytes(10_240) for name, data in changed.objects.items()}
    quick = Patience(connect_s=1, silent_s=0.5, sample_s=3, retry_s=60)
    with (
        Link(server.port, [40_000], silent=True) as link,
        contextlib.closing(reader_of(link.port, PLAN, changed, quick)) as reader,
        pytest.raises(ShardChangedError),
    ):
        list(reader.read(URL, 0))


def test_a_certificate_that_is_only_trusted_is_not_enough(server: Server) -> None:
    reports: list[str] = []
    with contextlib.closing(reader_of(server.port, PLAN, STORE, QUICK, reports)) as reader:
        reader._certificate = b"the certificate of its issuer"
        assert through(reader, STORE, (0,)) == STORE.as_stored((0,))
    assert reader.counts.server_samples == 0
    assert "lost" in reports[0]


def test_bytes_that_come_too_slowly_are_silence_too(server: Server) -> None:
    """The time of a sample ends also while nothing comes: it is not added to the time of silence."""
    slow = Patience(connect_s=1, silent_s=3600, sample_s=1, retry_s=60)
    with (
        Link(server.port, [40_000], silent=True) as link,
        contextlib.closing(reader_of(link.port, PLAN, STORE, slow)) as reader,
    ):
        assert through(reader, STORE, (0,)) == STORE.as_stored((0,))  # otherwise it waits for an hour
        assert reader.counts.fallbacks == 1
