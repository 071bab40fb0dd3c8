"""Start a run from an approved plan; shared by `orch launch` and `orch study run`."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

from cloud.targets import TARGETS
from orchestrator.cli.follow import take_down
from orchestrator.cli.render.terminal import say
from orchestrator.cli.render.words import owner_words
from orchestrator.controller import client
from orchestrator.home import stored_owner
from orchestrator.launch.plan_run import RunPlan
from orchestrator.launch.prepare import prepare


def make_run(plan: RunPlan, document: bytes, run_id: str, home: Path) -> None:
    """Create the run's folder. `document` is the content of the experiment file. Raises the errors of `prepare`."""
    with tempfile.TemporaryDirectory(prefix="orch-launch-") as folder:
        file = Path(folder) / "experiment.yaml"
        file.write_bytes(document)
        prepare(plan, file, run_id, home, now_s=time.time())


def start_run(run_id: str, home: Path, on: str) -> client.RunConnection:
    """Start a run created by `make_run`. Raises the errors of `client.launch`; on Ctrl-C the run is torn down first."""
    try:
        if TARGETS[on].rents:
            say(owner_words(stored_owner(home)))
        return client.launch(run_id, home)
    except KeyboardInterrupt:
        say(f"interrupted while starting; tearing down {run_id}")
        take_down(run_id, home, "interrupted while starting")
        raise
