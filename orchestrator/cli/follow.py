"""Watch a run until it ends, and what Ctrl-C means meanwhile."""

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
    """How the watching ended; `status` is the run's final one where it ended."""

    kind: Literal["ended", "detached", "taken_down", "expired"]
    status: str | None = None


class Screen(Protocol):
    """Where snapshots are shown."""

    def show(self, snapshot: Mapping[str, Any]) -> None: ...

    def pause(self) -> None:
        """Leave the terminal alone until the next `show`."""
        ...

    def __enter__(self) -> Screen: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class LineScreen:
    """Lines: what is new at once, and where the run is at most every `period_s`."""

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
        """Write what is new since the last call."""
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
        """Lines need no pause."""

    def __enter__(self) -> LineScreen:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None


class LiveScreen:
    """A view that redraws itself on stderr."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.live import Live

        console = Console(stderr=True, no_color=not wants_colour())
        self._live = Live(console=console, auto_refresh=False, transient=False)

    def show(self, snapshot: Mapping[str, Any]) -> None:
        """Draw the snapshot in place of the last one."""
        if not self._live.is_started:
            self._live.start()
        self._live.update(live.view(snapshot), refresh=True)

    def pause(self) -> None:
        """Stop drawing; the next `show` starts below."""
        self._live.stop()

    def __enter__(self) -> LiveScreen:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()


def choose_screen() -> Screen:
    """The live view on a terminal, lines elsewhere."""
    return LiveScreen() if wants_live_view() else LineScreen()


def follow(
    run: client.RunConnection,
    home: Path,
    screen: Screen,
    period_s: float = 1.0,
    expired: Callable[[], bool] = lambda: False,
) -> Outcome:
    """Show the run until it ends, `expired` says that it takes too long (it still runs), or Ctrl-C says otherwise.

    Ctrl-C once: on a terminal asks, elsewhere takes the run down. Twice: lets it run and says how to take
    it down. Raises ControllerLostError when the controller dies (`orch attach` goes on), TeardownError
    when something is left.
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
    """End the run politely, then prove that nothing is left. Raises TeardownError with what is."""
    stuck = ""
    try:
        client.stop(run_id, home, reason=reason)
    except (OrchError, ProviderError) as error:  # whatever stands in the way: `down` goes without it
        stuck = f" ({error})"
    left = client.down(run_id, home)
    if left:
        raise TeardownError(
            f"{run_id}: still there: {', '.join(left)}{stuck}; `orch down {run_id}` tries again", left
        )


def _interrupted(run_id: str, home: Path) -> Outcome | None:
    """None: the person chose to go on watching."""
    try:
        if is_interactive():
            say(
                f"\nInterrupted. [t]ake {run_id} down, [l]eave it running, or go on watching (any other key)?"
            )
            say("Ctrl-C again leaves it running.")
            answer = input().strip().lower()[:1]
            if answer == "l":
                return _detached(run_id)
            if answer != "t":
                return None
        say(f"interrupted: taking {run_id} down (interrupt again to leave it running)")
        take_down(run_id, home, "interrupted")
    except (KeyboardInterrupt, EOFError):
        return _detached(run_id)
    say(f"{run_id}: nothing is left; `orch report {run_id}` shows what was measured")
    return Outcome("taken_down")


def _detached(run_id: str) -> Outcome:
    say(f"left running: `orch attach {run_id}` watches it again, `orch down {run_id}` takes it down")
    return Outcome("detached")


@contextmanager
def terminated_is_interrupted() -> Iterator[None]:
    """SIGTERM as Ctrl-C: a job runner that ends us must not leave VMs that cost money."""

    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before if before is not None else signal.SIG_DFL)
