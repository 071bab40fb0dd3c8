"""Short texts are joined and long ones cut; nothing is lost, and no sample has texts of both splits."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloud.datasets.texts import packed_texts
from cloud.storage.errors import DataSourceError
from cloud.storage.shards import TRAIN, Record, split_of

WORDS = st.text("aé\n ", min_size=1, max_size=60)


@given(st.lists(WORDS, max_size=20), st.integers(16, 80), st.sampled_from([0.0, 0.5]))
def test_every_text_is_kept_in_its_split(texts: list[str], size: int, heldout: float):
    records = [Record(f"k{n}", {"txt": text.encode()}) for n, text in enumerate(texts)]
    packed = list(packed_texts(records, size, heldout))
    assert packed == list(packed_texts(records, size, heldout))
    assert (
        len({record.key for record in packed})
        == len(packed)
        <= sum(len(t.encode()) // size + 4 for t in texts)
    )
    assert all(0 < len(record.members["txt"]) <= size for record in packed)
    for split in {record.split for record in packed}:
        own = "".join(t for r, t in zip(records, texts, strict=True) if split_of(r.key, heldout) == split)
        stored = "".join(r.members["txt"].decode() for r in packed if r.split == split)
        assert stored.replace("\n", "") == own.replace("\n", "")


def test_short_texts_share_a_sample_and_a_long_one_is_cut():
    texts = ("one", "two", "x" * 10 + "\n" + "y" * 18, "end")
    records = [Record(f"k{n}", {"txt": text.encode()}, TRAIN) for n, text in enumerate(texts)]
    packed = list(packed_texts(records, 20, 0.9))
    assert [(r.key, r.members["txt"], r.split) for r in packed] == [
        ("k0-00000", b"one\n\ntwo", TRAIN),
        ("k2-00000", b"x" * 10 + b"\n", TRAIN),
        ("k2-00001", b"y" * 18, TRAIN),
        ("k3-00000", b"end", TRAIN),
    ]


def test_samples_with_other_members_are_refused():
    with pytest.raises(DataSourceError, match="members cls, txt, and only samples with nothing but txt"):
        list(packed_texts([Record("k", {"txt": b"a", "cls": b"1"})], 100, 0.1))
