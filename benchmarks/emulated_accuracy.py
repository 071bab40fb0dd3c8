"""Compares emulated runs with predictions: those kept by the runs' plans, and those of this version."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from analysis.compare.predicted import Pair, accuracy, accuracy_table, pairs_of
from analysis.planning.advice import usd_of
from analysis.planning.prediction import Prediction, Value, predict
from cloud.prices.book import PriceBook
from experiments.parse.load import from_document
from experiments.schema.errors import SpecError
from metrics.figures import FIGURES
from metrics.run import RunNumbers
from metrics.store.database import RunStore, StoreError
from orchestrator.home import list_runs, run_folder

_FIGURES = {
    "sps": "sps",
    "granularity": "granularity_of_means",
    "calc_s": "calc_s",
    "comm_s": "comm_s",
    "egress_bytes_per_vm_epoch": "egress_bytes_per_vm_epoch",
    "usd_per_1m_samples": "usd_per_1m",
}
"""Keys of a prediction, and the measured figure of the same definition."""


@dataclass(frozen=True)
class Emulated:
    """One emulated run of an experiment that is predicted."""

    run_id: str
    experiment: str
    host_contended: bool
    figures: dict[str, tuple[Value, float]]  # by key: predicted by this version, measured
    kept: tuple[Pair, ...]  # predicted by the run's own plan

    def error(self, key: str) -> float | None:
        """Return predicted / measured - 1; None: unknown."""
        found = self.figures.get(key)
        return None if found is None or not found[1] else found[0].value / found[1] - 1

    def inside(self, key: str) -> bool | None:
        """Whether the 90 % interval holds the measured value; None: unknown."""
        found = self.figures.get(key)
        return None if found is None else found[0].low <= found[1] <= found[0].high


def emulated_rows(home: Path, book: PriceBook) -> tuple[list[Emulated], list[str]]:
    """Read all emulated runs of a home, and say which cannot be compared. Raises orchestrator.errors.UsageError."""
    found: list[Emulated] = []
    left: list[str] = []
    for run_id in list_runs(home):
        try:
            with RunStore.open_reader(run_folder(home, run_id) / "run.db") as store:
                run = RunNumbers.of(store)
            if run.meta.emulated:
                found.append(_emulated(run, book))
        except (StoreError, SpecError, ValueError) as error:
            left.append(f"{run_id}: not compared: {error}")
    return found, left


def _emulated(run: RunNumbers, book: PriceBook) -> Emulated:
    document: dict[str, Any] = dict(run.meta.document)
    spec = from_document(document)
    p = predict(spec, book)
    if p.sps is None:
        raise ValueError("; ".join(p.unknown))
    figures = {
        key: (value, measured)
        for key, figure in _FIGURES.items()
        if (value := _predicted(p, key, lambda: usd_of(spec, p, book)[1])) is not None
        and (measured := FIGURES[figure].value(run)) is not None
    }
    if "sps" not in figures:
        raise ValueError("no measured epoch yet")
    return Emulated(
        str(run.meta.run_id), spec.name, bool(run.meta.host_contended), figures, tuple(pairs_of(run))
    )


def _predicted(p: Prediction, key: str, usd: Any) -> Value | None:
    if key != "usd_per_1m_samples":
        return getattr(p, key)
    return None if p.egress_usd_per_epoch is None else usd()


def emulated_tables(found: Sequence[Emulated]) -> list[str]:
    """Return the lines on emulated runs: errors by run, coverage, and the predictions that the plans kept."""
    if not found:
        return ["emulated runs: unknown, none was given (--emulated HOME)"]
    head = [FIGURES[figure].name for figure in _FIGURES.values()]
    lines = [
        f"| emulated run | {' | '.join(f'{name} error %' for name in head)} |",
        f"|---|{'---|' * len(head)}",
    ]
    for row in found:
        cells = [_cell(row.error(key), row.inside(key)) for key in _FIGURES]
        busy = " (host too busy)" if row.host_contended else ""
        lines.append(f"| {row.run_id}{busy} | {' | '.join(cells)} |")
    calm = [row for row in found if not row.host_contended]
    lines += ["", f"emulated runs whose host was not too busy (n = {len(calm)}), predicted by this version:"]
    for key, name in zip(_FIGURES, head, strict=True):
        errors = [e for row in calm if (e := row.error(key)) is not None]
        inside = [hit for row in calm if (hit := row.inside(key)) is not None]
        if errors:
            lines.append(
                f"  {name}: median error {100 * statistics.median(map(abs, errors)):.1f} %, worst "
                f"{100 * max(errors, key=abs):+.1f} %; the 90 % intervals hold {sum(inside)} of {len(inside)}"
            )
    kept = accuracy_table(accuracy(pair for row in found for pair in row.kept))
    if kept:
        lines += ["", "predicted by the runs' own plans, before they ran:", f"| {' | '.join(kept[0])} |"]
        lines += [f"|{'---|' * len(kept[0])}", *(f"| {' | '.join(row.values())} |" for row in kept)]
    return lines


def _cell(error: float | None, inside: bool | None) -> str:
    return "-" if error is None else f"{100 * error:+.1f}{'' if inside else ' (outside)'}"
