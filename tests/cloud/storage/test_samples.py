"""Samples: damage is never skipped; passes are whole; a cursor goes on exactly where it was."""

from __future__ import annotations

import io
import itertools
import tarfile

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cloud.storage.errors import BadUrlError, CorruptShardError, TruncatedShardError
from cloud.storage.samples import Cursor, SampleReader, read_shard
from tests.cloud.storage_fakes import make_tar

SAMPLES = {f"{n:04d}": {"png": b"p" * (n * 37 % 1500), "cls": b"%d" % n} for n in range(12)}
TAR = make_tar(SAMPLES)


def read(data, name="s3://b/x.tar"):
    return list(read_shard(name, io.BytesIO(data)))


@pytest.mark.parametrize("style", [tarfile.PAX_FORMAT, tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT])
def test_reads_what_was_written(style):
    long = (
        {("d" * 90) + "/" + ("k" * 120): {"a.txt": b"1", "b": b"2"}} if style != tarfile.USTAR_FORMAT else {}
    )
    samples = {**SAMPLES, **long}
    got = read(make_tar(samples, style=style))
    assert {s["__key__"]: {k: v for k, v in s.items() if k[0] != "_"} for s in got} == samples
    assert {s["__url__"] for s in got} == {"s3://b/x.tar"}


def end_mark():
    """Where the end-of-archive mark begins: its first zero block is all that a reader needs."""
    with tarfile.open(fileobj=io.BytesIO(TAR)) as tar:
        tar.getmembers()
        return tar.offset - 512 if TAR[tar.offset - 512 : tar.offset] == bytes(512) else tar.offset


@settings(deadline=None, max_examples=200)
@given(cut=st.integers(0, end_mark() + 511))
def test_a_tar_cut_anywhere_is_truncated_and_gives_only_whole_samples(cut):
    got = []
    with pytest.raises(TruncatedShardError) as caught:
        got.extend(read_shard("s3://b/x.tar", io.BytesIO(TAR[:cut])))  # keeps what came before the error
    assert caught.value.shard == "s3://b/x.tar"
    assert caught.value.offset == cut
    for sample in got:
        assert SAMPLES[sample["__key__"]] == {"png": sample["png"], "cls": sample["cls"]}


def test_a_broken_header_in_the_middle_is_corrupt_and_says_where():
    with tarfile.open(fileobj=io.BytesIO(make_tar(SAMPLES, style=tarfile.USTAR_FORMAT))) as tar:
        at = tar.getmembers()[5].offset
    broken = bytearray(make_tar(SAMPLES, style=tarfile.USTAR_FORMAT))
    broken[at + 5] ^= 0xFF
    with pytest.raises(CorruptShardError, match=rf"x\.tar at byte {at}: not a tar header") as caught:
        read(bytes(broken))
    assert caught.value.offset == at


def test_non_tar_is_corrupt():
    with pytest.raises(CorruptShardError):
        read(b"<html>not found</html>" * 1000)


def test_duplicate_member_is_corrupt():
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w") as tar:
        for _ in range(2):
            tar.addfile(tarfile.TarInfo("a.cls"))
    with pytest.raises(CorruptShardError, match=r"a\.cls occurs twice"):
        read(target.getvalue())


def members(*names):
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for name in names:
            tar.addfile(tarfile.TarInfo(name))
    return target.getvalue()


def header_of(data, number):
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        return tar.getmembers()[number].offset


def test_a_zeroed_header_in_the_middle_is_corrupt():
    data = make_tar(SAMPLES, style=tarfile.USTAR_FORMAT)
    at = header_of(data, 7)
    with pytest.raises(CorruptShardError, match="data follows the end-of-archive mark"):
        read(data[:at] + bytes(512) + data[at + 512 :])


def test_two_tars_in_one_file_are_corrupt():
    with pytest.raises(CorruptShardError, match="data follows the end-of-archive mark"):
        read(TAR + TAR)


def test_names_and_extensions_are_kept_as_they_are():
    got = read(members("x/a.JPG", "x/a.cls.txt", "x/.hidden", "x/b.JPG", "x/plain", "x/c.", ".a.jpg"))
    assert [sorted(sample) for sample in got] == [
        ["JPG", "__key__", "__url__", "cls.txt"],
        ["JPG", "__key__", "__url__"],
    ]
    assert [sample["__key__"] for sample in got] == ["x/a", "x/b"]


