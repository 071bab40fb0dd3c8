"""The models of a VM and of a path: their values, and the runs of the paper on which they were calibrated."""

from __future__ import annotations

import csv
import re
from importlib import resources

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloud.networks import (
    NO_PATH_MODEL,
    Network,
    NetworkError,
    Path,
    path_model,
    path_model_names,
    vm_limit,
    vm_model,
)
from experiments.catalog import models, step_times

US, EU, AUS = "gcp/us-central1", "gcp/europe-west1", "gcp/australia-southeast1"
NETWORK, STUDY = Network.load("study-2023-04"), path_model("study")


def _rows(file: str) -> list[dict[str, str]]:
    with (resources.files("cloud.networks") / file).open(encoding="utf-8") as text:
        return list(csv.DictReader(text))


@pytest.mark.parametrize(
    ("file", "allowed"),
    [
        ("vm_models.csv", {"A-1", "A-2", "B-2", "B-4", "B-6", "B-8"}),
        ("path_models.csv", {"B-2", "B-4", "B-6", "B-8"}),
    ],
)
def test_a_model_is_calibrated_on_its_own_runs_only_and_names_its_source(file, allowed):
    rows = _rows(file)
    assert rows
    for row in rows:
        named = set(re.findall(r"[A-F]-\d+", row["calibrated_on"]))
        assert named <= allowed, row
        assert not re.sub(r"[A-F]-\d+|\s", "", row["calibrated_on"]), "runs and nothing else"
        assert named or "published" in row["source"] or "arXiv" in row["source"], row
        assert row["source"]
        assert row["unit"]
        assert not re.search(r"\bC-\d", row["source"]), "C is always a prediction"
    assert all(row["calibrated_on"] for row in rows if row["key"] != "processing_bps")


@pytest.mark.parametrize("file", ["vm_models.csv", "path_models.csv"])
def test_a_figure_lies_in_its_own_interval(file):
    for row in _rows(file):
        assert (
            float(row["low"] or row["value"]) <= float(row["value"]) <= float(row["high"] or row["value"])
        ), row


def test_the_step_times_of_the_studys_vm_name_no_other_run():
    with (resources.files("experiments") / "accelerators.csv").open(encoding="utf-8") as text:
        every = [row for row in csv.DictReader(text) if row["accelerator"] == "T4:1"]
    rows = [row for row in every if models()[row["model"]].kind != "digits"]  # theirs are defined
    assert rows
    for row in rows:
        assert set(re.findall(r"\b[A-F]-\d\b", row["source"])) == {"A-1", "A-2"}, row


def test_a_vms_work_around_a_round_is_the_models():
    vm = vm_model()
    assert vm.processing_bps == vm_limit() == 1.1e9
    for (model, accelerator), times in step_times().items():
        if accelerator == "T4:1" and models()[model].kind != "digits":
            assert times.sync_work_s == pytest.approx(vm.sync_work_s(models()[model].parameters), abs=1e-3)


def test_one_stream_carries_the_window_a_round_trip():
    path = NETWORK.path(US, EU)
    assert STUDY.stream_bps(path) == pytest.approx(STUDY.window_bytes * 8 / 0.1031)
    assert STUDY.stream_bps(path) > path.stream_bps, "the file's figure has slow start in it"


def test_each_further_stream_of_a_vm_holds_the_window_longer():
    path = NETWORK.path(EU, AUS)
    for streams in (1, 3, 7):
        seconds = path.rtt_s + STUDY.hold_s * (streams - 1)
        assert STUDY.stream_bps(path, streams) == pytest.approx(STUDY.window_bytes * 8 / seconds)


def test_a_path_that_something_else_limits_keeps_its_own_figure():
    faster = NETWORK.path(US, "aws/us-west-2")
    assert faster.window_bytes > STUDY.window_bytes
    assert STUDY.stream_bps(faster) == pytest.approx(faster.stream_bps)
    slower = type(faster)(0.1506, 30e6, "an on-premise link")
    assert [STUDY.stream_bps(slower, k) for k in (1, 4)] == pytest.approx([30e6, 30e6]), (
        "the window is not what is full"
    )
    short = type(faster)(0.005, 500e6, "a short link")
    assert STUDY.stream_bps(short, 3) == pytest.approx(500e6)
    assert STUDY.stream_bps(short, 8) == pytest.approx(STUDY.window_bytes * 8 / (0.005 + 7 * STUDY.hold_s))


@given(st.floats(1e-4, 0.4), st.floats(1e6, 1e10), st.integers(1, 30))
def test_a_further_stream_never_makes_the_others_faster(rtt_s, stream_bps, streams):
    path = Path(rtt_s, stream_bps, "")
    fewer, more = STUDY.stream_bps(path, streams), STUDY.stream_bps(path, streams + 1)
    assert 0 < more <= fewer
    assert STUDY.stream_bps(path) >= stream_bps * (1 - 1e-9)


def test_two_vms_in_one_place_are_left_alone():
    assert STUDY.carried_bps(NETWORK, US, US, 7) == NETWORK.path(US, US).stream_bps
    assert STUDY.carried_bps(NETWORK, US, EU, 7) == STUDY.stream_bps(NETWORK.path(US, EU), 7)


def test_without_a_model_a_stream_carries_the_files_figure():
    path = NETWORK.path(US, EU)
    assert path_model("none") is NO_PATH_MODEL
    assert [NO_PATH_MODEL.stream_bps(path, k) for k in (1, 7)] == pytest.approx([path.stream_bps] * 2)


def test_a_calm_model_has_the_same_streams_and_no_spells():
    calm = path_model("study-calm")
    assert (calm.name, calm.spell_rate_per_s) == ("study-calm", 0.0)
    assert STUDY.spell_rate_per_s > 0
    path = NETWORK.path(EU, AUS)
    assert [calm.stream_bps(path, k) for k in (1, 7)] == [STUDY.stream_bps(path, k) for k in (1, 7)]


def test_a_model_that_is_not_there_is_an_error():
    assert path_model_names() == ["none", "study", "study-calm"]
    for read in (path_model, vm_model):
        with pytest.raises(NetworkError, match=r"s.csv has no .*'moon'"):
            read("moon")
