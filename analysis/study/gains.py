"""What each option gains: a table for a terminal, rows, the first section of the study report. Nothing is drawn here."""

from __future__ import annotations

from typing import TYPE_CHECKING

from analysis.gains import LOSSES, Cell, Gain, Gains
from analysis.report.page import Card
from analysis.study.rows import Row
from analysis.study.sections import Drawn

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = [
    "GAIN_COLUMNS",
    "gain_cards",
    "gain_long_rows",
    "gain_notes",
    "gain_section",
    "gain_table",
    "words",
]

GAIN_COLUMNS = (
    "experiment", "label", "figure", "value", "n", "ratio", "ratio_low", "ratio_high", "ratio_n_of", "samples_least",
    "samples_most", "difference_to_baseline", "noise", "within_noise", "against", "run_ids",
)  # fmt: skip
"""Columns of `gain_long_rows`."""

_WORDS = {
    "sps": "samples/s",
    "granularity": "granularity",
    "usd_per_1m": "$/1M samples",
    "intercontinental_bytes": "intercontinental GB an epoch",
    "loss": "training loss",
    "heldout_loss": "held-out loss",
}
_GB = 1e-9


def words(figure: str) -> str:
    """What a column is called."""
    return _WORDS[figure]


def gain_table(gains: Gains) -> list[Row]:
    """One line a row, the columns that the study asked for: `212 (1.42x, 1.30 to 1.55)`; losses with their difference."""
    found: list[Row] = []
    for row in gains.rows:
        line: Row = {"experiment": row.title, "runs": len(row.counted)}
        for column in gains.columns:
            cell = row.cells[column]
            line[_WORDS[column]] = _learned(cell, row) if column in LOSSES else _figure(column, cell, row)
        line["note"] = "; ".join(
            [
                *(["baseline"] if row.is_baseline else []),
                *dict.fromkeys(run.left_out for run in row.runs if run.left_out),
                *([f"{dropped} dropped rounds"] if (dropped := _dropped(row)) else []),
            ]
        )
        found.append(line)
    return found


def gain_notes(gains: Gains) -> list[str]:
    """What the table does not say of itself, a sentence each."""
    prices = sorted({run.prices for row in gains.rows for run in row.counted})
    said = [
        f"x: times the baseline '{gains.baseline}' of the same experiment, or of the same model, with its 95 % interval over "
        "runs, or over epochs where one side has one run.",
        *(f"{row.title} is held against {row.against}." for row in gains.rows if _elsewhere(gains, row)),
    ]
    if "usd_per_1m" in gains.columns and prices:
        said.append(
            f"$: VMs and egress of the measured epochs, without the data; prices of {', '.join(prices)}."
        )
    if any(column in LOSSES for column in gains.columns):
        said.append(_noise_words(gains))
    lone = [row.title for row in gains.rows if not row.against]
    if lone:
        said.append(f"Nothing to compare with: {', '.join(lone)}.")
    return said


def gain_long_rows(gains: Gains) -> list[Row]:
    """One row a row and figure, whatever is shown. `None`: unknown."""
    found: list[Row] = []
    for row in gains.rows:
        for figure, cell in row.cells.items():
            least, most = cell.samples or (None, None)
            found.append(
                {
                    "experiment": row.name,
                    "label": row.label,
                    "figure": figure,
                    "value": cell.value,
                    "n": cell.n,
                    "ratio": cell.ratio,
                    "ratio_low": cell.low,
                    "ratio_high": cell.high,
                    "ratio_n_of": cell.n_of,
                    "samples_least": None if least is None else round(least),
                    "samples_most": None if most is None else round(most),
                    "difference_to_baseline": cell.difference,
                    "noise": cell.noise,
                    "within_noise": cell.within_noise,
                    "against": row.against,
                    "run_ids": " ".join(run.run_id for run in row.counted),
                }
            )
    return found


