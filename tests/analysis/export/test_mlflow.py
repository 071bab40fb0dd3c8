"""`orch export --to mlflow`, read back with MLflow's client."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from made_up_run import write_run

from analysis.export.mlflow import open_log
from analysis.export.tables import ExportError
from analysis.export.trackers import export_tracked
from analysis.export.tracking import TrackedRun, settled, tracked_run
from metrics.store.database import RunStore
from orchestrator.cli.app import run as orch

pytestmark = pytest.mark.skipif(
    find_spec("mlflow") is None, reason="`make install` was run before the extra `dev` had mlflow"
)
RUN = "geo-c8-20231114-aaaa"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_run(tmp_path / RUN)
    with RunStore.open_writer(tmp_path / RUN / "run.db") as store:
        store.set_meta(
            "experiment",
            {"name": "geo-c8", "spot": True, "swarm": {"target_batch_size": 32768, "optimizer": {"lr": 0.01}},
             "envs": {"A$B": "1"}, "setup": "x" * 7000},
        )  # fmt: skip
    return tmp_path / RUN


def tracked(folder: Path) -> TrackedRun:
    with RunStore.open_reader(folder / "run.db") as store:
        return tracked_run(store)


@contextmanager
def stored(store: Path) -> Iterator[tuple[Any, Any]]:
    """The client, and the only run of the store."""
    client = import_module("mlflow").MlflowClient(uri := f"sqlite:///{store / 'mlflow.db'}", uri)
    try:
        experiment = client.get_experiment_by_name("geo-c8")
        (run,) = client.search_runs([experiment.experiment_id])
        yield client, run
    finally:
        client._tracking_client.store.engine.dispose()


def wanted(run: TrackedRun) -> dict[str, list[tuple[int, int, float]]]:
    found: dict[str, list[tuple[int, int, float]]] = {}
    for point in run.points:
        for name, value in point.values.items():
            found.setdefault(name, []).append((point.epoch, round(point.at_s * 1000), value))
    for name, value in run.final.items():
        found[f"final/{name}"] = [(5, round(run.ended_s * 1000), value)]
    return found


def read(client: Any, run: Any) -> dict[str, list[tuple[int, int, float]]]:
    history = {name: client.get_metric_history(run.info.run_id, name) for name in run.data.metrics}
    return {name: sorted((m.step, m.timestamp, m.value) for m in values) for name, values in history.items()}


@pytest.mark.slow  # MLflow creates its tables by all migrations since its first version
def test_mlflow_reads_what_the_run_has(folder: Path, tmp_path: Path):
    export_tracked(folder / "run.db", tmp_path / "out", "mlflow")
    run = tracked(folder)
    with stored(tmp_path / "out") as (client, kept):
        assert read(client, kept) == wanted(run)
        assert (kept.info.status, kept.info.run_name) == ("FINISHED", RUN)
        assert (kept.info.start_time, kept.info.end_time) == (run.started_s * 1000, run.ended_s * 1000)
        assert kept.data.tags["orch.emulated"] == "true"
        parameters = kept.data.params
        assert (parameters["swarm.target_batch_size"], parameters["swarm.optimizer.lr"]) == ("32768", "0.01")
        assert (parameters["spot"], parameters["orch.price_book"]) == ("true", "study-2023-04")
        assert (parameters["envs.A_B"], len(parameters["setup"])) == ("1", 6000)
        place = client.get_experiment(kept.info.experiment_id).artifact_location
        assert place == (tmp_path / "out" / "artifacts").as_uri()


@pytest.mark.slow
def test_writing_again_logs_only_what_is_new(folder: Path, tmp_path: Path):
    run = tracked(folder)
    begun = settled(replace(run, status="running"))
    for _ in range(2):
        log = open_log(str(tmp_path / "store"), RUN)
        log.write(begun, last=False)
        log.write(begun, last=False)
        log.close()
    with stored(tmp_path / "store") as (client, kept):
        assert read(client, kept) == wanted(begun)
        assert kept.info.status == "RUNNING"
    for _ in range(2):
        log = open_log(str(tmp_path / "store"), RUN)
        log.write(run, last=True)
        log.close()
    with stored(tmp_path / "store") as (client, kept):
        assert read(client, kept) == wanted(run)
        assert kept.info.status == "FINISHED"


def test_a_server_that_does_not_respond_is_an_error_and_can_be_tried_again(folder: Path):
    log = open_log("http://127.0.0.1:9", RUN)  # the port "discard", on which nothing listens
    for _ in range(2):
        with pytest.raises(import_module("mlflow").exceptions.MlflowException, match=r"127\.0\.0\.1"):
            log.write(tracked(folder), last=False)
    log.close()


@pytest.mark.slow
def test_from_the_command_line(folder: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]):
    arguments = ["export", str(folder), "--to", "mlflow", "--out", str(tmp_path / "out")]
    assert orch(arguments) == 0
    assert capfd.readouterr() == (f"{tmp_path / 'out'}\n", "")
    assert orch(arguments) == 2  # it exists
    assert "--force" in capfd.readouterr().err
    assert orch([*arguments, "--force"]) == 0
    with stored(tmp_path / "out") as (client, kept):
        assert len(client.get_metric_history(kept.info.run_id, "training/loss")) == 5


def test_missing_packages_are_one_sentence(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "mlflow", None)
    with pytest.raises(ExportError, match=r"needs the package mlflow,.*pip install -e '\.\[mlflow\]'"):
        export_tracked(folder / "run.db", tmp_path / "out", "mlflow")
    monkeypatch.setitem(sys.modules, "alembic", None)
    with pytest.raises(ExportError, match=r"needs mlflow, alembic, which are not installed"):
        export_tracked(folder / "run.db", tmp_path / "out", "mlflow")
    assert not (tmp_path / "out").exists()
