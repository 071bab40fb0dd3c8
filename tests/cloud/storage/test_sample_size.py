"""The size of samples is taken from the whole ones at the start of a shard."""

from __future__ import annotations

import io
import tarfile
from typing import Any

import pytest
from storage_fakes import client_error, make_tar

from cloud.storage.errors import StorageError
from cloud.storage.sample_size import bytes_per_sample


class Store:
    def __init__(self, data: bytes) -> None:
        self.data = data

    def get_object(self, Bucket: str, Key: str, Range: str) -> dict[str, Any]:
        if Key != "a.tar":
            raise client_error("NoSuchKey", 404)
        first, last = map(int, Range.removeprefix("bytes=").split("-"))
        return {"Body": io.BytesIO(self.data[first : last + 1])}


def shard(samples: int, size: int) -> bytes:
    made = {f"dir/{n:04d}": {"jpg": bytes(size), "cls.txt": b"7"} for n in range(samples)}
    return make_tar(made, style=tarfile.USTAR_FORMAT)


def test_a_whole_shard():
    # a header and a block of data for each of the two members
    assert bytes_per_sample("s3://b/a.tar", Store(shard(5, 500))) == 4 * 512


@pytest.mark.parametrize("read", [3 * 4 * 512 + extra for extra in (0, 100, 600, 1100, 1600)])
def test_a_sample_that_is_cut_does_not_count(read: int):
    assert bytes_per_sample("s3://b/a.tar", Store(shard(5, 500)), most_bytes=read) == 4 * 512


def test_members_that_a_mac_adds_are_no_samples():
    made = {"a": {"jpg": b"x"}, "._a": {"jpg": b"x"}, "b": {"jpg": b"x"}}
    assert bytes_per_sample("s3://b/a.tar", Store(make_tar(made, style=tarfile.USTAR_FORMAT))) == 3 * 512


@pytest.mark.parametrize("data", [b"", b"x" * 600, shard(3, 5000)[:2048]])
def test_no_whole_sample(data: bytes):
    assert bytes_per_sample("s3://b/a.tar", Store(data)) is None


def test_a_shard_that_is_not_there():
    with pytest.raises(StorageError):
        bytes_per_sample("s3://b/other.tar", Store(b""))
