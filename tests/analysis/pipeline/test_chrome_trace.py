"""Traces in Chrome's format."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from chrome_format import problems
from hypothesis import given
from hypothesis import strategies as st

from analysis.pipeline.chrome_trace import ProfileError, chrome_trace, slice_name
from analysis.pipeline.records import BatchRecord, OpRecord, PhaseRecord, Thread, Trace

BASE = 1_790_000_000_000_000_000
BATCH = BatchRecord(
    *("a", 0, 10, 11, 1),
    fetch_start_ns=BASE,
    fetch_ns=9_000,
    collate_start_ns=BASE + 9_000,
    collate_ns=1_000,
    arrived_ns=BASE + 10_500,
    consumer_pid=1,
    consumer_tid=1,
    wait_start_ns=BASE + 1_000,
    wait_ns=10_000,
    consumed_ns=5_000,
)
TRACE = Trace(
    (OpRecord("a", 10, 11, "random_crop", 4, 0, BASE + 1_500, 2_000, 1_900, 600),),
    (BATCH,),
    (PhaseRecord("a", 1, 1, "forward", BASE + 11_500, 2_000),),
    (Thread("a", 10, 11, "worker"), Thread("a", 1, 1, "MainThread")),
)


def slices(document: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {event["name"]: event for event in document["traceEvents"] if event["ph"] == "X"}


def test_slices_have_lotus_names_and_tracks_of_their_own():
    document = chrome_trace(TRACE)
    assert problems(document) == []
    found = slices(document)
    assert set(found) == {
        *("SRandomCrop", "SBatchPreprocessed_0", "SCollation", "SBatchWait_0", "SBatchConsumed_0", "forward")
    }
    assert (found["SRandomCrop"]["ts"], found["SRandomCrop"]["dur"]) == (1.5, 2.0)
    assert found["SRandomCrop"]["args"] == {"batch": 0, "sample": 4, "cpu_ns": 1_900, "bytes": 600}
    assert (found["SBatchPreprocessed_0"]["ts"], found["SBatchPreprocessed_0"]["dur"]) == (0, 10.0)
    assert found["SBatchConsumed_0"]["args"] == {"delay_ns": 1_000}
    tracks = {name: (event["pid"], event["tid"]) for name, event in found.items()}
    assert tracks["SRandomCrop"] == tracks["SBatchPreprocessed_0"] == tracks["SCollation"]
    assert len(set(tracks.values())) == 4
    names = {e["args"]["name"] for e in document["traceEvents"] if e["ph"] == "M"}
    assert {"a: process 10", "worker 11", "waits of MainThread 1", "phases of MainThread 1"} <= names


def test_an_arrow_leads_from_the_preprocessed_batch_to_its_consumption():
    document = chrome_trace(TRACE)
    start, end = [e for e in document["traceEvents"] if e["ph"] in "sf"]
    consumed = slices(document)["SBatchConsumed_0"]
    assert (start["ph"], start["ts"]) == ("s", pytest.approx(9.999))
    assert (end["ph"], end["ts"], end["tid"]) == ("f", 11.0, consumed["tid"])


def test_batches_that_were_not_consumed_have_no_arrow():
    document = chrome_trace(replace(TRACE, batches=(replace(BATCH, consumed_ns=None),)))
    assert problems(document) == []
    assert not [e for e in document["traceEvents"] if e["ph"] in "sf"]
    assert problems(chrome_trace(Trace())) == []


def test_vms_with_the_same_process_ids_have_tracks_of_their_own():
    other = replace(BATCH, vm="b", fetch_start_ns=BASE + 500, fetch_ns=8_500)
    document = chrome_trace(replace(TRACE, batches=(BATCH, other)))
    assert problems(document) == []
    assert len({e["pid"] for e in document["traceEvents"] if e["name"] == "SBatchPreprocessed_0"}) == 2


def test_a_profile_of_torch_gets_the_traces_clock():
    profile = {
        "baseTimeNanoseconds": BASE - 2_000_000,
        "traceEvents": [
            {"ph": "M", "name": "process_name", "pid": 1, "tid": 0, "args": {"name": "python"}},
            {"ph": "X", "name": "aten::mm", "pid": 1, "tid": 1, "ts": 2_011.5, "dur": 1.5},
            {"ph": "i", "name": "mark", "pid": "Spans", "tid": 1, "ts": 2_000, "id": 0},
        ],
    }
    document = chrome_trace(TRACE, {"gpu": profile})
    found = slices(document)
    assert found["aten::mm"]["ts"] == pytest.approx(found["forward"]["ts"])
    assert found["aten::mm"]["pid"] != found["forward"]["pid"]
    named = [e["args"]["name"] for e in document["traceEvents"] if e["name"] == "process_name"]
    assert "gpu: python" in named
    mark = document["traceEvents"][-1]
    assert (mark["pid"], mark["id"], mark["ts"]) == ("gpu: Spans", "1:0", 0)
    assert profile["traceEvents"][1]["ts"] == 2_011.5


@pytest.mark.parametrize("profile", [{}, {"traceEvents": []}, {"baseTimeNanoseconds": 1}])
def test_a_profile_without_a_clock_is_refused(profile: dict[str, Any]):
    with pytest.raises(ProfileError, match="gpu: the profile has no baseTimeNanoseconds"):
        chrome_trace(TRACE, {"gpu": profile})


def test_the_checker_sees_what_is_wrong():
    def broken(name: str, **changes: Any) -> list[str]:
        document = chrome_trace(TRACE)
        slices(document)[name].update(changes)
        return problems(document)

    assert "overlaps another" in broken("SRandomCrop", dur=20.0)[0]
    assert any("has no name" in p for p in broken("SBatchWait_0", tid=77))
    assert any("no slice at its f" in p for p in broken("SBatchConsumed_0", ts=500.0))
    assert broken("SCollation", dur=-1)
    document = chrome_trace(TRACE)
    document["traceEvents"].pop()
    assert "has only" in problems(document)[0]


@given(st.lists(st.tuples(*[st.integers(0, 10**10)] * 4), min_size=1, max_size=10))
def test_a_worker_and_its_consumer_are_always_drawn(rows: list[tuple[int, int, int, int]]):
    batches, worker, consumer = [], BASE, BASE
    for number, (fetch, collate, idle, use) in enumerate(rows):
        ready = worker + fetch + collate
        got = max(consumer, ready) + idle
        batches.append(
            replace(
                BATCH,
                batch=number,
                fetch_start_ns=worker,
                fetch_ns=fetch,
                collate_start_ns=worker + fetch,
                collate_ns=collate,
                wait_start_ns=consumer,
                wait_ns=got - consumer,
                consumed_ns=use,
            )
        )
        worker, consumer = ready, got + use
    assert problems(chrome_trace(Trace(batches=tuple(batches)))) == []


def test_slice_names():
    assert [slice_name(op) for op in ("random_crop", "RandomCrop", "to-array", "decode")] == [
        *("SRandomCrop", "SRandomCrop", "SToArray", "SDecode")
    ]
