"""Follow a run until it ends, and handle Ctrl-C meanwhile."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Protocol

from cloud.provider import ProviderError
from orchestrator.cli.render import live
from orchestrator.cli.render.terminal import is_interactive, say, wants_colour, wants_live_view
from orchestrator.controller import client
from orchestrator.errors import OrchError, TeardownError


@dataclass(frozen=True)
class Outcome:
    """Why following stopped. `status` is the final status of the run if it ended."""

    kind: Literal["ended", "detached", "taken_down", "expired"]
    status: str | None = None


class Screen(Protocol):
    """A display for snapshots of a run."""

    def show(self, snapshot: Mapping[str, Any]) -> None: ...

    def pause(self) -> None:
        """Stop writing to the terminal until the next `show`."""
        ...

    def __enter__(self) -> Screen: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class LineScreen:
    """Prints news as lines when it occurs, and otherwise a progress line every `period_s` seconds."""

    def __init__(
        self,
        write: Callable[[str], None] = say,
        period_s: float = 10.0,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._write, self._period_s, self._now = write, period_s, now
        self._last: Mapping[str, Any] | None = None
        self._written_s = now()

    def show(self, snapshot: Mapping[str, Any]) -> None:
        """Print what is new since the last call."""
        fresh = live.lines(self._last, snapshot)
        self._last = snapshot
        now = self._now()
        if not fresh and now - self._written_s >= self._period_s:
            fresh = [live.progress_line(snapshot)]
        for line in fresh:
            self._write(line)
        if fresh:
            self._written_s = now

    def pause(self) -> None:
        """Do nothing: lines do not interfere with a prompt."""

    def __enter__(self) -> LineScreen:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None


class LiveScreen:
    """A view on stderr that is redrawn in place."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.live import Live

        console = Console(stderr=True, no_color=not wants_colour())
        self._live = Live(console=console, auto_refresh=False, transient=False)

    def show(self, snapshot: Mapping[str, Any]) -> None:
        """Draw the snapshot over the previous one."""
        if not self._live.is_started:
            self._live.start()
        self._live.update(live.view(snapshot), refresh=True)

    def pause(self) -> None:
        """Stop drawing; the next `show` starts a new view below."""
        self._live.stop()

    def __enter__(self) -> LiveScreen:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()


def choose_screen() -> Screen:
    """Return the live view on a terminal, the line display elsewhere."""
    return LiveScreen() if wants_live_view() else LineScreen()


def follow(
    run: client.RunConnection,
    home: Path,
    screen: Screen,
    period_s: float = 1.0,
    expired: Callable[[], bool] = lambda: False,
) -> Outcome:
    """Show the run until it ends, until `expired` returns True (the run keeps running), or until Ctrl-C.

    The first Ctrl-C asks what to do on a terminal and tears the run down elsewhere. The second one leaves the
    run running and prints how to tear it down. Raises ControllerLostError when the controller dies (`orch attach`
    resumes the run), TeardownError when something is left.
    """
    with screen, terminated_is_interrupted():
        while True:
            try:
                status = run.wait(period_s)
                screen.show(run.snapshot())
                if status is not None:
                    return Outcome("ended", status)
                if expired():
                    return Outcome("expired")
            except KeyboardInterrupt:
                screen.pause()
                outcome = _interrupted(run.run_id, home)
                if outcome is not None:
                    return outcome


def take_down(run_id: str, home: Path, reason: str) -> None:
    """Stop the run gracefully, then verify that nothing is left. Raises TeardownError naming what is."""
    stuck = ""
    try:
        client.stop(run_id, home, reason=reason)
    except (OrchError, ProviderError) as error:  # `down` does not need a graceful stop
        stuck = f" ({error})"
    left = client.down(run_id, home)
    if left:
        raise TeardownError(
            f"{run_id}: not torn down completely, left: {', '.join(left)}{stuck}; run `orch down {run_id}` to retry",
            left,
        )


def _interrupted(run_id: str, home: Path) -> Outcome | None:
    """Handle Ctrl-C. Returns None when the user chose to continue following."""
    try:
        if is_interactive():
            say(f"\nInterrupted. What should happen to {run_id}?")
            say("  t, then Enter: tear it down")
            say("  l, then Enter, or Ctrl-C again: leave it running")
            say("  only Enter: continue following it")
            answer = input().strip().lower()[:1]
            if answer == "l":
                return _detached(run_id)
            if answer != "t":
                return None
        say(f"interrupted; tearing down {run_id} (press Ctrl-C again to leave it running)")
        take_down(run_id, home, "interrupted")
    except (KeyboardInterrupt, EOFError):
        return _detached(run_id)
    say(f"{run_id}: torn down, nothing is left; `orch report {run_id}` shows the measurements")
    return Outcome("taken_down")


def _detached(run_id: str) -> Outcome:
    say(
        f"{run_id} keeps running: `orch attach {run_id}` follows it again, `orch down {run_id}` tears it down"
    )
    return Outcome("detached")


@contextmanager
def terminated_is_interrupted() -> Iterator[None]:
    """Treat SIGTERM as Ctrl-C, so that a job runner that terminates orch leaves no VMs that cost money."""

    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before if before is not None else signal.SIG_DFL)
