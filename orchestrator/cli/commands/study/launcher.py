"""Start, follow and tear down the runs of a study, with the functions behind `orch launch`, `attach` and `down`."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

import yaml

from cloud.local import LocalCloud
from cloud.networks.network import NetworkError
from cloud.places import PlaceError
from cloud.prices.rows import PriceBookError
from cloud.provider import ProviderError
from cloud.storage.errors import StorageError
from cloud.targets import target_of
from experiments.parse.load import from_document
from experiments.schema.errors import SpecError
from metrics.store.database import DiskFullError, RunStore, StoreError
from orchestrator.cli.bring_up import make_run, start_run
from orchestrator.cli.commands.report import summary_of
from orchestrator.cli.follow import Screen, follow, take_down
from orchestrator.cli.render.terminal import say
from orchestrator.controller import client
from orchestrator.controller.actor import began, controller_alive
from orchestrator.errors import ControllerLostError, OrchError, StalePlanError, TeardownError
from orchestrator.home import run_folder
from orchestrator.launch.default_checkpoints import with_writable_checkpoints
from orchestrator.launch.plan_run import approved_plan, host_cores
from orchestrator.launch.preflight import make_aws_role, preflight
from orchestrator.study.runner import Inspection, RunError, Watched
from orchestrator.study.verdict import Disturbance, disturbances

if TYPE_CHECKING:
    from orchestrator.study.core import Job
    from orchestrator.study.definition import StudyDefinition

_RUN_FAULTS = (
    OrchError, ProviderError, StoreError, StorageError, SpecError, PriceBookError, NetworkError, PlaceError,
)  # fmt: skip
_CONTROLLERS = 3  # the study gives a run up when this many of its controllers have died


class RunLauncher:
    """Implements `orchestrator.study.runner.Launcher`."""

    def __init__(self, home: Path, study: StudyDefinition, screen: Screen) -> None:
        self._home, self._study, self._screen = home, study, screen

    def inspect(self, run_id: str) -> Inspection:
        """Inspect run.db and the live processes; Ray is not needed."""
        folder = run_folder(self._home, run_id)
        if not (folder / "run.db").exists():
            return Inspection("absent")
        with RunStore.open_reader(folder / "run.db") as store:
            meta = store.run_meta()
            status, error, target = str(meta.status or ""), meta.error or "", meta.target
        if status != "running":
            return Inspection("ended", status, error)
        if not began(folder):
            return Inspection("made")
        gone = not controller_alive(folder) and not LocalCloud(folder).alive
        return Inspection("lost" if gone and not target_of(target).rents else "running")

    def start(self, job: Job, run_id: str) -> None:
        """Start the run with the approved experiment and plan."""
        study = self._study
        document = study.documents[job.key]
        text = yaml.safe_dump(document, sort_keys=False, allow_unicode=True).encode()
        try:
            spec = from_document(dict(document))
            plan = approved_plan(spec, study.on, study.plans[job.key], cores=host_cores())
            preflight(plan, self._home)
            plan = with_writable_checkpoints(plan)
            make_aws_role(plan.spec, study.on)
            make_run(plan, text, run_id, self._home)
            start_run(run_id, self._home, study.on)
        except (TeardownError, DiskFullError, StalePlanError, PriceBookError):
            raise  # the next run would fail as well
        except _RUN_FAULTS as error:
            raise RunError(str(error)) from error

    def watch(self, job: Job, run_id: str, until_s: float) -> Watched:
        """Follow the run, restarting its controller if it dies."""
        lost = 0
        while True:
            try:
                return self._followed(run_id, until_s)
            except ControllerLostError as error:
                lost += 1
                if lost == _CONTROLLERS:
                    raise RunError(str(error)) from error
                say(f"{error}; attaching")
            except (TeardownError, DiskFullError):
                raise
            except _RUN_FAULTS as error:
                if self.inspect(run_id).state == "ended":  # meanwhile, or for its own reason
                    return Watched("ended")
                raise RunError(str(error)) from error

    def _followed(self, run_id: str, until_s: float) -> Watched:
        if self.inspect(run_id).state == "ended":
            return Watched("ended")
        run = client.attach(run_id, self._home)
        return Watched(follow(run, self._home, self._screen, expired=lambda: time.time() >= until_s).kind)

    def take_down(self, run_id: str, why: str) -> None:
        """Tear the run down, gracefully if it has a controller."""
        if self.inspect(run_id).state in ("made", "running"):
            take_down(run_id, self._home, why)
            return
        left = client.down(run_id, self._home)
        if left:
            raise TeardownError(
                f"{run_id}: not torn down completely, left: {', '.join(left)}; run `orch down {run_id}` to retry",
                left,
            )

    def disturbances(self, run_id: str) -> dict[Disturbance, str]:
        """Judge the run by its own numbers."""
        folder = run_folder(self._home, run_id)
        try:
            summary = summary_of(folder)
            with RunStore.open_reader(folder / "run.db") as store:
                meta = store.run_meta()
        except StoreError as error:
            raise RunError(str(error)) from error
        return disturbances(summary, meta.host.reasons if meta.host else (), meta.document)
