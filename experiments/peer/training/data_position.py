"""Where a slot is in its data, as JSON: published by its peer, and the start of the peer that replaces it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from cloud.storage.samples import Cursor
from experiments.wire.data_position import DataPosition


def position_of(cursor: Cursor, shards: Sequence[str]) -> DataPosition:
    """The position of a reader of `shards`, whose order is the same on every peer. Shards that are not in it are left out."""
    numbers = {shard: number for number, shard in enumerate(sorted(set(shards)))}
    known = sorted(numbers[shard] for shard in cursor.done if shard in numbers)
    shard = numbers.get(cursor.shard)
    return DataPosition(cursor.epoch, _runs(known), shard, cursor.samples if shard is not None else 0)


def cursor_at(position: Mapping[str, Any], shards: Sequence[str]) -> Cursor:
    """The cursor at a position that `position_of` made. Raises ValueError if it is not one of these shards."""
    parsed = DataPosition.from_json(position)
    if parsed is None:
        raise ValueError(f"{position!r} is not a position in the data")
    return cursor_of(parsed, shards)


def cursor_of(parsed: DataPosition, shards: Sequence[str]) -> Cursor:
    """The cursor at a position. Raises ValueError if it is not one of these shards."""
    names = sorted(set(shards))
    if parsed.last_shard >= len(names):
        raise ValueError(f"position in shard {parsed.last_shard + 1} of {len(names)}")
    done = tuple(names[number] for first, last in parsed.done for number in range(first, last + 1))
    shard = "" if parsed.shard is None else names[parsed.shard]
    return Cursor(parsed.pass_number, done, shard, parsed.samples)


def _runs(numbers: Iterable[int]) -> tuple[tuple[int, int], ...]:
    """Ascending numbers as (first, last) of each run of consecutive ones."""
    runs: list[tuple[int, int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1] = (runs[-1][0], number)
        else:
            runs.append((number, number))
    return tuple(runs)
