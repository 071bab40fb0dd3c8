"""The study launcher: states of runs, dead controllers, progress lines."""

from __future__ import annotations

import json
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from made_up_run import write_run
from study_world import job

from cloud.prices.book import PriceBookError
from cloud.provider import InvalidRequestError
from experiments.parse.load import load, to_document
from metrics.store.database import DiskFullError, RunStore
from orchestrator.cli.commands.study import launcher as module
from orchestrator.cli.commands.study.launcher import RunLauncher
from orchestrator.cli.follow import LineScreen, Outcome
from orchestrator.cli.render.study_screen import StudyScreen, ended_line
from orchestrator.controller import client
from orchestrator.errors import ControllerLostError, RunFailedError, StalePlanError, TeardownError, UsageError
from orchestrator.home import run_folder
from orchestrator.study.core import Attempt, Ended, Job, Started, replay_study
from orchestrator.study.definition import StudyDefinition
from orchestrator.study.runner import Inspection, RunError
from orchestrator.study.verdict import Disturbance
from tests.orchestrator.cli_snapshots import snapshot

RUN = "a-20231114-abcd-1"


@pytest.fixture
def launcher(tmp_path: Path) -> RunLauncher:
    compare = {"replay": "auto", "limits": ""}
    study = StudyDefinition(
        "s-20231114-abcd", "s", "local", 2, (job("a"),), {"a": {}}, {"a": {}}, compare, 0.0
    )
    return RunLauncher(tmp_path, study, LineScreen(write=lambda _: None))


def _write(home: Path, **meta: Any) -> Path:
    folder = run_folder(home, RUN)
    folder.mkdir(parents=True)
    write_run(folder, peers=2, epochs=2)
    with RunStore.open_writer(folder / "run.db") as store:
        for key, value in meta.items():
            store.set_meta(key, value)
    return folder


def test_inspect_states_of_a_run(tmp_path: Path, launcher: RunLauncher):
    assert launcher.inspect(RUN) == Inspection("absent")
    folder = _write(tmp_path, status="failed", error="no capacity")
    assert launcher.inspect(RUN) == Inspection("ended", "failed", "no capacity")
    with RunStore.open_writer(folder / "run.db") as store:
        store.set_meta("status", "running")
    # Its launcher died before it had a controller: it can be brought up.
    assert launcher.inspect(RUN) == Inspection("made")
    (folder / "controller.json").write_text(json.dumps({"pid": 2**22 + 1, "began": "0"}))
    assert launcher.inspect(RUN) == Inspection("lost")  # neither a controller nor a cloud
    with RunStore.open_writer(folder / "run.db") as store:
        store.set_meta("target", "sky")
    assert launcher.inspect(RUN) == Inspection("running")  # rented VMs live on without this machine


def test_disturbances_come_from_the_numbers_of_the_run(tmp_path: Path, launcher: RunLauncher):
    _write(tmp_path, status="done", host={"contended": True, "reasons": ["a packet was 0.90 s late"]})
    assert launcher.disturbances(RUN) == {
        Disturbance.HOST_BUSY: "the host was too busy (a packet was 0.90 s late)"
    }


def _watching(monkeypatch: pytest.MonkeyPatch, launcher: RunLauncher, *script: object) -> list[str]:
    """Each attempt to attach runs the next step of the script; `inspect` reports a running run."""
    attached: list[str] = []
    steps = list(script)

    def attach(run_id: str, home: Path) -> str:
        attached.append(run_id)
        return run_id

    def follow(run: str, home: Path, screen: object, expired: Any) -> Outcome:
        step = steps.pop(0)
        if isinstance(step, Exception):
            raise step
        return Outcome("expired") if expired() else step  # type: ignore[return-value]

    monkeypatch.setattr(client, "attach", attach)
    monkeypatch.setattr(module, "follow", follow)
    monkeypatch.setattr(launcher, "inspect", lambda _: Inspection("running"))
    return attached


def test_dead_controller_is_restarted(monkeypatch: pytest.MonkeyPatch, launcher: RunLauncher):
    far = time.time() + 1000
    lost = ControllerLostError("its controller is gone")
    attached = _watching(monkeypatch, launcher, lost, lost, Outcome("ended", "done"))
    assert launcher.watch(job("a"), RUN, far).kind == "ended"
    assert len(attached) == 3
    _watching(monkeypatch, launcher, lost, lost, lost)
    with pytest.raises(RunError, match="its controller is gone"):
        launcher.watch(job("a"), RUN, far)


def test_watch_expires_at_the_wall_limit(monkeypatch: pytest.MonkeyPatch, launcher: RunLauncher):
    _watching(monkeypatch, launcher, Outcome("ended", "done"))
    assert launcher.watch(job("a"), RUN, time.time() - 1).kind == "expired"


