"""A run for Weights & Biases: a folder that `wandb sync` uploads. Writing it makes no connection.

W&B cannot append to such a folder after a crash. All of a run is in run.db, so a new log writes a new folder from the
first epoch, and then removes the earlier ones of this run.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from analysis.export.tracking import FINAL, TrackedRun

_EPOCH = "epoch"
_REPLACED = "replaced-"
_SETTINGS: Mapping[str, Any] = {
    "mode": "offline",
    "silent": True,
    "console": "off",
    "disable_git": True,
    "disable_code": True,
    "save_code": False,
    "x_disable_stats": True,
    "x_disable_meta": True,
    "x_disable_machine_info": True,
    "x_save_requirements": False,
}
"""No statistics of this machine, no names of its packages, no copies of code."""


def open_log(settings: Mapping[str, str], run_id: str) -> WandbRun:
    """Open the log of a run, by the settings `project` and `folder`."""
    return WandbRun(Path(settings["folder"]), settings["project"], run_id)


def export_log(folder: Path, final: Path, run: TrackedRun) -> WandbRun:
    """Open the log of an export, which is written to `folder`. The project is the experiment."""
    return WandbRun(folder, run.experiment, run.run_id)


class WandbRun:
    """One run of W&B, with a point for each epoch and its time in `_timestamp`."""

    def __init__(self, folder: Path, project: str, run_id: str) -> None:
        """The run's folder will be `folder`/wandb/offline-run-<time>-<run id>."""
        # Before W&B is imported: no reports of its errors to its makers.
        os.environ["WANDB_ERROR_REPORTING"] = "false"
        os.environ["WANDB_MODE"] = "offline"
        self._folder, self._project, self._run_id = folder, project, run_id
        self._run: Any = None
        self._written: set[tuple[str, int]] = set()  # name and epoch
        self._old: list[Path] = []  # earlier folders of this run

    def write(self, run: TrackedRun, *, last: bool) -> None:
        """Log what this log has not yet written. Raises wandb.errors.Error, OSError."""
        try:
            log = self._run or self._begin(run)
            for point in run.points:
                values = {n: v for n, v in point.values.items() if (n, point.epoch) not in self._written}
                if values:
                    since_s = point.at_s - run.started_s
                    log.log({**values, _EPOCH: point.epoch, "_timestamp": point.at_s, "_runtime": since_s})
                    self._written |= {(name, point.epoch) for name in values}
            if last:
                log.summary.update({FINAL + name: value for name, value in run.final.items()})
                log.summary.update({"orch.status": run.status})
                self._run = None
                log.finish(exit_code=0 if run.status in ("done", "running") else 1)
            for old in self._old:
                shutil.rmtree(old)
            self._old = []
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """End W&B's process."""
        log, self._run = self._run, None
        try:
            if log is not None:
                log.finish()
        finally:
            import_module("wandb").teardown()

    def _folders(self, prefix: str) -> list[Path]:
        """W&B's folders of this run, not those of one whose id only ends like its id."""
        name = re.compile(rf"{prefix}[0-9]+_[0-9]+-{re.escape(self._run_id)}")
        return [path for path in self._folder.glob(f"wandb/{prefix}*") if name.fullmatch(path.name)]

    def _begin(self, run: TrackedRun) -> Any:
        wandb = import_module("wandb")
        known = wandb.Settings.model_fields
        chosen = {name: value for name, value in _SETTINGS.items() if name in known}
        self._folder.mkdir(parents=True, exist_ok=True)
        for old in self._folders("offline-run-"):
            old.rename(old.with_name(f"{_REPLACED}{old.name}"))  # W&B names folders by the second
        self._old = self._folders(f"{_REPLACED}offline-run-")
        self._written = set()
        self._run = wandb.init(
            project=self._project,
            group=run.experiment,
            id=self._run_id,
            name=self._run_id,
            dir=str(self._folder),
            config=dict(run.parameters),
            tags=["emulated"] if run.emulated else None,
            settings=wandb.Settings(**chosen),
        )
        self._run.define_metric("*", step_metric=_EPOCH)
        return self._run