def gain_section(gains: Gains) -> Drawn:
    """The section, with its one figure."""
    origins = {row.title: row.runs[0].origin for row in gains.rows}
    names = [f"{r['experiment']} {r['label']}".strip() for r in gain_long_rows(gains)]
    rows = [
        {"name": name, "origin": origins[name], **row}
        for name, row in zip(names, gain_long_rows(gains), strict=True)
    ]
    lead = " ".join(("Each option of the study beside its baseline, the dashed line.", *gain_notes(gains)))
    return Drawn(
        "gains", "What each option gains", lead, rows, lambda: _drawn(gains), gain_table(gains),
        "Figure (times the baseline's, 95 % interval)",
    )  # fmt: skip


def gain_cards(gains: Gains) -> list[Card]:
    """Headlines: by model the fastest and the cheapest row of the baseline's experiment."""
    found: list[Card] = []
    for model in dict.fromkeys(row.model for row in gains.rows):
        base = next((row for row in gains.rows if row.model == model and row.is_baseline), None)
        for figure, name, best in (("sps", "Fastest", max), ("usd_per_1m", "Cheapest", min)):
            theirs = base.cells[figure].value if base else None
            if base is None or not theirs:
                continue
            own = [row for row in gains.rows if row.name == base.name]
            known = [(value, row) for row in own if (value := row.cells[figure].value) is not None]
            value, row = best(known, key=lambda pair: pair[0])
            if not row.is_baseline:
                told = f"{_value(figure, row.cells[figure])} {_WORDS[figure]} against {_value(figure, base.cells[figure])}"
                found.append(
                    Card(
                        f"{name}, {row.name}", f"{value / theirs:.2f} x", f"{row.label or row.title}: {told}"
                    )
                )
    return found


def _drawn(gains: Gains) -> Figure:
    from analysis.study.figures_gains import gain_figure

    return gain_figure(gains, _WORDS)


def _figure(column: str, cell: Cell, row: Gain) -> str:
    if cell.value is None:
        return "unknown"
    text = _value(column, cell)
    if cell.ratio is None or row.is_baseline:
        return text
    spread = "" if cell.low is None or cell.high is None else f", {cell.low:.3f} to {cell.high:.3f}"
    return f"{text} ({cell.ratio:.3f}x{spread})"


def _learned(cell: Cell, row: Gain) -> str:
    if cell.value is None or cell.samples is None:
        return "unknown"
    least, most = cell.samples
    at = f"{least:,.0f}" if least == most else f"{least:,.0f} to {most:,.0f}"
    if row.is_baseline:
        return f"{cell.value:.4f} at {at}"
    if cell.difference is None:
        return f"{cell.value:.4f} at {at} ({cell.why})"
    verdict = {True: ", noise", False: ", BEYOND NOISE", None: ""}[cell.within_noise]
    return f"{cell.value:.4f} at {at} ({cell.difference:+.4f}{verdict})"


def _noise_words(gains: Gains) -> str:
    shown = [column for column in gains.columns if column in LOSSES]
    told = [
        f"{row.name} {_WORDS[column]} " + ("unknown" if noise is None else f"{noise:.4f}")
        for row in gains.rows
        if row.is_baseline
        for column in shown
        for noise in (row.cells[column].noise,)
    ]
    known = any(
        row.is_baseline and row.cells[column].noise is not None for row in gains.rows for column in shown
    )
    return (
        "Losses: the last record at or before the smallest count of samples that every run of the model came to (a tenth of a "
        "target batch more is let pass), after so many samples really learned from; noise is twice the standard deviation of "
        f"the baseline's runs: {'; '.join(told) if known else 'unknown, since it has one run'}."
    )


def _value(column: str, cell: Cell) -> str:
    if cell.value is None:
        return "unknown"
    if column == "usd_per_1m":
        return f"{cell.value:.3g}"
    value = cell.value * (_GB if column == "intercontinental_bytes" else 1.0)
    return f"{value:.4g}"


def _elsewhere(gains: Gains, row: Gain) -> bool:
    """Whether its entry names another row than the baseline."""
    return bool(row.against) and row.runs[0].against not in ("", gains.baseline)


def _dropped(row: Gain) -> int:
    return sum(run.dropped_rounds for run in row.counted)
