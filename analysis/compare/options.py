"""Compares the runs of each option of a study with those of one entry, the baseline. Pure.

A row is an entry of the study: an experiment and a label, with one or several runs. It is compared with the row of the
same experiment that has the baseline's label (or the label that its entry names), otherwise with the only such row of
its model, so an experiment without distance is compared with one with distance. See `analysis.compare.option_figures`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from analysis.compare.expectations import Verdict, verdicts_document
from analysis.compare.option_figures import FIGURES, Cell, Cells, OptionRun
from experiments.study_file.baseline import LOSSES, meant
from metrics.provenance import all_marks, contended_of


@dataclass(frozen=True)
class Gain:
    """One row. `against`: the title of the row it is compared with, "" for none; a baseline is compared with itself."""

    name: str
    label: str
    model: str
    runs: tuple[OptionRun, ...]  # all of them
    against: str
    is_baseline: bool
    cells: Mapping[str, Cell]

    @property
    def title(self) -> str:
        """`NLP C-8 wan`."""
        return f"{self.name} {self.label}".strip()

    @property
    def counted(self) -> tuple[OptionRun, ...]:
        """The runs that count."""
        return tuple(run for run in self.runs if not run.left_out)

    @property
    def ran_on(self) -> str:
        """What its counted runs ran on; if none counts, what all its runs ran on."""
        return all_marks(run.ran_on for run in self.counted or self.runs)

    @property
    def host_contended(self) -> bool | None:
        """Whether the host of a counted run was too busy; None: unknown, or no run counts."""
        return contended_of(run.host_contended for run in self.counted)


@dataclass(frozen=True)
class Gains:
    """All rows of a study. `columns`: the shown figures; `verdicts`: on the study's expectations."""

    baseline: str
    columns: tuple[str, ...]
    rows: Sequence[Gain]
    verdicts: Sequence[Verdict] = ()

    def against(self, row: Gain) -> Gain | None:
        """Return the row that a row is compared with."""
        return next((one for one in self.rows if row.against and one.title == row.against), None)

    def elsewhere(self, row: Gain) -> bool:
        """Whether a row is compared with a row that is not a baseline."""
        other = self.against(row)
        return other is not None and not other.is_baseline


def gains(runs: Sequence[OptionRun], baseline: str) -> list[Gain]:
    """Compare the rows, in the order of their first runs. `baseline`: a label."""
    rows: dict[tuple[str, str], list[OptionRun]] = {}
    for run in runs:
        rows.setdefault((run.name, run.label), []).append(run)
    models = {key: own[0].model for key, own in rows.items()}
    cells = Cells(runs)
    found: list[Gain] = []
    for (name, label), own in rows.items():
        keys = meant(models, name, own[0].model, own[0].against or baseline)
        base = rows[keys[0]] if len(keys) == 1 else []
        compared = {figure: cells.cell(figure, own, base) for figure in (*FIGURES, *LOSSES)}
        against = base[0].title if base else ""
        found.append(Gain(name, label, own[0].model, tuple(own), against, label == baseline, compared))
    return found


def gains_document(found: Gains | None) -> dict[str, Any]:
    """Return the keys of `orch compare -o json`, including figures that are not shown. None: the study has no baseline."""
    rows = found.rows if found else ()
    return {
        "baseline": found.baseline if found else None,
        "gains": [
            {
                "experiment": row.name,
                "label": row.label,
                "model": row.model,
                "baseline": row.is_baseline,
                "against": row.against or None,
                "run_ids": [run.run_id for run in row.counted],
                "dropped_rounds": sum(run.dropped_rounds for run in row.counted),
                "left_out": [{"run_id": r.run_id, "why": r.left_out} for r in row.runs if r.left_out],
                "host_contended": row.host_contended,
                "runs": [_run(run) for run in row.runs],
                "figures": {figure: _cell(row.cells[figure], figure in LOSSES) for figure in row.cells},
            }
            for row in rows
        ],
        "expected": verdicts_document(found.verdicts if found else ()),
    }


def _run(run: OptionRun) -> dict[str, Any]:
    return {
        "run_id": run.run_id,
        "target": run.target,
        "origin": run.ran_on,
        "scales": None if run.scales is None else dict(run.scales),
        "host_contended": run.host_contended,
    }


def _cell(cell: Cell, learned: bool) -> dict[str, Any]:
    if not learned:
        names = ("value", "n", "ratio", "low", "high", "n_of", "why")
        return {name: getattr(cell, name) for name in names}
    least, most = cell.samples or (None, None)
    return {
        "value": cell.value,
        "n": cell.n,
        "samples_least": least,
        "samples_most": most,
        "difference": cell.difference,
        "noise": cell.noise,
        "noise_n": cell.noise_n,
        "within_noise": cell.within_noise,
        "why": cell.why,
    }
