"""Progress of a study for the user: position, time left, and the result of each run."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any

from orchestrator.cli.render import live
from orchestrator.cli.render.terminal import say, wants_colour, wants_live_view
from orchestrator.cli.render.words import duration
from orchestrator.study.core import DONE, Attempt, Job, StudyState
from orchestrator.study.eta import remaining_s

_PERIOD_S = 30.0


class StudyScreen:
    """Shows the runs of a study: a live view on a terminal, progress lines elsewhere."""

    def __init__(
        self,
        headline: Callable[[str], str],
        write: Callable[[str], None] = say,
        now_s: Callable[[], float] = time.time,
        redraw: bool | None = None,
        only: Sequence[str] = (),
    ) -> None:
        """`headline` summarises a finished run by its id; `only` selects the jobs that are run."""
        self._headline, self._write, self._now_s, self._only = headline, write, now_s, only
        self._state: StudyState | None = None
        self._job, self._written_s, self._warned = "", now_s(), set[str]()
        self._redraws = wants_live_view() if redraw is None else redraw
        self._live: Any = None

    def begins(self, state: StudyState, job: Job, attempt: int, run_id: str) -> None:
        """Report that a run is started or resumed."""
        self._state, self._job, self._written_s, self._warned = state, job.key, self._now_s(), set()
        again = f", attempt {attempt}" if attempt > 1 else ""
        expected = "" if job.planned_s is None else f", {duration(job.planned_s)} of epochs"
        self._write(f"{self._head()}: {run_id}{again}{expected}")

    def ended(self, state: StudyState, job: Job, attempt: Attempt) -> None:
        """Report that a run has ended."""
        self._state = state
        headline = self._headline(attempt.run_id) if attempt.done else ""
        self._write(f"{place_words(state, job.key)}: {ended_line(attempt, headline, state, job)}")

    def show(self, snapshot: Mapping[str, Any]) -> None:
        """Show the current state of the run and the progress of the study."""
        if self._redraws:
            self._draw(snapshot)
            return
        for warning in snapshot.get("warnings") or ():
            if warning not in self._warned:
                self._warned.add(warning)
                self._write(f"{self._job}: warning: {warning}")
        now_s = self._now_s()
        if now_s - self._written_s >= _PERIOD_S:
            self._written_s = now_s
            self._write(f"{self._head()}: {live.progress_line(snapshot)}")

    def pause(self) -> None:
        """Stop drawing; the next `show` starts a new view below."""
        if self._live is not None:
            self._live.stop()
            self._live = None

    def _head(self) -> str:
        assert self._state is not None
        left = left_words(remaining_s(self._state, self._now_s(), self._only))
        return f"{place_words(self._state, self._job)}, {left}"

    def _draw(self, snapshot: Mapping[str, Any]) -> None:
        from rich.console import Console, Group
        from rich.live import Live
        from rich.text import Text

        if self._live is None:
            console = Console(stderr=True, no_color=not wants_colour())
            self._live = Live(console=console, auto_refresh=False, transient=True)
            self._live.start()
        self._live.update(Group(Text(self._head(), style="bold"), live.view(snapshot)), refresh=True)

    def __enter__(self) -> StudyScreen:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.pause()


def place_words(state: StudyState, key: str) -> str:
    """Format a job's position in the study: `[3 of 28] geo-a2`."""
    number = next(n for n, one in enumerate(state.jobs, 1) if one.job.key == key)
    return f"[{number} of {len(state.jobs)}] {key}"


def left_words(seconds: float | None) -> str:
    """Format the time left of the study."""
    return "time left unknown" if seconds is None else f"about {duration(seconds)} left of the study"


def ended_line(attempt: Attempt, headline: str, state: StudyState, job: Job) -> str:
    """Describe how an attempt ended and whether it is repeated."""
    end = attempt.end
    assert end is not None
    took = duration(end.at_s - attempt.began_s)
    if end.status != DONE:
        return f"{end.status.replace('_', ' ')} after {took}{f': {end.error}' if end.error else ''}"
    text = f"done in {took}{f': {headline}' if headline else ''}"
    if not end.disturbed:
        return text
    again = any(one.job.key == job.key for one in state.unsettled)
    kept = "not repeated, and not compared" if attempt.host_busy else "not repeated, and counted"
    after = "will be repeated" if again else kept
    return f"{text}; {'; '.join(end.disturbed)}: {after}"
