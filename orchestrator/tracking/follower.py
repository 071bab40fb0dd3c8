"""Follows a run in its database and writes its experiment trackers: `python -m orchestrator.tracking.follower FOLDER`.

A process of its own, so that a tracker that is slow, or fails in any way, cannot disturb the run. It is started by the
run's controller, reads run.db, and ends when its standard input closes, that is, with the controller. What a tracker has
is read from the tracker itself, so a new process repeats and loses nothing. Each line of its output is one warning, as a
JSON string; what the trackers' packages print is on its standard error.
"""

from __future__ import annotations

import fcntl
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from analysis.export.trackers import TrackerLog, open_log
from analysis.export.tracking import RUNNING, TrackedRun, settled, tracked_run
from metrics.store.database import RunStore, StoreError

_PERIOD_S = 5.0
_REST = 10.0  # reading the run takes at most 1/10 of a CPU
_LONGEST_ERROR = 200
_NICENESS = 10  # an emulated run needs the CPUs


class Trackers:
    """The trackers of one run."""

    def __init__(self, settings: Mapping[str, Any], run_id: str, warn: Callable[[str], None]) -> None:
        """`settings`: by tracker, as in the YAML section `tracking`. `warn` gets one sentence for each that fails."""
        self._settings, self._run_id, self._warn = settings, run_id, warn
        self._logs: dict[str, TrackerLog] = {}
        self._written: dict[str, TrackedRun] = {}
        self._failed: set[str] = set()

    def write(self, run: TrackedRun) -> None:
        """Write what is new of the run to each tracker. One that fails is tried again at the next call."""
        known, last = settled(run), run.status != RUNNING
        for name, settings in self._settings.items():
            if self._written.get(name) == known:
                continue
            try:
                if name not in self._logs:
                    self._logs[name] = open_log(name, settings, self._run_id)
                self._logs[name].write(known, last=last)
                self._written[name] = known
            except Exception as error:  # noqa: BLE001 - whatever a tracker's package raises
                self._report(name, error)

    def close(self) -> None:
        """Close all trackers."""
        for name, log in self._logs.items():
            try:
                log.close()
            except Exception as error:  # noqa: BLE001 - whatever a tracker's package raises
                self._report(name, error)

    def _report(self, name: str, error: Exception) -> None:
        """Warn once; the log has every error."""
        words = " ".join(str(error).split())[:_LONGEST_ERROR] or type(error).__name__
        _log(f"{name}: {type(error).__name__}: {words}")
        if name not in self._failed:
            self._failed.add(name)
            self._warn(
                f"tracking.{name} could not be written and is tried again until the run ends: {words}; "
                f"`orch export {self._run_id} --to {name}` writes all of it"
            )


def follow(run_db: Path, trackers: Trackers, over: Callable[[float], bool]) -> None:
    """Write the trackers until `over(seconds to wait)` is true, and once more then."""
    ending, read_s = False, 0.0
    while True:
        began_s = time.process_time()
        try:
            with RunStore.open_reader(run_db) as store:
                run = tracked_run(store)
            read_s = time.process_time() - began_s
        except StoreError as error:  # a busy database
            _log(str(error))
        else:
            if run.started_s:
                trackers.write(run)
        if ending:
            return
        ending = over(max(_PERIOD_S, _REST * read_s))


def _log(text: str) -> None:
    print(time.strftime("%F %T"), text, file=sys.stderr, flush=True)  # noqa: T201


@contextmanager
def _alone(folder: Path) -> Generator[None, None, None]:
    """Wait until the process of the controller before has ended."""
    with (folder / "tracking.lock").open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def main(arguments: list[str]) -> int:
    """Follow the run in a folder until standard input closes."""
    folder = Path(arguments[0])
    os.nice(_NICENESS)
    warnings = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # for what the trackers' packages print

    def warn(sentence: str) -> None:
        print(json.dumps(sentence), file=warnings, flush=True)

    closed = threading.Event()

    def watch() -> None:
        while os.read(0, 1024):
            pass
        closed.set()

    threading.Thread(target=watch, daemon=True).start()
    with RunStore.open_reader(folder / "run.db") as store:
        given = store.run_meta().document["tracking"]
    settings = {name: value for name, value in given.items() if value is not None}
    trackers = Trackers(settings, folder.name, warn)
    with _alone(folder):
        try:
            follow(folder / "run.db", trackers, closed.wait)
        finally:
            trackers.close()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
