"""A peer's first batches come from its own share of the shards."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence

import pytest

torch = pytest.importorskip("torch")

from cloud.storage.samples import Cursor  # noqa: E402
from experiments.peer.training.batches import Batches  # noqa: E402 - needs torch

SHARDS = [f"train-{n:02d}" for n in range(8)]


class Source:
    """Returns one shard per batch, in order, and restarts when the share changes."""

    def __init__(self) -> None:
        self.read = threading.Event()
        self.set_shards(SHARDS)

    def next_batch(self, samples: int) -> str:
        self.read.set()
        return next(self._left)

    def set_shards(self, shards: Sequence[str]) -> None:
        self._left: Iterator[str] = iter([*shards, *[""] * 100])

    def start_at(self, cursor: Cursor) -> None:
        raise NotImplementedError

    def close(self) -> None:
        pass


@pytest.fixture
def sources() -> Iterator[dict[str, tuple[Source, Batches]]]:
    made = {slot: (source := Source(), Batches(source, 32)) for slot in "ab"}
    yield made
    for _, batches in made.values():
        batches.close()


def test_two_slots_never_begin_with_the_same_shard(sources: dict[str, tuple[Source, Batches]]) -> None:
    first = []
    for slot, (source, batches) in sources.items():
        assert not source.read.wait(0.1)  # the share is not known yet
        batches.share_among(slot, ["a", "b"], SHARDS)
        batches.start()
        first.append(batches.next())
    assert len(set(first)) == 2
    assert set(first) <= set(SHARDS)


def test_batches_that_were_never_started_can_be_closed(sources: dict[str, tuple[Source, Batches]]) -> None:
    source, batches = sources["a"]
    batches.close()
    assert not source.read.is_set()
