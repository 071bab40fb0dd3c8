"""Warnings from status.json, of honest and hostile peers, are kept by VM and shown by status and report."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from made_up_run import write_run

from cloud.provider import Observed
from cloud.vm_report import read_status
from experiments.peer.checkpoints.report import CheckpointReport
from experiments.peer.status import Status
from experiments.peer.training.bad_samples import LeftOut
from experiments.pipeline.errors import BadSampleError
from metrics.events.peer_warnings import peer_warnings_of
from metrics.store.database import RunStore
from metrics.summary import summarise
from orchestrator.controller.peer_warnings import PeerWarnings, warnings_of
from orchestrator.controller.view import snapshot_of

LATE = "started with 1 of 2 peers after 60 s"


def seen(vm: str, **status: Any) -> Observed:
    return Observed(vm, "running", "gcp/us-central1", "10.0.0.1", 1.0, 2.0, None, "", None, status)


def test_equal_warnings_of_several_vms_are_shown_once_by_status_and_report(tmp_path: Path) -> None:
    write_run(tmp_path, peers=2, epochs=2)
    with RunStore.open_writer(tmp_path / "run.db") as store:
        before = summarise(store)["warnings"]
        vms = sorted(row.vm for row in store.records("vms"))
        kept = PeerWarnings(store)
        kept.write([seen(vms[0], warnings=[LATE, "7 dropped"]), seen(vms[1], warnings=[LATE])])
        kept.write([seen(vms[0]), seen(vms[1], warnings="hostile")])  # neither reports warnings
        PeerWarnings(store).write([seen(vms[0], warnings=[LATE, "8 dropped"])])  # after a restart
        assert store.meta("peer_warnings") == {vms[0]: [LATE, "8 dropped"], vms[1]: [LATE]}
        summary, snapshot = summarise(store), snapshot_of(store, 0.0, controller_alive=False)
    expected = ["p-0: 8 dropped", f"p-0, p-1: {LATE}"]
    assert [text for text in summary["warnings"] if text not in before] == expected
    assert [text for text in snapshot["warnings"] if text.startswith("p-")] == expected


def test_what_the_run_has_a_record_of_is_left_out(tmp_path: Path) -> None:
    status = Status(tmp_path / "status.json")
    status.left_out("training", LeftOut("samples", 7, BadSampleError("a.tar", "a003", "decode", "it is bad")))
    status.warn("barrier", LATE)
    CheckpointReport(status).failed(3, "the bucket is full")
    CheckpointReport(status).warn("prune", "older checkpoints could not be deleted: no")
    found = read_status(tmp_path / "status.json")
    assert len(found["warnings"]) == 4
    assert warnings_of(found) == [LATE, "older checkpoints could not be deleted: no"]


@pytest.mark.parametrize("value", [None, {}, "x", 7, ["x", 7], [["x"]]])
def test_an_invalid_report_has_no_warnings(value: Any) -> None:
    assert warnings_of({"warnings": value}) is None


def test_the_warnings_of_a_hostile_peer_are_bounded_and_printable() -> None:
    found = warnings_of(
        {
            "warnings": ["", *(f"{n} \x1b[2J\n" + "x" * 9000 for n in range(3000))],
            "recorded_warnings": [[], {}, "1"],
        }
    )
    assert found is not None
    assert [text.split()[0] for text in found] == [str(n) for n in range(2980, 3000)]
    assert all(len(text) <= 500 and text.isprintable() for text in found)


def test_many_warnings_are_counted_and_each_vms_newest_come_first() -> None:
    texts = {"r-a-0": [f"a{n}" for n in range(20)], "r-b-0": ["late"]}
    found = peer_warnings_of(texts, lambda vm: vm[2:3])
    assert (found[:3], len(found), found[-1]) == (
        ["a: a19", "b: late", "a: a18"], 21, "The peers have 1 more warning.",
    )  # fmt: skip
    assert peer_warnings_of(texts, lambda vm: vm[2:3], "b") == ["b: late"]
