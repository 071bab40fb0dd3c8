"""Brace expansion of shard patterns."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments.schema.shards import ShardPatternError, shard_urls


def test_a_range_keeps_its_zeros_and_both_ends():
    urls = shard_urls("s3://digits/train-{000000..000031}.tar")
    assert len(urls) == 32
    assert (urls[0], urls[-1]) == ("s3://digits/train-000000.tar", "s3://digits/train-000031.tar")


def test_other_patterns():
    assert shard_urls("s3://digits/a.tar") == ("s3://digits/a.tar",)
    assert shard_urls("s3://digits/{a,b}-{9..10}.tar") == tuple(
        f"s3://digits/{x}-{n}.tar" for x in "ab" for n in (9, 10)
    )
    assert shard_urls("s3://digits/x{7..7}.tar") == ("s3://digits/x7.tar",)


@pytest.mark.parametrize(
    "pattern",
    [
        "s3://digits/{000031..000000}.tar",
        "s3://digits/{}.tar",
        "s3://digits/{a,}.tar",
        "s3://digits/{a..b}.tar",
        "s3://digits/{0..1..2}.tar",
        "s3://digits/{0..999999999999999999}.tar",
        "s3://digits/{0..999}{0..999}.tar",
        "s3://digits/{0..3.tar",
        "s3://digits/{1,1}.tar",
        "s3://digits",
        "s3://digits/",
        "s3://UPPER/x.tar",
        "http://digits/x.tar",
        "s3://digits/a b.tar",
        "",
    ],
)
def test_invalid_shard_patterns(pattern):
    with pytest.raises(ShardPatternError):
        shard_urls(pattern)


@given(st.integers(0, 10**6), st.integers(0, 300), st.integers(0, 8))
def test_range_length(first, more, width):
    urls = shard_urls(f"s3://digits/t-{{{first:0{width}d}..{first + more:0{width}d}}}.tar")
    assert len(urls) == len(set(urls)) == more + 1
    assert [int(url[len("s3://digits/t-") : -4]) for url in urls] == list(range(first, first + more + 1))
    assert width == 0 or all(len(url) >= len("s3://digits/t-.tar") + width for url in urls)
