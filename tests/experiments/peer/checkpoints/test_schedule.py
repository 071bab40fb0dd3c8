"""When a checkpoint is due, and who writes it."""

from __future__ import annotations

import pytest

from experiments.peer.checkpoints.schedule import Checkpointing, Start, writing_slot
from experiments.peer.config import PeerConfigError

CONFIG = {
    "prefix": "s3://b/checkpoints/run", "every_epochs": 3, "every_s": None, "keep": 2, "writers": ["b", "a"], "start": None,
}  # fmt: skip


def test_by_epochs():
    settings = Checkpointing.of(CONFIG)
    assert [epoch for epoch in range(1, 10) if settings.due(epoch, 0.0, 0.0)] == [3, 6, 9]


def test_by_time_from_the_last_one_that_was_due():
    settings = Checkpointing.of({**CONFIG, "every_epochs": None, "every_s": 60.0})
    assert not settings.due(3, now_s=100.0, last_s=41.0)
    assert settings.due(3, now_s=101.0, last_s=41.0)


def test_the_first_slot_that_trains_writes():
    assert writing_slot(("b", "a"), {"a", "b"}) == "b"
    assert writing_slot(("b", "a"), {"a"}) == "a"
    assert writing_slot(("b", "a"), {"c"}) is None


def test_the_config():
    start = {"prefix": "s3://b/checkpoints/other", "name": "epoch-00000007-x"}
    settings = Checkpointing.of({**CONFIG, "start": start})
    assert settings.start == Start("s3://b/checkpoints/other", "epoch-00000007-x")
    assert settings.writers == ("b", "a")
    with pytest.raises(PeerConfigError, match="checkpoint: KeyError\\('keep'\\)"):
        Checkpointing.of({key: value for key, value in CONFIG.items() if key != "keep"})
