"""Journals of finished runs, recorded by earlier versions, replay to the same end."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from metrics.records import EventRecord
from orchestrator.core.invariants import validate
from orchestrator.core.journal import preempted_vm, replay, story

JOURNALS = sorted((Path(__file__).parents[1] / "journals").glob("*.json"))


def read(path: Path):
    kept = json.loads(path.read_text())
    return kept["end"], [EventRecord(**row) for row in kept["events"]]


def test_recorded_journals_exist():
    assert len(JOURNALS) >= 2


@pytest.mark.parametrize("path", JOURNALS, ids=lambda path: path.stem)
def test_every_recorded_journal_replays_to_its_end(path):
    end, events = read(path)
    state = replay(events)
    assert state.ended
    assert state.stop_status == end["status"]
    assert {s.name: [str(s.state), s.generation, s.lost] for s in state.slots} == end["slots"]
    assert sorted(state.intents) == end["intents"]
    assert list(state.monitor_vms()) == end["monitors"]
    assert len(story(events)) == len(events)


@pytest.mark.parametrize("path", JOURNALS, ids=lambda path: path.stem)
def test_every_journal_prefix_is_a_valid_state(path):
    _, events = read(path)
    for length in range(1, len(events) + 1):
        validate(replay(events[:length]))


def test_rows_without_the_preempted_key_use_their_cause():
    taken = {path.stem: {vm for row in read(path)[1] if (vm := preempted_vm(row))} for path in JOURNALS}
    assert taken["2026-11-before-real-clouds"] == {"r-b-0"}
    assert taken["2026-11-replaced-at-its-notice"] == {"r-eu-0-0", "r-us-0-1"}
