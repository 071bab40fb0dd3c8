"""What a run came to on the held-out samples."""

from __future__ import annotations

import math

import pytest

from metrics.events.evaluation import (
    Best,
    HeldOut,
    best_of,
    evaluation_words,
    evaluations_of,
    held_out,
    names_of,
)


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


def row(vm: str, epoch: int, loss: float | None, **metrics: float) -> dict[str, object]:
    """A row of a task without an accuracy."""
    return {
        "vm": vm, "epoch": epoch, "at_s": 10.0 * epoch, "accuracy": None, "loss": loss, "samples": 90, "metrics": metrics,
    }  # fmt: skip


def test_every_named_figure_is_the_mean_over_the_peers_of_its_epoch():
    rows = [
        row("a", 4, 2.0, nats_per_byte=1.5, perplexity=7.0),
        {**row("b", 4, 3.0, nats_per_byte=1.7, perplexity=9.0), "at_s": 43.0},
        row("a", 2, 5.0, nats_per_byte=2.5),
        {"vm": "c", "epoch": 9, "at_s": 1.0, "accuracy": None, "loss": None, "samples": 9},  # diverged
    ]
    first, last, diverged = evaluations_of(rows)
    assert (diverged.epoch, diverged.figures) == (9, {})  # not the figures of an earlier epoch
    assert (first.epoch, first.at_s, first.peers) == (2, 20.0, 1)
    assert (last.epoch, last.at_s, last.peers, last.samples) == (4, 43.0, 2, 90)
    assert last.figures == pytest.approx({"loss": 2.5, "nats_per_byte": 1.6, "perplexity": 8.0})
    assert names_of([first, last]) == ["loss", "nats_per_byte", "perplexity"]
    assert held_out(rows) is None  # no accuracy, but the figures are known


def test_a_figure_that_a_peer_lacks_or_that_is_not_finite_is_unknown():
    rows = [row("a", 1, 2.0, wer=0.5, mine=math.inf), row("b", 1, 4.0, mine=1.0)]
    (found,) = evaluations_of(rows)
    assert found.figures == {"loss": 3.0}
    assert evaluations_of(None) == []


def test_a_row_that_is_read_twice_counts_once():
    rows = [row("a", 1, 2.0), row("a", 1, 2.0), row("b", 1, 5.0)]
    assert [(e.peers, e.figures["loss"]) for e in evaluations_of(rows)] == [(2, 3.5)]


def test_the_best_value_depends_on_what_the_name_means():
    rows = [
        {**row("a", epoch, loss, wer=wer, mine=wer), "accuracy": accuracy}
        for epoch, loss, wer, accuracy in ((1, 3.0, 0.9, 0.2), (2, 1.0, 0.4, 0.7), (3, 1.5, 0.6, 0.5), (4, 1.0, 0.7, 0.1))
    ]  # fmt: skip
    found = evaluations_of(rows)
    assert best_of(found, "loss") == Best(1.0, 2)
    assert best_of(found, "wer") == Best(0.4, 2)
    assert best_of(found, "accuracy") == Best(0.7, 2)
    assert best_of(found, "mine") is None  # unknown which is better
    assert best_of(found, "perplexity") is None


def test_words_of_an_evaluation():
    assert evaluation_words({"loss": 1.52, "accuracy": 0.934, "nats_per_byte": 1.4801}) == (
        "loss 1.52, accuracy 93.4%, nats_per_byte 1.48"
    )
