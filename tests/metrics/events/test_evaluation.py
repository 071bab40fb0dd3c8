"""What a run came to on the held-out samples."""

from __future__ import annotations

from metrics.events.evaluation import HeldOut, held_out


def test_the_last_evaluated_epoch_is_the_mean_of_who_evaluated_it():
    rows = [
        {"vm": "a", "epoch": 2, "accuracy": 0.1, "loss": 9.0, "samples": 364},
        {"vm": "a", "epoch": 3, "accuracy": 0.9, "loss": 0.3, "samples": 364},
        {"vm": "b", "epoch": 3, "accuracy": 0.8, "loss": 0.5, "samples": 364},
        {"vm": "c", "epoch": 3, "accuracy": None, "loss": None, "samples": 364},
    ]
    assert held_out(rows) == HeldOut(3, 0.8500000000000001, 0.4, 364)


def test_missing_values_are_unknown():
    assert held_out(None) is None
    assert held_out([{"vm": "a", "epoch": 3, "accuracy": None}]) is None
    two = [
        {"epoch": 1, "accuracy": 0.5, "loss": None, "samples": 10},
        {"epoch": 1, "accuracy": 0.5, "loss": 0.1, "samples": 11},
    ]
    assert held_out(two) == HeldOut(1, 0.5, None, None)
