"""Following a fake run to its end, and Ctrl-C."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from orchestrator.cli import follow as following
from orchestrator.cli.follow import Outcome, follow
from orchestrator.controller import client
from orchestrator.errors import ControllerLostError, RaySessionError, TeardownError
from tests.orchestrator.cli_snapshots import snapshot

RUN = "geo-b2-20261121-7f3a"


class FakeRun:
    """Each `wait` runs the next step of a script."""

    run_id = RUN

    def __init__(self, *script: Callable[[], str | None]) -> None:
        self.script = list(script)

    def wait(self, timeout_s: float) -> str | None:
        return self.script.pop(0)()

    def snapshot(self) -> dict[str, Any]:
        return snapshot()


class FakeScreen:
    def __init__(self) -> None:
        self.shown = 0

    def show(self, snapshot: Mapping[str, Any]) -> None:
        self.shown += 1

    def pause(self) -> None: ...

    def __enter__(self) -> FakeScreen:
        return self

    def __exit__(self, *error: object) -> None: ...


def going() -> None:
    return None


def ended() -> str:
    return "done"


def interrupt() -> None:
    raise KeyboardInterrupt


def terminated() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


def lost() -> None:
    raise ControllerLostError(f"{RUN}: the controller is gone; `orch attach {RUN}` goes on")


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The calls to the client; nothing is left after `down`."""
    made: list[str] = []

    def stop(run_id: str, home: Path, reason: str) -> str:
        made.append(f"stop {run_id}: {reason}")
        return "stopped"

    def down(run_id: str, home: Path) -> list[str]:
        made.append(f"down {run_id}")
        return []

    monkeypatch.setattr(client, "stop", stop)
    monkeypatch.setattr(client, "down", down)
    monkeypatch.setattr(following, "is_interactive", lambda: False)
    return made


def watch(*script: Callable[[], str | None]) -> Outcome:
    return follow(FakeRun(*script), Path("/nowhere"), FakeScreen())  # pyright: ignore[reportArgumentType]


def test_end_of_run_is_shown(calls: list[str]):
    screen = FakeScreen()
    outcome = follow(FakeRun(going, going, ended), Path("/nowhere"), screen)  # pyright: ignore[reportArgumentType]
    assert outcome == Outcome("ended", "done")
    assert screen.shown == 3
    assert calls == []


def test_lost_controller_raises_and_names_attach(calls: list[str]):
    with pytest.raises(ControllerLostError, match="orch attach"):
        watch(going, lost)
    assert calls == []


@pytest.mark.parametrize("cut", [interrupt, terminated])
def test_without_terminal_one_interrupt_tears_down(cut: Callable[[], None], calls: list[str]):
    before = signal.getsignal(signal.SIGTERM)
    assert watch(going, cut) == Outcome("taken_down")
    assert calls == [f"stop {RUN}: interrupted", f"down {RUN}"]
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_second_interrupt_leaves_it_running(
    calls: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    def stop(run_id: str, home: Path, reason: str) -> str:
        raise KeyboardInterrupt

    monkeypatch.setattr(client, "stop", stop)
    assert watch(interrupt) == Outcome("detached")
    assert f"`orch down {RUN}`" in capsys.readouterr().err
    assert calls == []


def test_teardown_continues_if_graceful_stop_fails(calls: list[str], monkeypatch: pytest.MonkeyPatch):
    def stop(run_id: str, home: Path, reason: str) -> str:
        raise RaySessionError("Ray does not answer")

    monkeypatch.setattr(client, "stop", stop)
    assert watch(interrupt) == Outcome("taken_down")
    assert calls == [f"down {RUN}"]


def test_leftovers_are_named_in_the_error(calls: list[str], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(client, "down", lambda run_id, home: ["vm us-0 (pid 17)"])
    with pytest.raises(TeardownError, match="pid 17") as caught:
        watch(interrupt)
    assert caught.value.leftovers == ("vm us-0 (pid 17)",)


@pytest.mark.parametrize(
    ("answer", "outcome", "asked"),
    [("t", Outcome("taken_down"), 2), ("l", Outcome("detached"), 0), ("", Outcome("ended", "done"), 0)],
)
def test_on_a_terminal_it_asks(
    answer: str,
    outcome: Outcome,
    asked: int,
    calls: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    monkeypatch.setattr(following, "is_interactive", lambda: True)
    monkeypatch.setattr("builtins.input", lambda: answer)
    assert watch(interrupt, ended) == outcome
    assert len(calls) == asked
    told = capsys.readouterr().err
    for keys in (
        "t, then Enter: tear it down",
        "l, then Enter, or Ctrl-C again: leave",
        "only Enter: continue",
    ):
        assert keys in told


@pytest.mark.parametrize("error", [KeyboardInterrupt, EOFError])
def test_an_interrupt_at_the_question_leaves_it_running(
    error: type[BaseException], calls: list[str], monkeypatch: pytest.MonkeyPatch
):
    def cut() -> str:
        raise error

    monkeypatch.setattr(following, "is_interactive", lambda: True)
    monkeypatch.setattr("builtins.input", cut)
    assert watch(interrupt) == Outcome("detached")
    assert calls == []
