"""What each option gains, as a table for a terminal, rows, and the first section of the study report. Draws nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from analysis.compare.option_figures import Cell
from analysis.compare.options import Gain, Gains
from analysis.compare.rows import Row
from analysis.report.page import Card
from analysis.report.study.expectations import expected_card
from analysis.report.study.held_out import host_marks
from analysis.report.study.sections import Drawn
from experiments.study_file.baseline import LOSSES
from metrics.figures import FIGURES, compared_figure
from metrics.provenance import all_marks, scales_mark
from metrics.readable import number

if TYPE_CHECKING:
    from matplotlib.figure import Figure

GAIN_COLUMNS = (
    "experiment", "label", "figure", "value", "n", "ratio", "ratio_low", "ratio_high", "ratio_n_of", "samples_least",
    "samples_most", "difference_to_baseline", "noise", "noise_n", "within_noise", "why", "against", "run_ids",
    "origin", "scales", "host_contended", "left_out",
)  # fmt: skip
"""Columns of `gain_long_rows`."""
_NAMED = 6  # at most this many rows of one scale are named


def gain_table(gains: Gains) -> list[Row]:
    """Return one line per row with the study's columns: `212 (1.42x, 1.30 to 1.55)`; losses with their difference."""
    found: list[Row] = []
    for row in gains.rows:
        line: Row = {"experiment": row.title, "runs": len(row.counted), "on": row.ran_on}
        for column in gains.columns:
            cell = row.cells[column]
            line[compared_figure(column).heading] = (
                _learned(cell, row) if column in LOSSES else _figure(column, cell, row)
            )
        line["note"] = "; ".join(
            [
                *(["baseline"] if row.is_baseline else []),
                *dict.fromkeys(run.left_out for run in row.runs if run.left_out),
                *host_marks([run.host for run in row.counted]),
                *([f"{dropped} dropped rounds"] if (dropped := _dropped(row)) else []),
            ]
        )
        found.append(line)
    return found


def gain_notes(gains: Gains) -> list[str]:
    """Return notes that explain the table, a sentence each."""
    prices = sorted({run.prices for row in gains.rows for run in row.counted})
    notes = [
        *_scales(gains),
        f"x: ratio to the baseline '{gains.baseline}' of the same experiment, or of the same model, with its 95 % interval "
        "over runs, or over epochs if one side has only one run.",
        *(f"{row.title} is compared with {row.against}." for row in gains.rows if gains.elsewhere(row)),
    ]
    if "usd_per_1m" in gains.columns and prices:
        notes.append(
            f"$: VMs and egress of the measured epochs, without training data; prices of {', '.join(prices)}."
        )
    if any(column in LOSSES for column in gains.columns):
        notes += _noise_notes(gains)
    unmatched = [row.title for row in gains.rows if not row.against]
    if unmatched:
        notes.append(f"Nothing to compare with: {', '.join(unmatched)}.")
    return notes


def gain_long_rows(gains: Gains) -> list[Row]:
    """Return one row per row of the study and figure, including figures that are not shown. None: unknown."""
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
                    "noise_n": cell.noise_n,
                    "within_noise": cell.within_noise,
                    "why": cell.why,
                    "against": row.against,
                    "run_ids": " ".join(run.run_id for run in row.counted),
                    "origin": row.ran_on,
                    "scales": all_marks(scales_mark(run.scales) for run in row.counted or row.runs) or None,
                    "host_contended": row.host_contended,
                    "left_out": "; ".join(f"{r.run_id}: {r.left_out}" for r in row.runs if r.left_out),
                }
            )
    return found


def gain_section(gains: Gains) -> Drawn:
    """Return the section with its figure."""
    kinds = {row.title: row.runs[0].origin for row in gains.rows}  # the origin that the page's texts use
    rows: list[Row] = []
    for row in gain_long_rows(gains):
        name = f"{row['experiment']} {row['label']}".strip()
        rows.append({"name": name, **row, "origin": kinds[name], "ran_on": row["origin"]})
    return Drawn(
        "gains", "What each option gains", "Each option of the study and its baseline, the dashed line.", rows,
        lambda: _drawn(gains), gain_table(gains), "Figure (times the baseline's, 95 % interval)", gain_notes(gains),
    )  # fmt: skip


