"""Runs `orch` as a user would, in a process of its own, and waits for what it does."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from leftovers import command_of, our_processes

from metrics.store.database import RunStore, StoreError

_ORCH = Path(sys.executable).with_name("orch")


def orch(*arguments: str, timeout_s: float = 60, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a command to its end, without a terminal."""
    return subprocess.run(
        [_ORCH, *arguments],
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        timeout=timeout_s,
        env={**os.environ, **environment},
        check=False,
    )


def wait_for(what: str, found: Callable[[], Any], limit_s: float) -> Any:
    """Poll until `found()` is true; fails the test naming `what`."""
    end = time.monotonic() + limit_s
    while not (value := found()):
        assert time.monotonic() < end, f"waited {limit_s:.0f} s for {what}"
        time.sleep(0.2)
    return value


class Running:
    """A launch going on in the background."""

    def __init__(self, home: Path, *arguments: str) -> None:
        self.home = home
        self.stderr = home.parent / "launch.stderr"
        home.mkdir(parents=True, exist_ok=True)
        self._errors = self.stderr.open("w")
        self.process = subprocess.Popen(
            [_ORCH, "launch", *arguments, "--yes", "-o", "json"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            env={**os.environ, "ORCH_HOME": str(home)},
            start_new_session=True,
        )
        self.folder: Path = wait_for("the run's folder", self._find, 60)

    def _find(self) -> Path | None:
        runs = sorted((self.home / "runs").glob("*/run.db"))
        assert self.process.poll() in (None, 0) or runs, self.stderr.read_text()
        return runs[0].parent if runs else None

    @property
    def run_id(self) -> str:
        return self.folder.name

    def epoch(self) -> int:
        """The last hivemind epoch that the controller has recorded."""
        try:
            with RunStore.open_reader(self.folder / "run.db") as store:
                return max((row.epoch for row in store.records("epochs")), default=0)
        except StoreError:
            return 0

    def wait_for_epoch(self, epoch: int, limit_s: float = 120) -> None:
        """Until that epoch is recorded."""

        def reached() -> bool:
            there = self.epoch() >= epoch
            assert there or self.process.poll() is None, self.stderr.read_text()
            return there

        wait_for(f"epoch {epoch}", reached, limit_s)

    def host(self) -> dict[str, Any]:
        """The emulated cloud's own state."""
        return json.loads((self.folder / "cloud" / "host.json").read_text())

    def pids(self, *words: str) -> list[int]:
        """Processes of this home whose command line has all the words."""
        return [p for p in our_processes(self.home.parent) if all(w in command_of(p) for w in words)]

    def finish(self, limit_s: float = 240) -> tuple[int, dict[str, Any]]:
        """Wait for the launch to end: its exit code and what it printed (JSON; {} if nothing)."""
        out, _ = self.process.communicate(timeout=limit_s)
        return self.process.returncode, json.loads(out) if out.strip() else {}

    def close(self, down_s: float = 90) -> None:
        """Whatever happened: leave nothing, `orch down` may take `down_s`. Safe to call twice."""
        if self.process.poll() is None or our_processes(self.home.parent):
            orch("down", self.run_id, "--yes", timeout_s=down_s, ORCH_HOME=str(self.home))
            try:
                self.process.wait(30)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        if self.process.stdout:
            self.process.stdout.close()
        self._errors.close()
