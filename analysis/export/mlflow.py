"""A run in an MLflow store: a SQLite file in a folder, which `mlflow ui` shows, or a tracking server.

Needs `mlflow-skinny`, `sqlalchemy` and `alembic`. MLflow no longer opens its former store of plain files by default.
"""

from __future__ import annotations

import json
import logging
import os
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

from analysis.export.tracking import EMULATED, FINAL, RUNNING, Parameter, TrackedRun

RUN_ID = "orch.run_id"
"""The tag by which a run is found again."""
_DATABASE = "mlflow.db"
_NOT_IN_NAMES = re.compile(r"[^\w.\-/ ]")
_LONGEST_NAME, _LONGEST_VALUE = 250, 6000  # characters that MLflow keeps
_METRICS, _PARAMETERS = 1000, 100  # of one request
_STATUS = {"done": "FINISHED", "stopped": "KILLED", RUNNING: "RUNNING"}


def open_log(settings: str, run_id: str) -> MlflowRun:
    """Open the log of a run in a folder, or at the URL of a server."""
    if "://" in settings:
        return MlflowRun(settings, "", run_id)
    folder = Path(settings)
    folder.mkdir(parents=True, exist_ok=True)
    return MlflowRun(_database_in(folder), (folder / "artifacts").as_uri(), run_id)


def export_log(folder: Path, final: Path, run: TrackedRun) -> MlflowRun:
    """Open the log of an export, which is written to `folder` and will be `final`."""
    return MlflowRun(_database_in(folder), (final / "artifacts").as_uri(), run.run_id)


def _database_in(folder: Path) -> str:
    return f"sqlite:///{folder.absolute() / _DATABASE}"


class MlflowRun:
    """One run of an MLflow store; its steps are Hivemind epochs."""

    def __init__(self, uri: str, artifacts: str, run_id: str) -> None:
        """`artifacts`: where a new experiment would keep artifacts, of which orch writes none; "": the server's choice."""
        # Before MLflow is imported. The server may be away: the next write tries again.
        os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "10")
        self._uri, self._artifacts, self._run_id = uri, artifacts, run_id
        self._client: Any = None
        self._id = ""  # MLflow's id of the run; "": not yet looked for
        self._written: set[tuple[str, int]] = set()  # name and step

    def write(self, run: TrackedRun, *, last: bool) -> None:
        """Log what the store lacks. Raises mlflow.exceptions.MlflowException and errors of its store."""
        entities = import_module("mlflow.entities")
        try:
            if not self._id:
                self._find(run)
            values = [
                entities.Metric(name, value, _ms(at_s), step)
                for name, value, at_s, step in _values(run, last=last)
                if (name, step) not in self._written
            ]
            for n in range(0, len(values), _METRICS):
                self._client.log_batch(self._id, metrics=values[n : n + _METRICS])
            self._written |= {(value.key, value.step) for value in values}
            if last:
                self._client.set_terminated(
                    self._id, _STATUS.get(run.status, "FAILED"), end_time=_ms(run.ended_s)
                )
        except BaseException:
            self._id = ""  # what was written is found out again
            raise

    def close(self) -> None:
        """Close the database."""
        client, self._client, self._id = self._client, None, ""
        store = None if client is None else getattr(client, "_tracking_client").store  # noqa: B009
        if store is not None and hasattr(store, "engine"):
            store.engine.dispose()

    def _find(self, run: TrackedRun) -> None:
        """Find the run in the store, or create it, and read what it has."""
        entities = import_module("mlflow.entities")
        if self._client is None:
            # The registry of models is not used, but must be something that MLflow can open.
            mlflow = import_module("mlflow")
            logging.getLogger("mlflow").setLevel(logging.WARNING)  # it reports each table that it creates
            self._client = mlflow.MlflowClient(self._uri, registry_uri=self._uri)
        client = self._client
        experiment = client.get_experiment_by_name(run.experiment)
        inside = (
            client.create_experiment(run.experiment, artifact_location=self._artifacts or None)
            if experiment is None
            else experiment.experiment_id
        )
        found = client.search_runs([inside], f"tags.`{RUN_ID}` = '{self._run_id}'", max_results=1)
        if found:
            kept = found[0]
        else:
            tags = {RUN_ID: self._run_id}
            if run.emulated is not None:
                tags[EMULATED] = str(run.emulated).lower()
            kept = client.create_run(inside, _ms(run.started_s), tags, run.run_id)
        known = kept.info.run_id
        parameters = [entities.Param(_name(name), _text(value)) for name, value in run.parameters.items()]
        parameters = [p for p in parameters if p.key not in kept.data.params]
        for n in range(0, len(parameters), _PARAMETERS):
            client.log_batch(known, params=parameters[n : n + _PARAMETERS])
        self._written = {
            (name, value.step)
            for name in kept.data.metrics
            for value in client.get_metric_history(known, name)
        }
        self._id = known


def _values(run: TrackedRun, *, last: bool) -> Iterator[tuple[str, float, float, int]]:
    """Name, value, unix seconds and step of each value."""
    for point in run.points:
        yield from ((_name(name), value, point.at_s, point.epoch) for name, value in point.values.items())
    if last:
        for name, value in run.final.items():
            yield _name(FINAL + name), value, run.ended_s, run.last_epoch


def _name(name: str) -> str:
    return _NOT_IN_NAMES.sub("_", name)[:_LONGEST_NAME]


def _text(value: Parameter) -> str:
    """A parameter as text: 32768, 0.01, true."""
    text = value if isinstance(value, str) else json.dumps(int(value) if _is_whole(value) else value)
    return text if len(text) <= _LONGEST_VALUE else text[: _LONGEST_VALUE - 3] + "..."


def _is_whole(value: float) -> bool:
    return not isinstance(value, bool) and float(value).is_integer()


def _ms(at_s: float) -> int:
    return round(at_s * 1000)