def with_webdataset(data):
    """What webdataset's own iterator makes of a shard, with its strictest settings."""
    from webdataset.handlers import reraise_exception
    from webdataset.tariterators import group_by_keys, tar_file_expander

    source = [{"url": "s3://b/x.tar", "stream": io.BytesIO(data)}]
    return list(group_by_keys(tar_file_expander(source, handler=reraise_exception)))


def test_webdataset_alone_loses_the_rest_of_a_shard_that_was_cut_or_damaged_between_two_members():
    """Why `read_shard` has a tar reader of its own; if this fails, a newer webdataset may have made it unnecessary."""
    data = make_tar(SAMPLES, style=tarfile.USTAR_FORMAT)
    assert len(with_webdataset(data)) == len(SAMPLES)
    at = header_of(data, 10)
    damaged = bytearray(data)
    damaged[at + 5] ^= 0xFF
    zeroed = data[:at] + bytes(512) + data[at + 512 :]
    for bad in (data[:at], data[: at + 100], bytes(damaged), zeroed):
        assert len(with_webdataset(bad)) == 5
        with pytest.raises((TruncatedShardError, CorruptShardError)):
            read(bad)


def test_webdataset_alone_alters_samples():
    """Why `read_shard` gives `group_by_keys` a function for names and keeps the case of extensions."""
    got = with_webdataset(members("x/a.JPG", "x/.hidden.jpg", "x/a.cls"))
    assert [sample["__key__"] for sample in got] == ["x/a", "x/", "x/a"]  # one sample has become three
    assert "jpg" in got[0]
    assert [sample["__key__"] for sample in read(members("x/a.JPG", "x/.hidden.jpg", "x/a.cls"))] == ["x/a"]


SHARDS = {
    f"s3://b/{name}.tar": make_tar({f"{name}{n}": {"cls": b"%d" % n} for n in range(5)}) for name in "abcd"
}


def reader(shards=tuple(SHARDS), **options):
    return SampleReader(shards, lambda name: io.BytesIO(SHARDS[name]), **options)


def keys(source, count):
    return [sample["__key__"] for sample in itertools.islice(source, count)]


def test_each_pass_gives_every_sample_once_in_another_order():
    source = reader(seed=3)
    passes = [keys(source, 20) for _ in range(3)]
    assert all(sorted(one) == sorted(passes[0]) and len(set(one)) == 20 for one in passes)
    assert passes[0] != passes[1] != passes[2]
    assert keys(reader(seed=3), 60) == list(itertools.chain(*passes))
    assert keys(reader(seed=4), 20) != passes[0]


def test_a_buffer_mixes_within_a_shard():
    assert sorted(keys(reader(shuffle=4), 20)) == sorted(keys(reader(), 20))
    assert keys(reader(shuffle=4), 20) != keys(reader(), 20)


@settings(deadline=None)
@given(first=st.integers(0, 50), shuffle=st.sampled_from([0, 3]), seed=st.integers(0, 5))
def test_cursor_continues_with_the_next_sample(first, shuffle, seed):
    whole = keys(reader(seed=seed, shuffle=shuffle), first + 30)
    source = reader(seed=seed, shuffle=shuffle)
    keys(source, first)
    again = reader(seed=seed, shuffle=shuffle, cursor=source.cursor)
    assert keys(again, 30) == whole[first:]


def test_a_changed_share_holds_from_the_next_shard():
    source = reader(["s3://b/a.tar"])
    assert keys(source, 2) == ["a0", "a1"]
    source.set_shards(["s3://b/b.tar", "s3://b/c.tar"])
    assert keys(source, 3) == ["a2", "a3", "a4"]
    assert {key[0] for key in keys(source, 10)} == {"b", "c"}
    assert source.cursor.epoch == 0
    assert {key[0] for key in keys(source, 10)} == {"b", "c"}
    assert source.cursor.epoch == 1


def test_no_shards_is_an_error_not_an_endless_wait():
    with pytest.raises(BadUrlError, match="no shards"):
        reader([])


def test_an_empty_tar_is_an_error_not_an_endless_loop():
    source = SampleReader(["s3://b/e.tar"], lambda name: io.BytesIO(make_tar({})))
    with pytest.raises(CorruptShardError, match="no samples"):
        next(source)


def test_cursor_finishes_a_shard_that_left_the_share():
    source = reader(["s3://b/b.tar"], cursor=Cursor(0, (), "s3://b/a.tar", 3))
    assert keys(source, 4) == ["a3", "a4", "b0", "b1"]
