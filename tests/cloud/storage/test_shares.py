"""Shares: a balanced partition that changes little."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cloud.storage.errors import BadUrlError
from cloud.storage.shares import shards_for

SLOTS = st.lists(st.text("abc-0123", min_size=1, max_size=4), min_size=1, max_size=9, unique=True)
COUNTS = st.integers(1, 40)


def names(count):
    return [f"s3://b/train-{n:06d}.tar" for n in range(count)]


def shares(slots, shards):
    return {slot: shards_for(slot, slots, shards) for slot in slots}


@settings(deadline=None)
@given(slots=SLOTS, count=COUNTS)
def test_every_shard_belongs_to_one_slot_and_sizes_differ_by_at_most_one(slots, count):
    got = shares(slots, names(count))
    sizes = [len(share) for share in got.values()]
    assert max(sizes) - min(sizes) <= 1
    if len(slots) <= count:
        assert sorted(sum(got.values(), ())) == names(count)
    else:
        assert set(sizes) == {1}
        readers = [sum(shard in share for share in got.values()) for shard in names(count)]
        assert max(readers) - min(readers) <= 1


@settings(deadline=None)
@given(slots=SLOTS, count=COUNTS, data=st.data())
def test_order_and_repetition_do_not_matter(slots, count, data):
    other = data.draw(st.permutations(slots))
    assert shares(slots, names(count)) == shares([*other, other[0]], names(count)[::-1])


def owners(slots, shards):
    return {shard: slot for slot, share in shares(slots, shards).items() for shard in share}


@pytest.mark.parametrize("count", [32, 100])
@pytest.mark.parametrize("slots", [1, 2, 4, 8])
def test_a_slot_that_comes_or_goes_moves_less_than_twice_its_own_share(count, slots):
    moved = []
    for trial in range(10):
        before = [f"run{trial}-us-{n}" for n in range(slots)]
        after = [*before, f"run{trial}-eu-0"]
        a, b = owners(before, names(count)), owners(after, names(count))
        moved.append(sum(a[shard] != b[shard] for shard in a))
    least = count / (slots + 1)
    assert sum(moved) / len(moved) <= 1.7 * least + 2
    assert max(moved) <= 2 * least + 4


def test_no_shards_and_no_such_slot():
    with pytest.raises(BadUrlError, match="no shards"):
        shards_for("a", ["a"], [])
    with pytest.raises(ValueError, match="slot 'x' is not one of a, b"):
        shards_for("x", ["b", "a"], names(2))
