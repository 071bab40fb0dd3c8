"""Counts of left-out samples from status.json, valid or not, are kept by VM and told by status, report and why."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from made_up_run import write_run

from cloud.provider import Observed
from metrics.store.database import RunStore
from metrics.summary import summarise
from orchestrator.controller.bad_samples import BadSamples, counts_of
from orchestrator.controller.view import snapshot_of

FIRST = "s3://b/a.tar: sample a003, operation decode: it is bad"


def seen(vm: str, **counts: Any) -> Observed:
    status = {
        "phase": "training",
        "bad_samples": {of: {"count": n, "first": FIRST} for of, n in counts.items()},
    }
    return Observed(vm, "running", "gcp/us-central1", "10.0.0.1", 1.0, 2.0, None, "", None, status)


def test_the_last_count_of_each_vm_is_kept_also_after_it_ended(tmp_path: Path) -> None:
    with RunStore.open_writer(tmp_path / "run.db") as store:
        counts = BadSamples(store)
        counts.write([seen("r-a-0", training=3), seen("r-b-0")])
        counts.write([seen("r-a-0", training=7, heldout=1), seen("r-b-0")])
        BadSamples(store).write([seen("r-a-1", training=2)])  # after a restart, and r-a-0 was preempted
        assert store.meta("bad_samples") == {
            "r-a-0": {"training": {"count": 7, "first": FIRST}, "heldout": {"count": 1, "first": FIRST}},
            "r-a-1": {"training": {"count": 2, "first": FIRST}, "heldout": {"count": 0, "first": ""}},
            "r-b-0": {"training": {"count": 0, "first": ""}, "heldout": {"count": 0, "first": ""}},
        }


@pytest.mark.parametrize(
    "entry",
    [
        None, [], "7", {"training": 7}, {"training": {"count": 7}}, {"training": {"count": True, "first": ""}},
        {"training": {"count": -1, "first": ""}}, {"training": {"count": 2**63, "first": ""}},
        {"heldout": {"count": 1.0, "first": ""}}, {"heldout": {"count": 1, "first": 2}},
    ],
)  # fmt: skip
def test_an_invalid_report_changes_nothing(tmp_path: Path, entry: Any) -> None:
    assert counts_of(entry) is None
    with RunStore.open_writer(tmp_path / "run.db") as store:
        counts = BadSamples(store)
        counts.write([seen("r-a-0", training=3)])
        counts.write([replace(seen("r-a-0"), status={"phase": "training", "bad_samples": entry})])
        assert store.meta("bad_samples")["r-a-0"]["training"]["count"] == 3


def test_a_long_reason_is_cut() -> None:
    found = counts_of({"training": {"count": 1, "first": "x" * 9000}})
    assert found is not None
    assert len(found["training"]["first"]) == 500


def test_status_and_report_warn_with_the_count(tmp_path: Path) -> None:
    write_run(tmp_path, peers=2, epochs=2)
    with RunStore.open_writer(tmp_path / "run.db") as store:
        assert summarise(store)["bad_samples"] is None  # a run of before these counts
        vms = sorted(row.vm for row in store.records("vms"))
        BadSamples(store).write([seen(vms[0], training=1200, heldout=3), seen(vms[1], training=4, heldout=3)])
        summary, snapshot = summarise(store), snapshot_of(store, 0.0, controller_alive=False)
    expected = (
        "1,204 bad training samples (p-0 1,200, p-1 4) and 3 bad held-out samples were left out "
        f"(data.bad_samples: skip); the first: {FIRST}."
    )
    assert expected in summary["warnings"]
    assert expected in snapshot["warnings"]
    assert {k: summary["bad_samples"][k] for k in ("training", "heldout", "first")} == {
        "training": 1204, "heldout": 3, "first": FIRST,
    }  # fmt: skip
    assert [row["training"] for row in summary["bad_samples"]["vms"]] == [1200, 4]


def test_no_bad_sample_is_no_warning_and_a_known_0(tmp_path: Path) -> None:
    write_run(tmp_path, peers=2, epochs=2)
    with RunStore.open_writer(tmp_path / "run.db") as store:
        before = snapshot_of(store, 0.0, controller_alive=False)["warnings"]
        BadSamples(store).write([seen(row.vm) for row in store.records("vms")])
        assert snapshot_of(store, 0.0, controller_alive=False)["warnings"] == before
        assert summarise(store)["bad_samples"]["training"] == 0
