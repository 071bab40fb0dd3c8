"""The process that writes a run's trackers: what it writes, what it survives, and that it ends with its controller."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from made_up_run import write_run

from analysis.export.tracking import TrackedRun, settled, tracked_run
from metrics.store.database import RunStore
from orchestrator.tracking.follower import Trackers
from orchestrator.tracking.process import start_tracking

pytestmark = pytest.mark.skipif(
    any(find_spec(name) is None for name in ("tensorboard", "mlflow", "wandb")),
    reason="`make install` was run before the extra `dev` had the trackers",
)
RUN = "geo-c8-20231114-aaaa"


def read(folder: Path) -> TrackedRun:
    with RunStore.open_reader(folder / "run.db") as store:
        return tracked_run(store)


def scalars(folder: Path) -> dict[str, list[tuple[int, float]]]:
    found = import_module("tensorboard.backend.event_processing.event_accumulator").EventAccumulator(
        str(folder), size_guidance={"scalars": 0}
    )
    found.Reload()
    return {tag: [(s.step, s.wall_time) for s in found.Scalars(tag)] for tag in found.Tags()["scalars"]}


def wanted(run: TrackedRun) -> dict[str, list[tuple[int, float]]]:
    found: dict[str, list[tuple[int, float]]] = {}
    for point in run.points:
        for name in point.values:
            found.setdefault(name, []).append((point.epoch, point.at_s))
    return found | {f"final/{name}": [(run.last_epoch, run.ended_s)] for name in run.final}


def until(holds: Callable[[], Any], limit_s: float = 60.0) -> Any:
    deadline = time.monotonic() + limit_s
    while not (found := holds()):
        assert time.monotonic() < deadline, f"waited {limit_s} s"
        time.sleep(0.1)
    return found


@pytest.fixture
def full(tmp_path: Path) -> Path:
    write_run(tmp_path / "full" / RUN)
    return tmp_path / "full" / RUN


class Growing:
    """A run in progress, whose epochs are those of another run."""

    def __init__(self, full: Path, folder: Path, tracking: dict[str, Any]) -> None:
        self.folder = folder
        self._full = RunStore.open_reader(full / "run.db")
        self.store = RunStore.open_writer(folder / "run.db")
        for key, value in self._full.all_meta().items():
            self.store.set_meta(key, value)
        self.store.set_meta("experiment", {"name": "geo-c8", "tracking": tracking})
        self.store.set_meta("status", "running")
        self.store.set_meta("ended_s", None)
        self.store.set_meta("evaluations", [])
        for vm in self._full.records("vms"):
            self.store.upsert_vm(vm)

    def grow(self, epoch: int) -> None:
        for table in ("epochs", "egress", "ingress"):
            rows = self._full.records(table)
            self.store.append(table, [row for row in rows if (row.epoch or 0) <= epoch])

    def end(self) -> None:
        self.grow(10**6)
        for key in ("evaluations", "ended_s", "status"):
            self.store.set_meta(key, self._full.meta(key))

    def close(self) -> None:
        self.store.close()
        self._full.close()


def test_a_tracker_that_fails_warns_once_and_disturbs_no_other(full: Path, tmp_path: Path):
    run = read(full)
    (tmp_path / "file").write_text("not a folder")
    settings = {
        "tensorboard": str(tmp_path / "file"),
        "wandb": {"project": "p", "folder": str(tmp_path / "w")},
    }
    warnings: list[str] = []
    trackers = Trackers(settings, RUN, warnings.append)
    begun = replace(run, status="running")
    trackers.write(begun)
    trackers.write(begun)
    (said,) = warnings
    assert said.startswith("tracking.tensorboard could not be written and is tried again")
    assert f"`orch export {RUN} --to tensorboard`" in said
    assert len(list(tmp_path.glob(f"w/wandb/offline-run-*-{RUN}"))) == 1
    (tmp_path / "file").unlink()
    trackers.write(run)
    trackers.close()
    assert scalars(tmp_path / "file" / RUN) == wanted(run)
    assert len(warnings) == 1


@pytest.mark.processes
def test_a_killed_process_and_a_new_one_write_the_run_once(full: Path, tmp_path: Path):
    store = tmp_path / "mlflow"
    run = Growing(full, tmp_path / RUN, {
        "tensorboard": str(tmp_path / "tb"), "mlflow": str(store), "wandb": {"project": "p", "folder": str(tmp_path / "w")},
    })  # fmt: skip
    run.grow(3)
    first = start_tracking(run.store, run.folder)
    assert first is not None
    begun = wanted(settled(read(run.folder)))
    assert [epoch for epoch, _ in begun["training/loss"]] == [1, 2]
    until(lambda: list((tmp_path / "tb").glob("*/*")) and scalars(tmp_path / "tb" / RUN) == begun)
    os.kill(first.pid, signal.SIGKILL)
    (said,) = until(lambda: run.store.meta("warnings", []))
    assert "ended with status -9" in said
    run.grow(4)
    second = start_tracking(run.store, run.folder)
    assert second is not None
    run.end()
    second.finish(90.0)
    assert (run.folder / "tracking.log").is_file()
    assert run.store.meta("warnings") == [said]
    run.close()
    ended = read(run.folder)
    assert ended.final
    assert scalars(tmp_path / "tb" / RUN) == wanted(ended)
    client = import_module("mlflow").MlflowClient(uri := f"sqlite:///{store / 'mlflow.db'}", uri)
    (kept,) = client.search_runs([client.get_experiment_by_name("geo-c8").experiment_id])
    found = {
        name: sorted((m.step, m.timestamp / 1000) for m in client.get_metric_history(kept.info.run_id, name))
        for name in kept.data.metrics
    }
    client._tracking_client.store.engine.dispose()
    assert found == wanted(ended)
    assert kept.info.status == "FINISHED"
    assert len(list(tmp_path.glob(f"w/wandb/*offline-run-*-{RUN}"))) == 1


@pytest.mark.processes
def test_it_ends_with_its_controller(full: Path, tmp_path: Path):
    run = Growing(full, tmp_path / RUN, {"wandb": {"project": "p", "folder": str(tmp_path / "w")}})
    run.grow(3)
    run.close()
    controller = subprocess.Popen(
        [
            sys.executable, "-c",
            "import sys, time; from pathlib import Path; from metrics.store.database import RunStore; "
            "from orchestrator.tracking.process import start_tracking; folder = Path(sys.argv[1]); "
            "process = start_tracking(RunStore.open_writer(folder / 'run.db'), folder); "
            "print(process.pid, flush=True); time.sleep(600)",
            str(run.folder),
        ],
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert controller.stdout is not None
        pid = int(controller.stdout.readline())
        until(lambda: list(tmp_path.glob(f"w/wandb/offline-run-*-{RUN}/*.wandb")))
        helpers = children_of(pid)
        assert any("wandb" in command for command in helpers.values())
    finally:
        controller.kill()
        controller.communicate()
    until(lambda: not any(Path(f"/proc/{p}").exists() for p in (pid, *helpers)))


def children_of(pid: int) -> dict[int, str]:
    """Command lines of a process's children."""
    found: dict[int, str] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            if parent == pid:
                found[int(folder.name)] = (folder / "cmdline").read_text().replace("\0", " ")
        except OSError:
            continue
    return found


def test_a_run_without_trackers_has_no_process(full: Path):
    with RunStore.open_writer(full / "run.db") as store:
        assert start_tracking(store, full) is None


@pytest.mark.processes
def test_finishing_takes_no_longer_than_its_patience(
    full: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """A process that leaves another one behind, with its output, is not waited for."""
    run = Growing(full, tmp_path / RUN, {"tensorboard": str(tmp_path / "tb")})
    run.grow(2)
    stubborn = "import subprocess, sys, time; subprocess.Popen(['sleep', '30']); time.sleep(30)"
    real = subprocess.Popen

    def instead(command: Sequence[str], **kwargs: Any) -> Any:
        return real([sys.executable, "-c", stubborn], **kwargs)

    monkeypatch.setattr("orchestrator.tracking.process.subprocess.Popen", instead)
    process = start_tracking(run.store, run.folder)
    assert process is not None
    group = os.getpgid(process.pid)
    began = time.monotonic()
    try:
        process.finish(2.0)
        assert time.monotonic() - began < 10.0  # before: the whole patience once more, and here 30 s
        (said,) = run.store.meta("warnings", [])
        assert "had not written everything 2 s after the end" in said
    finally:
        os.killpg(group, signal.SIGKILL)
        run.close()
