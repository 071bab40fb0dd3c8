"""A fake launcher for studies that writes run.db files of finished runs, without processes."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any, ClassVar

from made_up_run import write_run

from metrics.store.database import RunStore
from orchestrator.home import run_folder
from orchestrator.study.core import Job
from orchestrator.study.definition import StudyDefinition
from orchestrator.study.runner import Inspection, RunError, Watched
from orchestrator.study.verdict import Disturbance


class MadeRuns:
    """Replaces `orchestrator.cli.commands.study.launcher.RunLauncher`. The class attributes are the script."""

    refused: ClassVar[set[str]] = set()  # jobs that do not start; "geo-a2 2": the second attempt
    busy: ClassVar[dict[str, int]] = {}  # by job: number of runs with a busy host
    interrupt: ClassVar[set[str]] = set()  # jobs whose first run is interrupted
    made: ClassVar[list[str]] = []

    def __init__(self, home: Path, study: StudyDefinition, screen: Any) -> None:
        self._home, self._study, self._screen = home, study, screen

    def inspect(self, run_id: str) -> Inspection:
        folder = run_folder(self._home, run_id)
        if not (folder / "run.db").exists():
            return Inspection("absent")
        with RunStore.open_reader(folder / "run.db") as store:
            return Inspection("ended", str(store.meta("status")))

    def start(self, job: Job, run_id: str) -> None:
        if {job.key, f"{job.key} {run_id.rpartition('-')[2]}"} & self.refused:
            raise RunError(f"{run_id}: no memory for 8 peers; end something")
        self.made.append(run_id)

    def watch(self, job: Job, run_id: str, until_s: float) -> Watched:
        if job.key in self.interrupt:
            self.interrupt.discard(job.key)
            self._write(run_id, job, "stopped")
            return Watched("taken_down")
        self._write(run_id, job, "done")
        return Watched("ended")

    def take_down(self, run_id: str, why: str) -> None:
        raise AssertionError("nothing runs")

    def disturbances(self, run_id: str) -> dict[Disturbance, str]:
        job = run_id.rsplit("-", 3)[0]
        left = self.busy.get(job, 0)
        self.busy[job] = left - 1
        if left <= 0:
            return {}
        self._set(run_id, {"host": {"contended": True, "reasons": ["late"]}})
        return {Disturbance.HOST_BUSY: "the host was too busy (late)"}

    def _write(self, run_id: str, job: Job, status: str) -> None:
        folder = run_folder(self._home, run_id)
        folder.mkdir(parents=True)
        with tempfile.TemporaryDirectory() as made:
            write_run(Path(made), peers=2, epochs=3)
            shutil.copy(Path(made) / "run.db", folder / "run.db")
        (folder / "experiment.yaml").touch()
        self._set(
            run_id, {"run_id": run_id, "experiment": dict(self._study.documents[job.key]), "status": status}
        )

    def _set(self, run_id: str, values: dict[str, Any]) -> None:
        with RunStore.open_writer(run_folder(self._home, run_id) / "run.db") as store:
            for key, value in values.items():
                store.set_meta(key, value)
