"""Logs of two runs: one that a test damages, and one that must stay intact."""

from __future__ import annotations

from pathlib import Path

from wandb_logs import Swarm, Truth, write_swarm

from analysis.importers.wandb import WandbLogs
from metrics.store.database import RunStore

BAD, GOOD = "hivemind-7", "hivemind-8"
HOSTS = ("gc-us-t4-1", "gc-us-t4-2")


def write_both(folder: Path) -> Truth:
    """Write the logs and return the truth of the run to be damaged."""
    truth = write_swarm(folder, Swarm(run_id=BAD, hosts=HOSTS))
    write_swarm(folder, Swarm(run_id=GOOD, hosts=HOSTS, seed=1))
    return truth


def imported(folder: Path, tmp_path: Path, index: Path | None = None) -> tuple[list[str], str, str, int]:
    """(runs, the problems, the bad run's warnings, how many epoch records it has); the good run is whole."""
    found = WandbLogs().import_runs(folder, tmp_path / "into", index=index)
    names = [f.name for f in found.folders]
    assert GOOD in names
    with RunStore.open_reader(tmp_path / "into" / GOOD / "run.db") as store:
        assert len(store.records("epochs")) == 6
        assert not [w for w in store.meta("warnings") if ".csv:" in w]
    if BAD not in names:
        return names, "\n".join(found.problems), "", 0
    with RunStore.open_reader(tmp_path / "into" / BAD / "run.db") as store:
        return (
            names,
            "\n".join(found.problems),
            "\n".join(store.meta("warnings")),
            len(store.records("epochs")),
        )
