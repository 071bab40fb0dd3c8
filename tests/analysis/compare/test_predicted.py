"""Predicted figures beside measured ones, of one run and of many."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from synthetic_runs import epoch, vm

from analysis.compare.predicted import Pair, accuracy, accuracy_table, pairs_of
from metrics.predicted import words
from metrics.run import RunNumbers
from metrics.store.database import RunStore
from orchestrator.cli.render.prediction import measured_rows

US, EU, IOWA = (
    "gcp/us-central1/us-central1-a",
    "gcp/europe-west1/europe-west1-b",
    "gcp/us-central1/us-central1-b",
)
PAIR = Pair(
    "r-1",
    "geo-b2",
    "emulated",
    "EU+US",
    "flat",
    "ConvNextLarge",
    False,
    "sps",
    110.0,
    90.0,
    120.0,
    100.0,
    0.1,
    True,
)


def pair(error: float, inside: bool | None = True, **other) -> Pair:
    return replace(PAIR, error=error, inside=inside, **other)


def run_of(tmp_path, locations=(US, EU), swarm=None, plan=None):
    store = RunStore.open_writer(tmp_path / "run.db")
    value = {"value": 20.0, "low": 15.0, "high": 25.0}
    meta = {
        "run_id": "r-1", "experiment": {"name": "mine", "swarm": swarm or {}}, "target": "local", "emulated": True,
        "scales": {"bytes": 1, "time": 1, "samples": 1}, "model": {"name": "M", "parameters": 1, "ran": "digits"},
        "plan": {"prediction": {"sps": value, "comm_s": value}} if plan is None else plan, "warmup_epochs": 0,
    }  # fmt: skip
    for key, one in meta.items():
        store.set_meta(key, one)
    names = [f"{k}-0" for k in range(len(locations))]
    store.append("vms", [vm(n, location=at) for n, at in zip(names, locations, strict=True)])
    store.append("epochs", [epoch(n, k, 12.0 * k, samples=64) for n in names for k in (1, 2)])
    with store:
        return RunNumbers.of(store)


def test_a_runs_pairs_say_what_they_are_grouped_by(tmp_path):
    sps, comm = pairs_of(run_of(tmp_path))
    assert (sps.places, sps.method, sps.model, sps.origin) == ("EU+US", "flat", "M", "emulated")
    assert (comm.figure, comm.predicted, comm.measured, comm.error) == ("comm_s", 20.0, 2.0, 9.0)
    assert comm.inside is False


@pytest.mark.parametrize(
    ("locations", "said"), [((US, US), "one place"), ((US, IOWA), "US"), ((US, "other"), "US+unknown")]
)
def test_places_are_named_by_continent(tmp_path, locations, said):
    assert pairs_of(run_of(tmp_path, locations))[0].places == said


def test_options_of_the_method_are_named(tmp_path):
    swarm = {"averaging": "flat", "overlap": "delayed", "compression": "uniform8bit"}
    assert pairs_of(run_of(tmp_path, swarm=swarm))[0].method == "overlap delayed, compression uniform8bit"


def test_a_run_without_a_prediction_has_no_pairs(tmp_path):
    assert pairs_of(run_of(tmp_path, plan={})) == []


def test_errors_of_a_group_by_hand():
    found = [pair(0.1), pair(-0.3, False), pair(0.05), pair(0.2, figure="comm_s")]
    sps, comm = accuracy(found)
    assert (sps.figure, sps.n, sps.median, sps.worst, sps.inside) == ("sps", 3, 0.1, -0.3, 2)
    assert sps.bias == pytest.approx(-0.05)
    assert (comm.figure, comm.n, comm.inside) == ("comm_s", 1, 1)
    assert accuracy_table([sps])[0] | {} == {
        "places": "EU+US", "method": "flat", "model": "ConvNextLarge", "measured": "emulated", "figure": "throughput",
        "n": "3", "median error": "10.0%", "worst": "-30.0%", "bias": "-5.0%", "inside": "2 of 3",
    }  # fmt: skip


def test_a_measurement_that_is_unknown_counts_in_no_group():
    unknown = replace(PAIR, measured=None, error=None, inside=None)
    assert accuracy([unknown]) == []


def test_what_was_not_measured_is_shown_as_unknown():
    value = {"value": 110.0, "low": 90.0, "high": 120.0}
    row = words({"figure": "sps", "predicted": value, "measured": None, "error": None, "inside": None})
    assert (row["measured"], row["error"], row["inside"]) == ("unknown", "unknown", "unknown")


def test_bytes_are_shown_in_the_unit_of_their_figure():
    value = {"value": 1.1e9, "low": 1.0e9, "high": 1.2e9}
    pair = {
        "figure": "egress_bytes_per_vm_epoch",
        "predicted": value,
        "measured": 1.0e9,
        "error": 0.1,
        "inside": True,
    }
    row = words(pair)
    assert row["figure"] == "egress (GB per VM and epoch)"
    assert (row["predicted"], row["90 % interval"], row["measured"]) == ("1.1", "1 to 1.2", "1")
    assert measured_rows([pair]) == [("predicted", "egress 1.1 GB [1 GB, 1.2 GB] (+10.0%)")]


def test_runs_of_a_busy_host_are_left_out_of_the_errors():
    busy = pair(9.0, host_contended=True)
    assert [row.n for row in accuracy([pair(0.1), busy, pair(0.2, host_contended=None)])] == [2]


@given(
    st.lists(
        st.tuples(st.floats(-1, 5), st.booleans(), st.sampled_from(["one place", "EU+US"])),
        min_size=1,
        max_size=30,
    )
)
def test_every_pair_is_in_exactly_one_group(made):
    rows = accuracy([pair(error, inside, places=places) for error, inside, places in made])
    assert sum(row.n for row in rows) == len(made)
    assert sum(row.inside for row in rows) == sum(inside for _, inside, _ in made)
    for row in rows:
        assert 0 <= row.median <= abs(row.worst)
        assert abs(row.bias) <= abs(row.worst) + 1e-9
