"""A study's folder: truncated journals, locking, lookup by name."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from orchestrator.errors import HeldError, UsageError
from orchestrator.study.core import Begun, Ended, Job, Retry, Started
from orchestrator.study.definition import (
    StudyDefinition,
    create_study,
    find_study_folder,
    hold_study,
    list_studies,
    newest_named,
    read_state,
    read_study,
)
from orchestrator.study.journal import JOURNAL, StudyJournal, read_journal
from orchestrator.study.verdict import Disturbance, disturbances

EVENTS = [
    Started(1.5, "geo-a2", 1, "geo-a2-20231114-abcd-1"),
    Ended(90.0, "geo-a2", 1, "done", "", ("the host was too busy (ä)",), (Disturbance.HOST_BUSY,)),
    Started(91.0, "geo-a2", 2, "geo-a2-20231114-abcd-2"),
    Begun(92.0, "geo-a2", 2),
    Ended(180.0, "geo-a2", 2, "failed", "a sentence\nof two lines"),
    Retry(200.0, ("geo-a2",)),
]


def test_journal_roundtrip(tmp_path: Path):
    assert read_journal(tmp_path) == []
    journal = StudyJournal(tmp_path)
    for event in EVENTS[:3]:
        journal.append(event)
    journal.close()
    again = StudyJournal(tmp_path)
    assert again.events == EVENTS[:3]
    for event in EVENTS[3:]:
        again.append(event)
    again.close()
    assert list(read_journal(tmp_path)) == again.events == EVENTS


def test_lines_without_codes_are_classified_by_their_sentences(tmp_path: Path):
    """The format before `Ended.disturbances` existed."""
    line = '{"kind": "ended", "at_s": 1.0, "job": "a", "attempt": 1, "status": "done", "error": "", "disturbed": '
    (tmp_path / JOURNAL).write_text(
        f'{line}["the host was too busy (late)", "1 round was dropped without a planned fault"]}}\n{line}[]}}\n'
    )
    codes = [event.disturbances for event in read_journal(tmp_path) if isinstance(event, Ended)]
    assert codes == [(Disturbance.HOST_BUSY, Disturbance.DROPPED_ROUNDS), ()]


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_journal_truncated_at_any_byte_is_a_prefix(tmp_path: Path, data):
    path = tmp_path / JOURNAL
    path.unlink(missing_ok=True)
    journal = StudyJournal(tmp_path)
    for event in EVENTS:
        journal.append(event)
    journal.close()
    whole = path.read_bytes()
    cut = data.draw(st.integers(0, len(whole)))
    path.write_bytes(whole[:cut])
    kept = list(read_journal(tmp_path))
    assert kept == EVENTS[: len(kept)]
    assert len(kept) == whole[:cut].count(b"\n")
    journal = StudyJournal(tmp_path)  # new events start on a new line
    for event in EVENTS[len(kept) :]:
        journal.append(event)
    journal.close()
    assert path.read_bytes() == whole


@pytest.mark.parametrize(
    "line", ["no json", "{}", '{"kind": "began"}', '{"kind": "started", "at_s": 1}', "[]"]
)
def test_invalid_journal_line_is_refused(tmp_path: Path, line: str):
    (tmp_path / JOURNAL).write_text(f"{line}\n")
    with pytest.raises(UsageError, match=r"journal.jsonl:1: invalid line in a study's journal"):
        read_journal(tmp_path)


def _study(study_id: str) -> StudyDefinition:
    job = Job("geo-a2", "geo-a2", "", 60.0, 360.0)
    name = study_id.rsplit("-", 2)[0]
    compare = {"replay": "auto", "limits": ""}
    return StudyDefinition(study_id, name, "local", 2, (job,), {"geo-a2": {}}, {"geo-a2": {}}, compare, 1.0)


def test_studies_are_created_and_found_by_name(tmp_path: Path):
    first = create_study(tmp_path, _study("two-20231114-abcd"), "name: two\n")
    assert read_study(first) == _study("two-20231114-abcd")
    second = create_study(tmp_path, _study("two-20231115-abce"), "name: two\n")
    create_study(tmp_path, _study("two-more-20231115-abcf"), "name: two-more\n")
    (first / "study.json").touch()
    assert list_studies(tmp_path, "two") == [first, second]
    assert find_study_folder(tmp_path, "two") == first  # the newest of that name
    assert find_study_folder(tmp_path, "two-20231115-abce") == second
    assert find_study_folder(tmp_path, "two-m").name == "two-more-20231115-abcf"
    assert find_study_folder(tmp_path, "tw") is None
    part = create_study(tmp_path, replace(_study("two-20231116-abce"), part=True), "")
    assert list_studies(tmp_path, "two")[0] == part
    # Not one of a few runs.
    assert find_study_folder(tmp_path, "two") == newest_named(tmp_path, "two") == first
    assert find_study_folder(tmp_path, "two-20231116-abce") == part
    for whole in (first, second):
        (whole / "study.json").unlink()
    assert find_study_folder(tmp_path, "two") == part
    with pytest.raises(UsageError, match="cannot write the study's folder"):
        create_study(tmp_path, _study("two-20231114-abcd"), "")
    (tmp_path / "runs" / "geo-x-20231116-aaaa-1").mkdir(parents=True)
    with pytest.raises(UsageError, match="runs of another study"):
        create_study(tmp_path, _study("two-20231116-aaaa"), "")


def test_incomplete_folder_is_not_a_study(tmp_path: Path):
    (tmp_path / "studies" / "two-20231114-abcd").mkdir(parents=True)
    (tmp_path / "studies" / "two-20231114-abcd" / "study.json.new").write_text("{")
    assert list_studies(tmp_path) == []
    with pytest.raises(UsageError, match="not a valid study"):
        read_study(tmp_path / "studies" / "two-20231114-abcd")


def test_a_journal_of_another_study_is_refused(tmp_path: Path):
    folder = create_study(tmp_path, _study("two-20231114-abcd"), "")
    journal = StudyJournal(folder)
    journal.append(Started(1.0, "geo-b8", 1, "r"))
    journal.close()
    with pytest.raises(UsageError, match="no run 'geo-b8'"):
        read_state(folder, read_study(folder))


def test_one_process_at_a_time_holds_a_study(tmp_path: Path):
    with (
        hold_study(tmp_path),
        pytest.raises(HeldError, match="another `orch` process is running this study"),
        hold_study(tmp_path),
    ):
        pass
    with hold_study(tmp_path):
        pass


@pytest.mark.parametrize(
    ("changes", "emulation", "expected"),
    [
        ({}, {}, {}),
        ({"host_contended": True}, {}, {Disturbance.HOST_BUSY: "the host was too busy (late)"}),
        (
            {"dropped_rounds": 1}, {},
            {Disturbance.DROPPED_ROUNDS: "1 round was dropped without a planned fault"},
        ),
        (
            {"dropped_rounds": 2, "host_contended": True}, {},
            {
                Disturbance.HOST_BUSY: "the host was too busy (late)",
                Disturbance.DROPPED_ROUNDS: "2 rounds were dropped without a planned fault",
            },
        ),
        ({"dropped_rounds": 2}, {"preempt": {"rate_per_h": 3.0}}, {}),
        ({"dropped_rounds": 2, "preemptions": {"count": 1}}, {}, {}),
        ({"host_contended": None, "dropped_rounds": 3, "target": "sky"}, {}, {}),
    ],
)  # fmt: skip
def test_disturbances_that_cause_a_repeat(changes, emulation, expected):
    summary = {
        "target": "local",
        "host_contended": False,
        "dropped_rounds": 0,
        "preemptions": {"count": 0},
    } | changes
    assert disturbances(summary, ["late"], {"emulation": {"preempt": None} | emulation}) == expected
