"""Shard patterns: `s3://bucket/train-{000000..000031}.tar` stands for 32 shards."""

from __future__ import annotations

import itertools
import re

MAX_SHARDS = 100_000
_BRACES = re.compile(r"\{([^{}]*)\}")
_URL = re.compile(r"s3://[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]/[^\s{}]*[^\s{}/]")


class ShardPatternError(ValueError):
    """The pattern does not stand for valid shards."""


def shard_urls(pattern: str) -> tuple[str, ...]:
    """Expand a pattern to its shards, in order; the last brace varies fastest.

    A brace contains a range of numbers `{000000..000031}` (both ends included, leading zeros kept) or a list `{a,b}`.
    Raises ShardPatternError for an empty or reversed range, for more than 100000 shards, and for results that are not
    `s3://bucket/key`.
    """
    pieces = _BRACES.split(pattern)  # text, brace, text, brace, ..., text
    choices = [_choices(piece) if i % 2 else [piece] for i, piece in enumerate(pieces)]
    total = 1
    for choice in choices:
        total *= len(choice)
    if total > MAX_SHARDS:
        raise ShardPatternError(f"'{pattern}' stands for {total} shards; at most {MAX_SHARDS}")
    urls = tuple("".join(parts) for parts in itertools.product(*choices))
    for url in urls:
        if not _URL.fullmatch(url):
            raise ShardPatternError(
                f"'{url}' is not the URL of a shard: use s3://bucket/name-{{000000..000031}}.tar"
            )
    if len(set(urls)) < len(urls):
        raise ShardPatternError(f"'{pattern}' names the same shard twice")
    return urls


def _choices(brace: str) -> list[str]:
    ends = brace.split("..")
    if len(ends) == 1:
        words = brace.split(",")
        if not all(words):
            raise ShardPatternError(f"'{{{brace}}}' has an empty choice: use {{000000..000031}} or {{a,b}}")
        return words
    if len(ends) != 2 or not all(re.fullmatch("[0-9]{1,18}", end) for end in ends):
        raise ShardPatternError(f"'{{{brace}}}' is not a range of numbers: use {{000000..000031}}")
    first, last = map(int, ends)
    if last < first:
        raise ShardPatternError(
            f"'{{{brace}}}' is empty: the range is reversed; put the smaller number first"
        )
    if last - first >= MAX_SHARDS:
        raise ShardPatternError(f"'{{{brace}}}' stands for {last - first + 1} shards; at most {MAX_SHARDS}")
    padded = any(len(end) > 1 and end.startswith("0") for end in ends)
    width = max(map(len, ends)) if padded else 0
    return [f"{number:0{width}d}" if width else str(number) for number in range(first, last + 1)]
