"""The disk cache: bounded, by use, whole files only, and off when the disk is full."""

from __future__ import annotations

import errno
import io

import pytest

from cloud.storage.cache import ShardCache
from cloud.storage.errors import CacheInUseError
from cloud.storage.url import S3Url
from tests.cloud.storage_fakes import DATA, FakeStore, opener


def url(name):
    return S3Url("b", name)


def put(cache, name, data):
    writer = cache.writer(url(name), "e", len(data))
    if writer is not None:
        writer.write(data)


def held(cache, *names):
    found = ""
    for name in names:
        file = cache.open(url(name), "e")
        if file is not None:
            file.close()
            found += name
    return found


def test_the_least_recently_used_goes_first(tmp_path):
    cache = ShardCache(tmp_path, 30)
    for name in "abc":
        put(cache, name, b"x" * 10)
    assert held(cache, "a") == "a"
    put(cache, "d", b"x" * 10)
    assert held(cache, "a", "b", "c", "d") == "acd"
    assert cache.used_bytes == 30
    assert sum(p.stat().st_size for p in tmp_path.glob("*.tar")) == 30


def test_room_is_counted_while_files_are_written(tmp_path):
    cache = ShardCache(tmp_path, 25)
    first = cache.writer(url("a"), "e", 10)
    assert first is not None
    second = cache.writer(url("b"), "e", 10)
    assert cache.writer(url("c"), "e", 10) is None  # both are still being written: none may go
    first.abandon()
    third = cache.writer(url("c"), "e", 10)
    assert second is not None
    assert third is not None
    second.abandon()
    third.abandon()
    assert cache.used_bytes == 0
    assert list(tmp_path.glob("*.part")) == []


def test_an_object_larger_than_the_cache_is_not_kept(tmp_path):
    assert ShardCache(tmp_path, 10).writer(url("a"), "e", 11) is None


def test_another_version_is_another_object(tmp_path):
    cache = ShardCache(tmp_path, 100)
    put(cache, "a", b"x")
    assert cache.open(url("a"), "other") is None


def test_a_restart_keeps_files_and_their_order_but_not_unfinished_ones(tmp_path):
    cache = ShardCache(tmp_path, 20)
    put(cache, "a", b"x" * 10)
    put(cache, "b", b"x" * 10)
    half = cache.writer(url("c"), "e", 5)
    assert half is not None
    half.write(b"x")
    half._file.close()  # as if the process had died here
    cache.close()
    again = ShardCache(tmp_path, 20)
    assert held(again, "a", "b") == "b"  # a went to make room for c
    assert list(tmp_path.glob("*.part")) == []


def test_a_smaller_limit_evicts_at_the_start(tmp_path):
    cache = ShardCache(tmp_path, 20)
    put(cache, "a", b"x" * 10)
    put(cache, "b", b"x" * 10)
    cache.close()
    assert ShardCache(tmp_path, 10).used_bytes == 10


def test_two_users_of_one_folder_are_refused(tmp_path):
    cache = ShardCache(tmp_path, 20)
    with pytest.raises(CacheInUseError, match="a folder of its own"):
        ShardCache(tmp_path, 20)
    cache.close()
    ShardCache(tmp_path, 20).close()


class _FullDisk(io.RawIOBase):
    """Takes 1000 bytes, as a disk that fills up."""

    def __init__(self):
        super().__init__()
        self.left = 1000

    def writable(self):
        return True

    def write(self, data):
        self.left -= len(data)
        if self.left < 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        return len(data)


def test_a_full_disk_switches_the_cache_off_and_streaming_goes_on(tmp_path):
    warnings = []
    cache = ShardCache(tmp_path, 1 << 20, warn=warnings.append, create=lambda path: _FullDisk())
    reader = opener(FakeStore({"a.tar": DATA, "b.tar": DATA[::-1]}), cache=cache)
    for name, data in (("a", DATA), ("b", DATA[::-1]), ("a", DATA)):
        with reader.open(f"s3://b/{name}.tar") as file:
            assert file.read() == data
    assert cache.off_because == "No space left on device"
    assert len(warnings) == 1
    assert "the shard cache is off (No space left on device)" in warnings[0]
    counts = reader.counter.read()
    assert (counts.network_bytes, counts.cache_bytes) == (3 * len(DATA), 0)
    assert cache.used_bytes == 0


def test_a_folder_that_cannot_be_made_switches_it_off(tmp_path):
    (tmp_path / "file").touch()
    warnings = []
    cache = ShardCache(tmp_path / "file" / "cache", 10, warn=warnings.append)
    assert cache.off_because
    assert len(warnings) == 1


def test_files_removed_by_hand_are_misses(tmp_path):
    cache = ShardCache(tmp_path, 100)
    put(cache, "a", b"x")
    for path in tmp_path.glob("*.tar"):
        path.unlink()
    assert held(cache, "a") == ""
    assert cache.used_bytes == 0
