"""The input of the checks: a run's numbers and records, and formatting helpers for findings."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from analysis.audit.findings import Finding, Severity
from analysis.replay import RunRow, Store, read_run
from metrics.epochs.throughput import measured
from metrics.paper.rules import SINGLE_COLUMNS, SingleRates, single_rates
from metrics.records import ProgressRecord, SwarmEpochRecord
from metrics.run import RunNumbers
from metrics.store.meta import ImportedMeta


@dataclass(frozen=True)
class Evidence:
    """One run's numbers and the records that the checks need in addition."""

    run: RunNumbers
    row: RunRow  # its row of `orch replay`, so that both print the same figures
    single: SingleRates | None  # of a single-VM baseline
    steps_wall_s: float  # all steps of all VMs
    steps_timed_s: float  # the part of it that phase timers cover
    claimed_sps: float | None  # the published or claimed throughput
    watched: tuple[SwarmEpochRecord, ...]
    progress: tuple[ProgressRecord, ...]  # of the whole swarm, by time

    @classmethod
    def of(cls, store: Store, claims: Mapping[str, float] | None = None) -> Evidence:
        """Read a run. `claims` (throughputs by run id or label) override the run's own published throughput.

        Raises metrics.store.database.StoreError if the run cannot be read.
        """
        progress: list[ProgressRecord] = store.records("progress")
        known = claims or {}
        found = read_run(store)
        run, row = found.run, found.row
        steps = store.columns("steps", ("wall_s", "other_s"))
        wall_s = math.fsum(steps["wall_s"])
        claimed = next((known[n] for n in (row.run_id, row.label or "") if n in known), None)
        return cls(
            run=run,
            row=row,
            single=single_rates(store.columns("steps", SINGLE_COLUMNS))
            if row.baseline and row.peers == 1
            else None,
            steps_wall_s=wall_s,
            steps_timed_s=wall_s - math.fsum(steps["other_s"]),
            claimed_sps=_published(run) if claimed is None else claimed,
            watched=tuple(store.records("swarm_epochs")),
            progress=tuple(sorted((r for r in progress if r.vm == ""), key=lambda r: r.at_s)),
        )

    @property
    def run_id(self) -> str:
        """The run's id, "?" if its meta has none."""
        return str(self.run.meta.run_id or "?")

    @property
    def label(self) -> str | None:
        """The label from the logs' index; for our own runs the experiment's name."""
        return self.row.label

    @property
    def imported(self) -> ImportedMeta | None:
        """The importer's meta data; None for our own runs."""
        return self.run.meta.imported

    @property
    def baseline(self) -> bool:
        """Whether this is a single VM that trained without a swarm."""
        return self.row.baseline

    @property
    def model(self) -> str | None:
        return self.row.model

    @property
    def parameters(self) -> int | None:
        """Number of the model's parameters; None: unknown."""
        known = self.run.meta.model.parameters if self.run.meta.model else None
        return None if not known else int(known)

    @property
    def epoch_s(self) -> float | None:
        """Mean raw wall time of the measured epochs, in seconds."""
        durations = [e.duration_s for e in measured(self.run.raw) if e.duration_s is not None]
        return math.fsum(durations) / len(durations) if durations else None

    def noted(self, key: Literal["clock", "nic", "sync"]) -> dict[str, Mapping[str, Any]]:
        """The importer's meta data `key` of each VM, sorted by the VM's name."""
        found: Mapping[str, Mapping[str, Any]] = getattr(self.run.meta.logs, key) or {}
        return dict(sorted(found.items()))

    def file(self, vm: str) -> str | None:
        """Name of a VM's log as the importer recorded it; None for our own runs."""
        return next((str(f["file"]) for f in self._files() if f.get("host") == vm and not _watches(f)), None)

    @property
    def monitor_file(self) -> str | None:
        """Name of the monitor's log."""
        return next((str(f["file"]) for f in self._files() if _watches(f)), None)

    def named_file(self, sentence: str) -> str | None:
        """The first of the run's logs that `sentence` names."""
        names = [str(f["file"]) for f in self._files()]
        return next((name for name in names if name in sentence or name.rpartition("/")[2] in sentence), None)

    def _files(self) -> list[Mapping[str, Any]]:
        return list(self.run.meta.logs.files or ())

    def finding(
        self,
        check: str,
        severity: Severity,
        sentence: str,
        figure: str,
        value: float | None,
        expected: float | None = None,
        n: int | None = None,
        file: str | None = None,
    ) -> Finding:
        """Make a finding about this run."""
        return Finding(self.run_id, self.label, check, severity, sentence, figure, value, expected, n, file)


def _published(run: RunNumbers) -> float | None:
    """The paper's throughput of this experiment; None if unknown, 0 or not a number."""
    try:
        return float((run.meta.published or {}).get("sps") or 0) or None
    except (TypeError, ValueError):
        return None


def _watches(file: Mapping[str, Any]) -> bool:
    return file.get("role") == "monitor"


def rounded(value: float) -> str:
    """Format a figure for a sentence: three significant digits, no decimals from 1000 on."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}" if abs(value) < 100 else f"{value:.1f}"


def percent(share: float) -> str:
    """Format a fraction as a percentage with three significant digits."""
    return f"{share * 100:.3g} %"


def counted(number: int, what: str) -> str:
    """Format a count with its noun: `1 epoch`, `2 epochs`."""
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
