"""What the command line does with runs: launch, attach, look, stop, take down, reap.

Imports of Ray happen inside the calls that need it: looking at a run never starts or imports Ray.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["RunConnection", "attach", "down", "launch", "reap", "snapshot", "stop"]


@dataclass(frozen=True)
class RunConnection:
    """A run whose controller was alive when this was made."""

    run_id: str
    folder: Path

    def snapshot(self) -> dict[str, Any]:
        """See `snapshot`."""
        raise NotImplementedError

    def stop(self, reason: str) -> None:
        """Ask the controller to end the run (status "stopped"); returns at once."""
        raise NotImplementedError

    def wait(self, timeout_s: float) -> str | None:
        """The run's final status, or None when it still runs after `timeout_s`.

        Raises ControllerLostError when the controller is gone and the run has not ended
        (`attach` again goes on).
        """
        raise NotImplementedError


def launch(run_id: str, home: Path) -> RunConnection:
    """Start a prepared run (`launching.prepare` made its folder): the cloud, Ray when needed, the controller.

    Launching a run id that already runs is the same as `attach`.
    Raises HeldError (another controller holds it), RaySessionError, ProviderError.
    """
    raise NotImplementedError


def attach(run_id: str, home: Path) -> RunConnection:
    """Connect to the run's controller; when it is dead, start a new one that goes on from the journal.

    Raises UsageError when the run has ended, HeldError, RaySessionError.
    """
    raise NotImplementedError


def snapshot(run_id: str, home: Path) -> dict[str, Any]:
    """How the run is, read from run.db alone (works with and without a controller).

    `{"run_id", "experiment" (name), "status", "error", "target", "emulated", "scales", "started_s", "ended_s",
    "at_s", "elapsed_s", "controller" ("alive"|"none"), "peers": [{"slot", "vm", "generation", "state",
    "location", "accelerator", "use_spot", "usd_per_h", "epoch", "samples", "sps", "preemptions", "cause",
    "since_s"}], "epoch": {"current", "last", "warmup", "measured", "samples", "target", "sps", "eta_s"},
    "granularity": float|None, "cost": {"spent_usd", "usd_per_h", "budget_usd"} (strings or None: study scale),
    "dropped_rounds", "events": [{"at_s", "slot", "text"}] (last 20), "warnings": [str]}`
    """
    raise NotImplementedError


def stop(run_id: str, home: Path, reason: str = "stopped by the user", timeout_s: float = 60.0) -> str:
    """End the run gracefully (peers leave, VMs end, logs are collected) and return its final status.

    When no controller lives one is started to do it. A run that has ended already: its status.
    Raises TeardownError when it has not ended after `timeout_s`.
    """
    raise NotImplementedError


def down(run_id: str, home: Path, timeout_s: float = 60.0) -> list[str]:
    """Take down whatever the run may have left, journal or not; returns what is provably still there.

    Empty list: nothing is left. The caller turns a list that is not empty into exit code 5.
    """
    raise NotImplementedError


def reap(home: Path, everything: bool = False) -> Mapping[str, list[str]]:
    """Take down what runs without a live controller left behind (`everything`: live runs too), and Ray if ours.

    Returns leftovers by run id ({} or empty lists: nothing is left).
    """
    raise NotImplementedError