def gain_cards(gains: Gains) -> list[Card]:
    """Return the headlines: the expectations, and per model the fastest and cheapest row of the baseline's experiment.

    The factor of such a row is that of the table: relative to the row that it is compared with.
    """
    expected = expected_card(gains.verdicts)
    found = [expected] if expected else []
    for model in dict.fromkeys(row.model for row in gains.rows):
        base = next((row for row in gains.rows if row.model == model and row.is_baseline), None)
        for figure, name in (("sps", "Fastest"), ("usd_per_1m", "Cheapest")):
            best = min if FIGURES[figure].lower_is_better else max
            own = [row for row in gains.rows if base is not None and row.name == base.name]
            known = [(value, row) for row in own if (value := row.cells[figure].value) is not None]
            if not known:
                continue
            row = best(known, key=lambda pair: pair[0])[1]
            other, ratio = gains.against(row), row.cells[figure].ratio
            if row.is_baseline or other is None or ratio is None:
                continue
            theirs = f"{other.label or other.title}'s {_value(figure, other.cells[figure])}"
            more = f"{row.label or row.title}: {_value(figure, row.cells[figure])} {FIGURES[figure].unit} against {theirs}"
            found.append(Card(f"{name}, {row.name}", f"{ratio:.3f} x", more))
    return found


def _drawn(gains: Gains) -> Figure:
    from analysis.charts.options import gain_figure

    return gain_figure(gains)


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
        return f"unknown ({cell.why})" if row.counted and cell.why else "unknown"
    least, most = cell.samples
    at = f"{least:,.0f}" if least == most else f"{least:,.0f} to {most:,.0f}"
    if row.is_baseline:
        return f"{cell.value:.4f} at {at}"
    if cell.difference is None:
        return f"{cell.value:.4f} at {at} ({cell.why})"
    noise = "noise unknown"
    if cell.noise is not None:
        noise = f"{'within' if cell.within_noise else 'BEYOND'} noise {cell.noise:.4f}"
    return f"{cell.value:.4f} at {at} ({cell.difference:+.4f}, {noise})"


def _noise_notes(gains: Gains) -> list[str]:
    """Explain how losses are compared, the noise for one run of a row, and which rows have unknown noise."""
    shown = [column for column in gains.columns if column in LOSSES]
    known = [
        f"{row.title} (n {row.cells[column].noise_n}) {compared_figure(column).heading} {noise:.4f}"
        for row in gains.rows
        if row.is_baseline
        for column in shown
        if (noise := row.cells[column].noise) is not None
    ]
    of_one = f"; for one run against {'; '.join(known)}" if known else ""
    notes = [
        "Losses: the last record at or before the smallest count of samples that every run of the model reached (a tenth of a "
        "target batch more is accepted), with the count of samples actually trained on. Noise: the bound that chance alone "
        "stays within in 95 of 100 cases, t(n - 1) times the standard deviation of the n runs that a row is compared with, "
        f"times the root of 1/n + 1/(number of its own runs){of_one}.",
    ]
    uncertain: dict[str, list[str]] = {}
    for row in gains.rows:
        for column in shown:
            cell = row.cells[column]
            if cell.difference is not None and cell.noise is None:
                uncertain.setdefault(cell.why, []).append(f"{row.title} {compared_figure(column).heading}")
    return notes + [f"{why[:1].upper()}{why[1:]} ({', '.join(rows)})." for why, rows in uncertain.items()]


def _value(column: str, cell: Cell) -> str:
    if cell.value is None:
        return "unknown"
    if column == "usd_per_1m":
        return number(cell.value, 3)
    return number(cell.value * FIGURES[column].shown_factor)


def _dropped(row: Gain) -> int:
    return sum(run.dropped_rounds for run in row.counted)


def _scales(gains: Gains) -> list[str]:
    """Describe what was emulated at which scales; [] if nothing was."""
    found: dict[str, list[str]] = {}
    for row in gains.rows:
        for run in row.runs:
            if run.origin == "emulated":
                found.setdefault(scales_mark(run.scales) or "scales unknown", []).append(row.title)
    if not found:
        return []
    named = [f"{mark} ({_few(titles)})" for mark, titles in found.items()]
    alike = len(found) == 1 and all(run.origin == "emulated" for row in gains.rows for run in row.runs)
    return [
        f"Emulated, with figures at full scale; scales: {next(iter(found)) if alike else '; '.join(named)}."
    ]


def _few(titles: Sequence[str]) -> str:
    names = list(dict.fromkeys(titles))
    return ", ".join(names) if len(names) <= _NAMED else f"{len(names)} rows"
