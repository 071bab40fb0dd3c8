"""Runs of this machine that belong to an experiment and its proposals."""

from __future__ import annotations

from pathlib import Path

import pytest
from made_up_run import write_run

from analysis.compare import measured
from analysis.compare.measured import measured_runs
from metrics.store.database import RunStore


def made(folder: Path, name: str, experiment: str = "geo-c8", epochs: int = 2, **meta: object) -> Path:
    (folder / name).mkdir()
    write_run(folder / name, peers=2, epochs=epochs)
    with RunStore.open_writer(folder / name / "run.db") as store:
        for key, value in {"run_id": name, "experiment": {"name": experiment}, **meta}.items():
            store.set_meta(key, value)
    return folder / name


def test_runs_of_the_experiment_and_of_its_proposals(tmp_path: Path):
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "run.db").write_bytes(b"no database at all, but long enough to be read as one" * 20)
    folders = [
        made(tmp_path, "own"),
        made(tmp_path, "proposal", "geo-c8-a12"),
        made(tmp_path, "other", "geo-c8-nlp"),
        made(tmp_path, "imported", imported={"by": "a test"}),
        made(
            tmp_path,
            "model",
            model={"name": "RoBERTaXLM", "parameters": 1, "ran": "", "bytes_per_sample": 1.0},
        ),
        made(tmp_path, "batch", target_batch_size=8192),
        made(tmp_path, "young", epochs=1),
        broken,
        tmp_path / "gone",
    ]
    found = measured_runs(folders, "geo-c8", "ConvNextLarge", 32768)
    assert [(one.run.run_id, one.experiment) for one in found.runs] == [
        ("own", "geo-c8"),
        ("proposal", "geo-c8-a12"),
    ]
    assert all(one.run.origin == "emulated" and one.run.value("sps") for one in found.runs)
    assert [(one.status, one.host, one.predicted) for one in found.runs] == [("done", "", ())] * 2
    left = dict(found.left_out)
    assert set(left) == {"model", "batch", "young", "broken", "gone"}
    assert left["model"] == "it trained RoBERTaXLM, not ConvNextLarge"
    assert left["batch"] == "its target batch size is 8192, not 32768"
    assert left["young"] == "no measured epoch"
    assert left["broken"].startswith("cannot be read: ")


def test_the_newest_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(measured, "MOST", 1)
    folders = [made(tmp_path, name) for name in ("new", "old")]
    found = measured_runs(folders, "geo-c8", "ConvNextLarge", 32768)
    assert [one.run.run_id for one in found.runs] == ["new"]
    assert found.left_out == (("old", "older than the 1 that are shown"),)


def test_what_its_plan_predicted_is_beside_it(tmp_path: Path):
    value = {"value": 300.0, "low": 250.0, "high": 350.0}
    folder = made(tmp_path, "own", plan={"prediction": {"sps": value}})
    [one] = measured_runs([folder], "geo-c8", "ConvNextLarge", 32768).runs
    [pair] = one.predicted
    assert pair["predicted"] == value
    assert pair["measured"] == one.run.value("sps")
