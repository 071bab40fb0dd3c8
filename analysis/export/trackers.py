"""Writes a run for an experiment tracker: TensorBoard, MLflow, or Weights & Biases without a connection.

A tracker's log writes what it lacks of a run, so that writing a run twice, or again after a crash, repeats nothing. An
export is one such write into a new folder; `orchestrator.tracking` writes while the run goes on.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

from analysis.export.tables import EXPORT_FORMAT, EXPORT_VERSION, MANIFEST, ExportError, new_folder, snapshot
from analysis.export.tracking import TrackedRun, tracked_run
from metrics.store.schema import SCHEMA_VERSION

_PACKAGES: Mapping[str, tuple[str, ...]] = {
    "tensorboard": ("tensorboard",),
    "mlflow": ("mlflow", "sqlalchemy", "alembic"),
    "wandb": ("wandb",),
}
"""What each tracker imports; pyproject.toml has an extra of the tracker's name."""


class TrackerLog(Protocol):
    """One run in one tracker."""

    def write(self, run: TrackedRun, *, last: bool) -> None:
        """Write what is missing of the run; with `last` also its final figures and its end.

        After an error the log reads again what it has, so the call can be repeated.
        """
        ...

    def close(self) -> None:
        """Let go of files and processes. The run can be written again later by a new log."""
        ...


def tracker_lacks(tracker: str) -> str:
    """Return one sentence on what a tracker needs and this environment lacks; "" if nothing is missing."""
    absent = [name for name in _PACKAGES[tracker] if find_spec(name) is None]
    if not absent:
        return ""
    named = f"the package {absent[0]}, which is" if len(absent) == 1 else f"{', '.join(absent)}, which are"
    return (
        f"{tracker} needs {named} not installed here; install it with `.venv/bin/python -m pip install -e "
        f"'.[{tracker}]'` in a clone of orch"
    )


def open_log(tracker: str, settings: Any, run_id: str) -> TrackerLog:
    """Open a run's log by a key of the YAML section `tracking` and its value (experiments/schema/tracking.py)."""
    module = import_module(f"analysis.export.{tracker}")
    return module.open_log(settings, run_id)


def export_tracked(run_db: Path, out: Path, tracker: str, force: bool = False) -> None:
    """Write the folder `out` for a tracker: "tensorboard", "mlflow" or "wandb".

    A run in progress is written as of one moment. `force` replaces an existing export. Raises ExportError,
    metrics.store.database.StoreError.
    """
    if lacks := tracker_lacks(tracker):
        raise ExportError(f"--to {lacks}")
    with snapshot(run_db) as store:
        run = tracked_run(store)
    with new_folder(out, force) as folder:
        log = import_module(f"analysis.export.{tracker}").export_log(folder, out.absolute(), run)
        try:
            log.write(run, last=True)
        finally:
            log.close()
        manifest = {
            "format": EXPORT_FORMAT,
            "version": EXPORT_VERSION,
            "schema_version": SCHEMA_VERSION,
            "orch_version": version("orch"),
            "run_id": run.run_id,
            "form": tracker,
        }
        (folder / MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")
