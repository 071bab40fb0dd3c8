"""When a checkpoint is due, and who writes it."""

from __future__ import annotations

import pytest

from experiments.peer.checkpoints.schedule import Checkpointing, Start, State, later, writing_slot
from experiments.peer.config import PeerConfigError

CONFIG = {
    "prefix": "s3://b/checkpoints/run", "every_epochs": 3, "every_s": None, "keep": 2, "writers": ["b", "a"], "start": None,
}  # fmt: skip


def test_by_epochs():
    settings = Checkpointing.of(CONFIG)
    due = [epoch for epoch in range(1, 10) if settings.due(epoch, 0.0, State(3 * ((epoch - 1) // 3), 0.0))]
    assert due == [3, 6, 9]
    assert not settings.due(5, 0.0, State(4, 0.0)), "a run began with epoch 4 of another"


def test_an_epoch_that_was_missed_is_made_up_for():
    settings = Checkpointing.of({**CONFIG, "every_epochs": 10})
    assert settings.due(11, 0.0, State(0, 0.0)), "from 9 to 11 by taking over from another peer"
    assert settings.due(21, 0.0, State(11, 0.0))
    assert not settings.due(19, 0.0, State(11, 0.0))
    assert (settings.due(9, 0.0, None), settings.due(11, 0.0, None)) == (False, True)
    assert settings.due(9, 0.0, State(10**8, 0.0)), "nothing stops all further ones"


def test_by_time_from_the_last_one():
    settings = Checkpointing.of({**CONFIG, "every_epochs": None, "every_s": 60.0})
    assert not settings.due(3, 100.0, State(2, 41.0))
    assert settings.due(3, 101.0, State(2, 41.0))
    assert settings.due(3, 100.0, None)
    assert not settings.due(3, 100.0, State(2, 101.0)), "clocks differ a little"
    assert settings.due(3, 100.0, State(2, 1e12)), "nothing stops all further ones"


def test_the_later_state():
    assert later(None, State(1, 2.0)) == later(State(1, 2.0), None) == State(1, 2.0)
    assert later(State(1, 5.0), State(3, 2.0)) == State(3, 5.0)
    assert later(None, None) is None


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
