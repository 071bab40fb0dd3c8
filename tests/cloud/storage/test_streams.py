"""Several streams change when bytes arrive, and nothing else: not the samples, their order, the cursor or the errors."""

from __future__ import annotations

import io
import itertools
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cloud.storage.cache import ShardCache
from cloud.storage.errors import (
    CorruptShardError,
    KeyMissingError,
    StoreUnreachableError,
    TruncatedShardError,
)
from cloud.storage.link import Link, LinkedClient, linked
from cloud.storage.opener import ShardOpener
from cloud.storage.samples import Cursor, SampleReader
from cloud.storage.streams import Streams
from tests.cloud.storage_fakes import FakeStore, make_tar, opener

NAMES = "abcdefgh"
OBJECTS = {
    f"{name}.tar": make_tar({f"{name}{n}": {"cls": b"%d" % n, "png": bytes([n]) * 900} for n in range(5)})
    for name in NAMES
}
URLS = tuple(f"s3://b/{name}" for name in OBJECTS)
BLOCK = 10_240


class Store(FakeStore):
    """A FakeStore for several threads."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._lock = threading.Lock()

    def get_object(self, **request: Any) -> dict[str, Any]:
        with self._lock:
            return super().get_object(**request)


def stream_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("stream s3://")]


def wait_until(holds: Callable[[], bool]) -> None:
    until_s = time.monotonic() + 10
    while not holds():
        assert time.monotonic() < until_s
        time.sleep(0.005)


@pytest.fixture(autouse=True)
def no_thread_stays() -> Iterator[None]:
    yield
    wait_until(lambda: not stream_threads())


def seen(source: SampleReader, count: int) -> list[tuple[Any, Cursor]]:
    return [(sample, source.cursor) for sample in itertools.islice(source, count)]


def reader(shards: Sequence[str], open_shard: Callable[[str], BinaryIO], **options: Any) -> SampleReader:
    return SampleReader(shards, open_shard, seed=2, **options)


@settings(deadline=None, max_examples=25)
@given(
    shards=st.lists(st.sampled_from(URLS), min_size=1, max_size=8, unique=True),
    cuts=st.lists(st.integers(0, 2 * BLOCK), max_size=12),
    streams=st.integers(2, 5),
    shuffle=st.sampled_from([0, 3]),
    first=st.integers(0, 60),
    share=st.lists(st.sampled_from(URLS), min_size=1, max_size=8, unique=True),
    at=st.integers(0, 40),
)
def test_samples_order_and_cursor_are_those_of_one_stream(shards, cuts, streams, shuffle, first, share, at):
    """Over any cuts, from any resume point, and with a share that changes after `at` samples."""

    def read(count_streams: int, store: FakeStore) -> list[tuple[Any, Cursor]]:
        source = reader(shards, opener(store).open, shuffle=shuffle, streams=count_streams)
        found = seen(source, first)
        cursor = source.cursor
        source.close()
        source = reader(shards, opener(store).open, shuffle=shuffle, streams=count_streams, cursor=cursor)
        found += seen(source, at)
        source.set_shards(share)
        found += seen(source, 60)
        source.close()
        return found

    assert read(streams, Store(OBJECTS, cuts)) == read(1, Store(OBJECTS))


@pytest.mark.parametrize("streams", [1, 2])
def test_the_next_shard_is_downloaded_while_the_buffered_samples_of_one_are_used(streams):
    """No sooner with one stream. All five samples of a shard are in the buffer before the first one is returned."""
    store = Store(OBJECTS)
    source = reader(URLS, opener(store).open, shuffle=100, streams=streams)
    seen(source, 1)
    wait_until(lambda: len(store.requests) == 1 + streams)
    first, *ahead = [request["Key"] for request in store.requests]
    assert {sample["__url__"] for sample, _ in seen(source, 4)} == {f"s3://b/{first}"}
    assert next(source)["__url__"] == f"s3://b/{ahead[0]}"
    source.close()


def test_one_stream_downloads_one_shard_at_a_time():
    """The next one begins when the one before has been read to its end."""
    data = {name: name.encode() * (8 << 18) for name in "ab"}
    opened: list[str] = []

    def open_shard(name: str) -> BinaryIO:
        opened.append(name)
        return io.BytesIO(data[name])

    streams = Streams(open_shard, 1)
    with streams.open("a", ["b"]) as file:
        assert file.read() == data["a"]
        assert opened == ["a"]
    streams.begin(["b"])
    wait_until(lambda: streams.most_held_bytes == len(data["b"]))
    with streams.open("b", []) as file:
        assert file.read() == data["b"]
    assert opened == ["a", "b"]
    streams.close()


def read_all(source: SampleReader) -> tuple[list[str], Exception]:
    keys: list[str] = []
    with pytest.raises(Exception) as caught:  # noqa: PT011 - compared by the caller
        keys.extend(sample["__key__"] for sample in itertools.islice(source, 200))
    source.close()
    return keys, caught.value


@pytest.mark.parametrize("bad", [0, 2, 5])
@pytest.mark.parametrize("kind", ["missing", "cut off", "damaged"])
def test_an_error_of_a_stream_is_raised_at_its_sample(bad, kind):
    order = [sample["__url__"] for sample in itertools.islice(reader(URLS, opener(Store(OBJECTS)).open), 40)]
    name = list(dict.fromkeys(order))[bad].removeprefix("s3://b/")
    objects = dict(OBJECTS)
    if kind == "missing":
        del objects[name]
    elif kind == "cut off":
        objects[name] = objects[name][:4000]
    else:
        objects[name] = objects[name][:2048] + b"x" * 512 + objects[name][2560:]
    results = [read_all(reader(URLS, opener(Store(objects)).open, streams=streams)) for streams in (1, 2, 4)]
    assert [(keys, str(error)) for keys, error in results] == [(results[0][0], str(results[0][1]))] * 3
    assert len(results[0][0]) in range(5 * bad, 5 * bad + 5)
    kinds = {"missing": KeyMissingError, "cut off": TruncatedShardError, "damaged": CorruptShardError}
    assert all(type(error) is kinds[kind] for _, error in results)


def test_every_byte_is_counted_once_and_a_dropped_download_is_counted_too():
    store = Store(OBJECTS)
    opened = opener(store)

    def requested_bytes() -> int:
        return sum(len(OBJECTS[request["Key"]]) for request in store.requests)

    source = reader(URLS[:4], opened.open, streams=4)
    seen(source, 1)
    wait_until(lambda: opened.counter.read().network_bytes == sum(len(OBJECTS[f"{n}.tar"]) for n in "abcd"))
    source.set_shards(URLS[4:])
    seen(source, 4)
    assert {sample["__url__"] for sample, _ in seen(source, 20)} == set(URLS[4:])
    # the last shards of the pass are followed by the first ones of the next pass
    wait_until(lambda: opened.counter.read().network_bytes == requested_bytes())
    source.close()
    names = [request["Key"][0] for request in store.requests]
    assert sorted(names[:4]) == list("abcd")
    assert set(names[4:]) == set("efgh")
    assert (opened.counter.read().network_bytes, opened.counter.read().reopens) == (requested_bytes(), 0)


def test_a_shard_is_never_downloaded_twice_at_once(tmp_path: Path):
    """With a cache, a share of two shards costs one pass, however many streams there are."""
    store = Store(OBJECTS)
    cached = opener(store, cache=ShardCache(tmp_path, 1 << 20))
    source = reader(URLS[:2], cached.open, streams=5)
    seen(source, 50)
    source.close()
    assert len(store.requests) == 2
    assert cached.counter.read().network_bytes == sum(len(OBJECTS[f"{name}.tar"]) for name in "ab")
    assert cached.cache is not None
    cached.cache.close()


def test_memory_is_bounded_and_the_next_shard_has_precedence():
    size = 40 * (1 << 18)
    data = dict.fromkeys("abcd", bytes(size))
    streams = Streams(lambda name: io.BytesIO(data[name]), 4, limit_bytes=8 << 18)
    with streams.open("a", ["b", "c", "d"]) as file:
        wait_until(lambda: streams.most_held_bytes >= 8 << 18)
        assert len(file.read()) == size
    for name, following in (("b", "cd"), ("c", "d"), ("d", "")):
        with streams.open(name, list(following)) as file:
            assert file.read() == data[name]
    assert streams.most_held_bytes <= (8 + 4) << 18
    streams.close()


def test_downloads_are_closed_with_the_reader():
    store = Store(OBJECTS)
    source = reader(URLS, opener(store).open, streams=4)
    seen(source, 2)
    source.close()
    assert all(body.closed for body in store.bodies)
    assert not stream_threads()


def test_a_store_that_fails_while_nobody_waits_is_asked_again_when_the_shard_is_read():
    calls: list[str] = []
    failed = threading.Event()

    def open_shard(name: str) -> BinaryIO:
        calls.append(name)
        if name == "b" and calls.count("b") == 1:
            failed.set()
            raise StoreUnreachableError("no answer for 120 s")
        return io.BytesIO(name.encode() * 1000)

    streams = Streams(open_shard, 2)
    with streams.open("a", ["b"]) as file:
        assert failed.wait(10)
        assert file.read() == b"a" * 1000
    with streams.open("b", []) as file:
        assert file.read() == b"b" * 1000
    assert calls.count("b") == 2
    streams.close()


def test_a_store_that_stays_away_is_an_error():
    def open_shard(name: str) -> BinaryIO:
        if name == "b":
            raise StoreUnreachableError("no answer for 120 s")
        return io.BytesIO(b"a")

    streams = Streams(open_shard, 2)
    streams.open("a", ["b"]).close()
    with pytest.raises(StoreUnreachableError, match="no answer"):
        streams.open("b", [])
    streams.close()


def test_four_streams_over_a_long_path_wait_for_their_round_trips_at_the_same_time():
    """The first four requests go on only once all of them wait; benchmarks/read_streams.py measures what that gains."""
    together, asked = threading.Barrier(4), itertools.count()

    def sleep(_: float) -> None:
        if next(asked) < 4:
            together.wait(30)

    store = Store(OBJECTS)
    client = LinkedClient(store, Link(8, 10), clock=lambda: 0.0, sleep=sleep)
    four = reader(URLS, ShardOpener(lambda: client).open, streams=4)
    one = reader(URLS, ShardOpener(linked(store, Link(8000, 0))).open, streams=1)
    assert seen(four, 40) == seen(one, 40)
    four.close()
    one.close()
