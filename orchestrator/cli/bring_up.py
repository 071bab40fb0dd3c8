"""From an approved plan to a run that has a controller: what `orch launch` and `orch study run` share."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

from cloud.targets import TARGETS
from orchestrator.cli.follow import take_down
from orchestrator.cli.render.terminal import say
from orchestrator.cli.render.words import owner_words
from orchestrator.controller import client
from orchestrator.home import kept_owner
from orchestrator.launch.plan_run import RunPlan
from orchestrator.launch.prepare import prepare


def make_run(plan: RunPlan, document: bytes, run_id: str, home: Path) -> None:
    """Make the run's folder; `document` is the experiment's file. Raises as `prepare`."""
    with tempfile.TemporaryDirectory(prefix="orch-launch-") as folder:
        file = Path(folder) / "experiment.yaml"
        file.write_bytes(document)
        prepare(plan, file, run_id, home, now_s=time.time())


def start_run(run_id: str, home: Path, on: str) -> client.RunConnection:
    """Bring up a run that `make_run` made. Raises as `client.launch`; interrupted, it takes down what it began."""
    try:
        if TARGETS[on].rents:
            say(owner_words(kept_owner(home)))
        return client.launch(run_id, home)
    except KeyboardInterrupt:
        say(f"interrupted while starting: taking {run_id} down")
        take_down(run_id, home, "interrupted while starting")
        raise
