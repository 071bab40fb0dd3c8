"""The journal: rebuilding the state, the story of a slot, and invalid journals."""

from dataclasses import replace
from decimal import Decimal

import pytest

from metrics.records import EventRecord
from orchestrator.core.events import Observed, Tick
from orchestrator.core.journal import JournalError, begin, created, note, preempted_vm, replay, story
from orchestrator.core.machine import step
from orchestrator.core.state import Place, Policy, RunSpec, SlotSpec, SlotState

PLACE = Place("gcp/us-central1/us-central1-a", "n1", "T4:1", True, Decimal("0.1800"), "book:7")
DEARER = Place("azure/eastus", "nv6", "A10:1", False, Decimal("0.454"), "book:9", Decimal("0.5"))
RUN = RunSpec(
    "r",
    (SlotSpec("a", (PLACE, DEARER), Policy("next_place", 3)),),
    budget_usd=Decimal("1.50"),
    max_wall_s=900.0,
)


def rows(facts) -> list[EventRecord]:
    return [
        EventRecord(
            n, 10.0 + n, f.kind, f.slot, f.generation, f.vm, f.from_state, f.to_state, f.cause, f.data_json
        )
        for n, f in enumerate(facts)
    ]


def test_the_first_row_holds_the_whole_specification():
    assert replay(rows([created(RUN)])) == begin(RUN, 10.0)


def test_rows_rebuild_the_state_and_notes_change_nothing():
    state, facts = begin(RUN, 10.0), [created(RUN)]
    for event in (Tick(1.0), Observed(2.0, "r-a-0", "running", "dht", "/m", "10.0.0.2"), Tick(3.0)):
        done = step(state, event, lambda: 0.5)
        state = done.state
        facts += [*done.facts, note("note", "somebody looked")]
    assert replay(rows(facts)) == state
    assert state.slot("a").state is SlotState.JOINING
    assert state.monitor == "wanted"


def test_the_story_names_each_change_and_its_cause():
    state, facts = begin(RUN, 10.0), [created(RUN)]
    for event in (Tick(1.0), Observed(2.0, "r-a-0", "preempted", cause="taken back")):
        done = step(state, event, lambda: 0.5)
        state, facts = done.state, [*facts, *done.facts]
    told = story(rows(facts), "a")
    assert told[1].endswith("a#0 WAITING -> PROVISIONING: the slot has no VM")
    lost = "a#0 PROVISIONING -> WAITING: preempted: taken back; next at 00:00:02: eastus on demand at $0.45/h"
    assert told[2].endswith(lost)


@pytest.mark.parametrize(
    "event",
    [
        Observed(2.0, "r-a-0", "preempted", cause="taken back"),
        Observed(2.0, "r-a-0", "running", notice_at_s=60.0),
    ],
)
def test_a_row_names_the_preempted_vm_whatever_its_cause_says(event):
    state = step(begin(RUN, 10.0), Tick(1.0), lambda: 0.5).state
    lost, *_ = (row for row in step(state, event, lambda: 0.5).facts if row.kind == "transition")
    assert preempted_vm(replace(lost, cause="in other words")) == "r-a-0"


def test_a_cause_alone_preempts_nothing():
    state = step(begin(RUN, 10.0), Tick(1.0), lambda: 0.5).state
    event = Observed(2.0, "r-a-0", "failed", cause="preempted by nobody", ended=True)
    rows_of = step(state, event, lambda: 0.5).facts
    assert [preempted_vm(row) for row in rows_of if row.kind == "transition"] == [""]


def test_a_journal_without_its_beginning_is_refused():
    with pytest.raises(JournalError, match="never launched"):
        replay([])
    with pytest.raises(JournalError, match="run_created"):
        replay(rows([note("note", "lost its head")]))
