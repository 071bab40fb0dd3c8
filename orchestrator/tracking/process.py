"""The controller's side of the process that writes a run's experiment trackers."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

from metrics.store.database import RunStore, StoreError

LOG = "tracking.log"
_LAST_WARNINGS_S = 1.0  # to store warnings that have arrived

_log = logging.getLogger("orchestrator.controller")


class TrackingProcess:
    """The process of one run, and a thread that stores its warnings in the run."""

    def __init__(self, store: RunStore, folder: Path) -> None:
        """Start it. Raises OSError."""
        self._store, self._folder = store, folder
        root = str(Path(__file__).resolve().parents[2])
        # Trackers have their own keys; those of the experiment and its store are none of theirs.
        environment = {
            name: value for name, value in os.environ.items() if not name.startswith("ORCH_SECRET_")
        }
        path = os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH"))))
        with (folder / LOG).open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "orchestrator.tracking.follower", str(folder)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                cwd=folder,
                env={**environment, "PYTHONPATH": path},
                start_new_session=True,  # Ctrl-C is not for it
            )
        self.pid = self._process.pid
        self._finishing = False
        self._thread = threading.Thread(target=self._listen, name="tracking", daemon=True)
        self._thread.start()

    def finish(self, patience_s: float) -> None:
        """Let it write the rest and end; it is killed after `patience_s`. Takes a second longer at most."""
        self._finishing = True
        end_s = time.monotonic() + patience_s
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(patience_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            self._warn(
                f"tracking had not written everything {patience_s:.0f} s after the end of the run; `orch export "
                f"{self._folder.name} --to ...` writes all of it"
            )
        # Its last warnings; a process that it left behind may keep the pipe open.
        self._thread.join(max(_LAST_WARNINGS_S, end_s - time.monotonic()))

    def _listen(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                self._warn(str(json.loads(line)))
        code = self._process.wait()
        assert self._process.stdin is not None
        self._process.stdin.close()
        if code and not self._finishing:
            self._warn(
                f"the process that writes the trackers ended with status {code}, see {self._folder / LOG}; `orch export "
                f"{self._folder.name} --to ...` writes all of the run"
            )

    def _warn(self, sentence: str) -> None:
        _log.warning("%s", sentence)
        try:
            add_warning(self._store, sentence)
        except StoreError as error:  # the disk is full, or another controller has the run
            _log.warning("the warning could not be stored: %s", error)


def start_tracking(store: RunStore, folder: Path) -> TrackingProcess | None:
    """Start the process if the experiment has trackers. That it cannot start is only a warning. Raises StoreError."""
    if not store.run_meta().document.get("tracking"):
        return None
    try:
        return TrackingProcess(store, folder)
    except OSError as error:
        add_warning(store, f"the trackers are not written: their process could not be started: {error}")
        return None


def add_warning(store: RunStore, sentence: str) -> None:
    """Add a warning to the run unless it has it. Raises StoreError."""
    with store.transaction():
        known = store.meta("warnings", [])
        if sentence not in known:
            store.set_meta("warnings", [*known, sentence])
