"""The opener: every byte once, over any cuts; never two versions of a shard mixed."""

from __future__ import annotations

import pytest
from botocore.exceptions import EndpointConnectionError, ReadTimeoutError
from hypothesis import given, settings
from hypothesis import strategies as st

from cloud.storage.cache import ShardCache
from cloud.storage.errors import (
    BadUrlError,
    KeyMissingError,
    ShardChangedError,
    StoreRefusedError,
    StoreUnreachableError,
)
from cloud.storage.opener import install
from tests.cloud.storage_fakes import DATA, FakeStore, VirtualTime, client_error, make_tar, opener

URL = "s3://b/a.tar"


@settings(deadline=None)
@given(cuts=st.lists(st.integers(0, 30_000), max_size=8), ranges=st.booleans())
def test_delivers_every_byte_once_over_any_cuts(cuts, ranges):
    store = FakeStore({"a.tar": DATA}, cuts, ranges=ranges)
    with opener(store).open(URL) as file:
        assert file.read() == DATA
    assert all(body.closed for body in store.bodies)


def test_stream_resumes_at_its_position_and_counts_bytes():
    store = FakeStore({"a.tar": DATA}, [10_000, 20_000])
    reader = opener(store)
    with reader.open(URL) as file:
        assert file.read() == DATA
    assert [request.get("Range") for request in store.requests] == [None, "bytes=10000-", "bytes=30000-"]
    assert all("IfMatch" in request for request in store.requests[1:])
    assert reader.counter.read().network_bytes == len(DATA)
    assert reader.counter.read().reopens == 2


def test_a_store_that_ignores_ranges_costs_the_bytes_again():
    reader = opener(FakeStore({"a.tar": DATA}, [10_000], ranges=False))
    with reader.open(URL) as file:
        assert file.read() == DATA
    assert reader.counter.read().network_bytes == len(DATA) + 10_000


def test_a_shard_that_changed_underneath_is_an_error():
    store = FakeStore({"a.tar": DATA}, [10_000])
    with opener(store).open(URL) as file:
        file.read(100)
        store.objects["a.tar"] = DATA[::-1]
        with pytest.raises(ShardChangedError, match=r"s3://b/a\.tar changed"):
            file.read()


def test_a_shard_that_changed_between_two_passes_is_an_error():
    store = FakeStore({"a.tar": DATA})
    reader = opener(store)
    reader.open(URL).close()
    store.objects["a.tar"] = DATA[::-1]
    with pytest.raises(ShardChangedError):
        reader.open(URL)


def test_backs_off_to_a_cap_and_gives_up_at_the_deadline():
    time = VirtualTime()
    store = FakeStore({"a.tar": DATA}, [0] * 1000)
    with pytest.raises(
        StoreUnreachableError, match=r"http://store:1 sent no byte of s3://b/a\.tar for \d+ s"
    ):
        opener(store, time, first_wait_s=1, longest_wait_s=8, deadline_s=60).open(URL).read()
    assert time.sleeps[:5] == [1, 2, 4, 8, 8]
    assert 52 <= time.now_s <= 60


def test_progress_resets_the_back_off():
    time = VirtualTime()
    store = FakeStore({"a.tar": DATA}, [10, 0, 0, 10, 0])
    with opener(store, time, first_wait_s=1, deadline_s=10).open(URL) as file:
        assert file.read() == DATA
    assert time.sleeps == [1, 2, 4, 1, 2]


@pytest.mark.parametrize(
    ("code", "status", "expected"),
    [
        ("SignatureDoesNotMatch", 403, StoreRefusedError),
        ("NoSuchKey", 404, KeyMissingError),
        ("InvalidRange", 416, ShardChangedError),
    ],
)
def test_final_errors_are_raised_without_retry(code, status, expected):
    time = VirtualTime()
    store = FakeStore({"a.tar": DATA})
    store.errors.append(client_error(code, status))
    with pytest.raises(expected, match=r"s3://b/a\.tar"):
        opener(store, time).open(URL)
    assert time.sleeps == []


def test_a_failing_store_is_asked_again():
    store = FakeStore({"a.tar": DATA})
    store.errors += [
        client_error("SlowDown", 503),
        client_error("InternalError", 500),
        EndpointConnectionError(endpoint_url="http://store:1"),  # it is being started again
        ReadTimeoutError(endpoint_url="http://store:1"),
    ]
    with opener(store).open(URL) as file:
        assert file.read() == DATA


def test_the_second_pass_comes_from_the_cache(tmp_path):
    store = FakeStore({"a.tar": DATA}, [999])
    reader = opener(store, cache=ShardCache(tmp_path, 1 << 20))
    for _ in range(2):
        with reader.open(URL) as file:
            assert file.read() == DATA
    counts = reader.counter.read()
    assert (counts.network_bytes, counts.cache_bytes) == (len(DATA), len(DATA))
    assert len(store.requests) == 2  # one and its reopening


def test_a_new_process_uses_an_old_cache_only_for_the_same_version(tmp_path):
    store = FakeStore({"a.tar": DATA})
    for data, cached in ((DATA, 0), (DATA, len(DATA)), (DATA[::-1], 0)):
        store.objects["a.tar"] = data
        cache = ShardCache(tmp_path, 1 << 20)
        reader = opener(store, cache=cache)
        with reader.open(URL) as file:
            assert file.read() == data
        cache.close()
        assert reader.counter.read().cache_bytes == cached


def test_a_half_read_shard_does_not_enter_the_cache(tmp_path):
    cache = ShardCache(tmp_path, 1 << 20)
    reader = opener(FakeStore({"a.tar": DATA}), cache=cache)
    with reader.open(URL) as file:
        file.read(10_000)
    assert cache.used_bytes == 0
    with reader.open(URL) as file:
        assert file.read() == DATA


def test_not_an_s3_url():
    with pytest.raises(BadUrlError, match="s3://bucket/key"):
        opener(FakeStore({})).open("http://b/a.tar")


def test_webdataset_reads_through_it(monkeypatch):
    from webdataset.gopen import gopen_schemes
    from webdataset.tariterators import tarfile_samples

    monkeypatch.setitem(gopen_schemes, "s3", None)
    samples = {f"{n:04d}": {"cls": b"%d" % n} for n in range(80)}
    install(opener(FakeStore({"a.tar": make_tar(samples)}, [5_000] * 5)))
    assert [s["__key__"] for s in tarfile_samples([{"url": URL}])] == list(samples)
