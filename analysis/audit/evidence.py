"""What the checks look at: a run's numbers, and the records that the numbers leave out."""

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
    """One run, read once."""

    run: RunNumbers
    row: RunRow  # what `orch replay` prints of it: the audit speaks of the same figures
    single: SingleRates | None  # of a lone baseline
    steps_wall_s: float  # of all steps of all VMs,
    steps_timed_s: float  # and what the phase timers claim of it
    claimed_sps: float | None  # the throughput that was published or claimed
    watched: tuple[SwarmEpochRecord, ...]
    progress: tuple[ProgressRecord, ...]  # of the whole swarm, by time

    @classmethod
    def of(cls, store: Store, claims: Mapping[str, float] | None = None) -> Evidence:
        """Read a run; `claims`: throughputs by run id or label, before the run's own published one.

        Raises metrics.store.database.StoreError when it cannot be read.
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
        """The run's id; "?" when its meta has none."""
        return str(self.run.meta.run_id or "?")

    @property
    def label(self) -> str | None:
        """What the logs' index calls the run; of a run of our own, its experiment."""
        return self.row.label

    @property
    def name(self) -> str:
        """The label, else the id."""
        return self.label or self.run_id

    @property
    def imported(self) -> ImportedMeta | None:
        """What the importer noted of the logs; None for a run of our own."""
        return self.run.meta.imported

    @property
    def baseline(self) -> bool:
        """Whether this is one VM that trained alone, without epochs."""
        return self.row.baseline

    @property
    def model(self) -> str | None:
        """The model's name."""
        return self.row.model

    @property
    def parameters(self) -> int | None:
        """Of the model; None: unknown."""
        known = self.run.meta.model.parameters if self.run.meta.model else None
        return None if not known else int(known)

    @property
    def epoch_s(self) -> float | None:
        """Mean raw wall time of the measured epochs, seconds."""
        durations = [e.duration_s for e in measured(self.run.raw) if e.duration_s is not None]
        return math.fsum(durations) / len(durations) if durations else None

    def noted(self, key: Literal["clock", "nic", "sync"]) -> dict[str, Mapping[str, Any]]:
        """What the importer noted under `key` of each VM, by VM's name."""
        found: Mapping[str, Mapping[str, Any]] = getattr(self.run.meta.logs, key) or {}
        return dict(sorted(found.items()))

    def file(self, vm: str) -> str | None:
        """The log of a VM, as the importer names it; None for a run of our own."""
        return next((str(f["file"]) for f in self._files() if f.get("host") == vm and not _watches(f)), None)

    @property
    def monitor_file(self) -> str | None:
        """The log of who watched the swarm."""
        return next((str(f["file"]) for f in self._files() if _watches(f)), None)

    def named_file(self, sentence: str) -> str | None:
        """The first of the run's logs that a sentence names."""
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
        """A finding about this run."""
        return Finding(self.run_id, self.label, check, severity, sentence, figure, value, expected, n, file)


def _published(run: RunNumbers) -> float | None:
    """The study's throughput of this experiment, where it is known; 0 and no number count as unknown."""
    try:
        return float((run.meta.published or {}).get("sps") or 0) or None
    except (TypeError, ValueError):
        return None


def _watches(file: Mapping[str, Any]) -> bool:
    return file.get("role") == "monitor"


def rounded(value: float) -> str:
    """Three significant digits, whole above 1000: how a figure stands in a sentence."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}" if abs(value) < 100 else f"{value:.1f}"


def percent(share: float) -> str:
    """A share as a percentage of three significant digits."""
    return f"{share * 100:.3g} %"


def amount(count_bytes: float) -> str:
    """Bytes in GB (1e9), MB or kB, three significant digits."""
    for unit, size in (("GB", 1e9), ("MB", 1e6)):
        if abs(count_bytes) >= size / 10:
            return f"{count_bytes / size:.3g} {unit}"
    return f"{count_bytes / 1e3:.3g} kB"


def counted(number: int, what: str) -> str:
    """`1 epoch`, `2 epochs`."""
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