@pytest.mark.parametrize(
    "error", [RunFailedError("it gave up"), InvalidRequestError("no memory"), UsageError("has ended")]
)
def test_failure_of_a_run_is_a_run_error(
    monkeypatch: pytest.MonkeyPatch, launcher: RunLauncher, error: Exception
):
    _watching(monkeypatch, launcher, error, error)
    with pytest.raises(RunError, match=str(error)):
        launcher.watch(job("a"), RUN, time.time() + 1000)
    seen = iter([Inspection("running"), Inspection("ended", "done")])
    monkeypatch.setattr(launcher, "inspect", lambda _: next(seen))
    assert launcher.watch(job("a"), RUN, time.time() + 1000).kind == "ended"


@pytest.mark.parametrize(
    "error", [TeardownError("VMs may be left"), DiskFullError("no space left on the disk")]
)
def test_errors_that_affect_all_runs_end_the_study(
    monkeypatch: pytest.MonkeyPatch, launcher: RunLauncher, error: Exception
):
    _watching(monkeypatch, launcher, error)
    with pytest.raises(type(error)):
        launcher.watch(job("a"), RUN, time.time() + 1000)


@pytest.mark.parametrize("error", [StalePlanError("the price book has changed"), PriceBookError("gone.csv")])
def test_a_changed_price_book_ends_the_study_and_fails_none_of_its_runs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, error: Exception
):
    def changed(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(module, "approved_plan", changed)
    study = SimpleNamespace(documents={"a": to_document(load("geo-a2"))}, plans={"a": {}}, on="local")
    with pytest.raises(type(error)):
        RunLauncher(tmp_path, study, LineScreen(print)).start(job("a"), RUN)  # type: ignore[arg-type]


def test_study_screen_shows_position_and_time_left():
    lines: list[str] = []
    clock = [0.0]
    jobs = [job("geo-a2", 60.0), Job("geo-a4", "geo-a4", "", 100.0, 500.0)]
    screen = StudyScreen(lambda run_id: f"{run_id} was fast", lines.append, lambda: clock[0], redraw=False)
    began = Started(0.0, "geo-a2", 1, "r-1")
    screen.begins(replay_study(jobs, 2, [began]), jobs[0], 1, "r-1")
    screen.show(snapshot())
    clock[0] = 31.0
    screen.show({**snapshot(), "warnings": ["careful"]})
    ended = Ended(90.0, "geo-a2", 1, "done", "", ("the host was too busy (late)",))
    state = replay_study(jobs, 2, [began, ended])
    clock[0] = 90.0
    screen.ended(state, jobs[0], Attempt(1, "r-1", 0.0, ended))
    again = Started(90.0, "geo-a2", 2, "r-2")
    failed = Ended(150.0, "geo-a2", 2, "too_long", "it took longer than its limit of 360 s")
    screen.begins(replay_study(jobs, 2, [began, ended, again]), jobs[0], 2, "r-2")
    screen.ended(
        replay_study(jobs, 2, [began, ended, again, failed]), jobs[0], Attempt(2, "r-2", 90.0, failed)
    )
    assert lines[0] == "[1 of 2] geo-a2, about 4 min 10 s left of the study: r-1, 1 min of epochs"
    assert lines[1] == "geo-a2: warning: careful"
    assert lines[2].startswith("[1 of 2] geo-a2, about 3 min 39 s left of the study: ")
    assert "peers training" in lines[2]
    assert (
        lines[3]
        == "[1 of 2] geo-a2: done in 1 min 30 s: r-1 was fast; the host was too busy (late): will be repeated"
    )
    assert lines[4] == "[1 of 2] geo-a2, about 3 min 40 s left of the study: r-2, attempt 2, 1 min of epochs"
    assert lines[5] == "[1 of 2] geo-a2: too long after 1 min: it took longer than its limit of 360 s"


@pytest.mark.parametrize(
    ("why", "says"),
    [
        (Disturbance.HOST_BUSY, "not repeated, and not compared"),
        (Disturbance.DROPPED_ROUNDS, "not repeated, and counted"),
    ],
)
def test_disturbed_run_that_is_not_repeated(why: Disturbance, says: str):
    one, ended = job("geo-a2", 60.0), Ended(90.0, "geo-a2", 1, "done", "", ("why",), (why,))
    state = replay_study([one], 0, [Started(0.0, "geo-a2", 1, "r-1"), ended])
    assert ended_line(Attempt(1, "r-1", 0.0, ended), "", state, one).endswith(f"why: {says}")
