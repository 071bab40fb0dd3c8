"""A slot's position in its data, as peers report it in status.json and the controller passes it on to a replacement."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

MAX_RUNS = 2000  # of finished shards: a status.json has at most 10,000 values
_LARGEST = 2**53


@dataclass(frozen=True)
class DataPosition:
    """`samples` of `shard` have been trained on, in pass `pass_number` over the slot's share, after the shards in `done`.

    Shards are numbers in the sorted list of the experiment's shards; `done` has (first, last) of consecutive ones,
    ascending. `shard` None: between two shards.
    """

    pass_number: int
    done: tuple[tuple[int, int], ...]
    shard: int | None
    samples: int

    @property
    def last_shard(self) -> int:
        """The largest number of a shard in it; -1: it has none."""
        return max(self.done[-1][1] if self.done else -1, -1 if self.shard is None else self.shard)

    def to_json(self) -> dict[str, Any] | None:
        """Plain JSON types; None if it has more than `MAX_RUNS` runs of shards, which a status.json cannot hold."""
        if len(self.done) > MAX_RUNS:
            return None
        done = [number for run in self.done for number in run]
        return {"pass": self.pass_number, "done": done, "shard": self.shard, "samples": self.samples}

    @classmethod
    def from_json(cls, entry: Any) -> DataPosition | None:
        """Parse what `to_json` wrote; None if it is anything else."""
        if not isinstance(entry, Mapping) or set(entry) != {"pass", "done", "shard", "samples"}:
            return None
        numbers, shard = entry["done"], entry["shard"]
        if not isinstance(numbers, list) or len(numbers) > 2 * MAX_RUNS or len(numbers) % 2:
            return None
        if not all(map(_is_count, (entry["pass"], entry["samples"], *numbers))):
            return None
        if shard is not None and not _is_count(shard):
            return None
        done = tuple(zip(numbers[::2], numbers[1::2], strict=True))
        before = -2
        for first, last in done:
            if first <= before + 1 or last < first:
                return None
            before = last
        return cls(entry["pass"], done, shard, entry["samples"])


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < _LARGEST
