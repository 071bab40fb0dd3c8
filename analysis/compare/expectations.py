"""Judges whether a study's rows meet the expectations of its file (`compare.expect`), one verdict per row. Pure.

The figure itself is compared with the limit; `clear` tells whether its whole 95 % interval is on the same side. What
cannot be judged is unknown, with the reason, and never met.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from analysis.compare.option_figures import Cell, Cells, OptionRun
from experiments.study_file.baseline import LOSSES, meant
from experiments.study_file.expectations import LIMITS, Expectation, of_row


@dataclass(frozen=True, slots=True)
class Listed:
    """A row of the study, whether or not it has run. `missing`: why it has no figures, if that is known."""

    experiment: str  # "geo-c8-nlp"
    label: str
    model: str
    against: str = ""  # the label in `against` of its entry
    missing: str = ""


@dataclass(frozen=True, slots=True)
class Verdict:
    """Verdict on one row. `found`: ratio to the other row (inverse for `times_lower`), or difference of the losses."""

    expectation: Expectation
    row: str
    against: str
    verdict: Literal["met", "missed", "unknown", "told"]  # told: there is no limit
    found: float | None = None
    low: float | None = None
    high: float | None = None
    n_of: str = ""  # what the interval covers: runs or epochs
    noise: float | None = None
    noise_n: int = 0
    clear: bool | None = None  # None: there is no interval, or no limit
    why: str = ""  # the reason if it is unknown, otherwise a remark


def judge_expected(
    expected: Sequence[Expectation], listed: Sequence[Listed], runs: Sequence[OptionRun], baseline: str
) -> list[Verdict]:
    """Judge each expectation for each row that it refers to, in the file's order."""
    by_key = {(one.experiment, one.label): one for one in listed}
    missing = {key: _missing(listed, key) for key in by_key}
    models = {key: one.model for key, one in by_key.items()}
    cells = Cells(runs)
    found: list[Verdict] = []
    for one in expected:
        keys = of_row(models, one)
        if not keys:
            of = f" of {one.experiment}" if one.experiment else ""
            found.append(_unknown(one, one.row, one.against, f"this study has no row '{one.row}'{of}"))
        for key in keys:
            label = one.against or by_key[key].against or baseline
            others = meant(models, key[0], by_key[key].model, label)
            own = [run for run in runs if (run.experiment, run.label) == key]
            if len(others) != 1:
                why = f"{'several rows are' if others else 'this study has no row'} '{label}'"
                found.append(_unknown(one, _title(key, own), label, why))
                continue
            base = [run for run in runs if (run.experiment, run.label) == others[0]]
            named = (_title(key, own), _title(others[0], base))
            lack = [
                f"{title}: {missing[at] or 'it has no run'}"
                for title, at, its in zip(named, (key, others[0]), (own, base), strict=True)
                if not its
            ]
            if lack:
                found.append(_unknown(one, *named, "; ".join(lack)))
                continue
            verdict = _judged(one, *named, cells.cell(one.figure, own, base))
            remarks = [verdict.why, *(_dropped(its) for its in (own, base))]
            found.append(replace(verdict, why="; ".join(filter(None, remarks))))
    return found


def verdicts_document(verdicts: Sequence[Verdict]) -> list[dict[str, Any]]:
    """Return the verdicts as JSON types; a limit that is not given is null."""
    columns = ("found", "low", "high", "n_of", "noise", "noise_n", "verdict", "clear", "why")
    return [
        {
            "row": one.row,
            "against": one.against,
            "figure": one.expectation.figure,
            **{name: getattr(one.expectation, name) for name in LIMITS},
            **{name: getattr(one, name) for name in columns},
        }
        for one in verdicts
    ]


def _judged(one: Expectation, row: str, against: str, cell: Cell) -> Verdict:
    if one.figure in LOSSES:
        return _judged_loss(one, row, against, cell)
    if cell.ratio is None:
        return _unknown(one, row, against, cell.why or "unknown")
    low, found, high = cell.low, cell.ratio, cell.high
    if one.times_lower is not None:
        if found <= 0:
            return _unknown(one, row, against, f"{row} has the value 0")
        low, found, high = 1 / high if high else None, 1 / found, 1 / low if low else None
    inside = _inside(one, found)
    ends = [_inside(one, end) for end in (low, high) if end is not None]
    clear = None if inside is None or not ends else all(end == inside for end in ends)
    verdict = "told" if inside is None else "met" if inside else "missed"
    return Verdict(one, row, against, verdict, found, low, high, cell.n_of, clear=clear)


def _judged_loss(one: Expectation, row: str, against: str, cell: Cell) -> Verdict:
    if cell.difference is None or (one.within_noise and cell.within_noise is None):
        return Verdict(one, row, against, "unknown", cell.difference, why=cell.why or "unknown")
    verdict = "told" if not one.within_noise else "met" if cell.within_noise else "missed"
    return Verdict(
        one, row, against, verdict, cell.difference, noise=cell.noise, noise_n=cell.noise_n, why=cell.why
    )


def _inside(one: Expectation, found: float) -> bool | None:
    """Whether the figure is within the limit; None: there is no limit."""
    if one.within is not None:
        return abs(found - 1) <= one.within
    if one.at_most is not None:
        return found <= one.at_most
    least = one.times_lower if one.times_lower is not None else one.at_least
    return None if least is None else found >= least


def _unknown(one: Expectation, row: str, against: str, why: str) -> Verdict:
    return Verdict(one, row, against, "unknown", why=why)


def _title(key: tuple[str, str], runs: Sequence[OptionRun]) -> str:
    return runs[0].title if runs else " ".join(key).strip()


def _dropped(runs: Sequence[OptionRun]) -> str:
    """Describe the dropped rounds of a row's runs, which slow them down whatever is compared."""
    dropped = sum(run.dropped_rounds for run in runs if not run.left_out)
    return f"{runs[0].title} dropped {dropped} round{'s' if dropped > 1 else ''}" if dropped else ""


def _missing(listed: Sequence[Listed], key: tuple[str, str]) -> str:
    """Return the reasons why a row's runs are missing, each once."""
    reasons = [one.missing for one in listed if (one.experiment, one.label) == key and one.missing]
    return "; ".join(dict.fromkeys(reasons))
