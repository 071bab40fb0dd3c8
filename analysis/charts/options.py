"""Charts of a study's options and their baseline: a row of panels per model, a panel per figure, a bar per option."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from analysis.charts.groups import interval, legend, panel_title, point
from analysis.charts.style import INK, PALETTE
from analysis.compare.options import Gain, Gains
from experiments.study_file.baseline import LOSSES
from metrics.figures import FIGURES, compared_figure
from metrics.readable import number

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_SHOWN = (
    "sps", "granularity", "usd_per_1m", "loss", "heldout_loss", "intercontinental_bytes", "comm_s",
    "egress_bytes_per_vm_epoch",
)  # fmt: skip
_MOST = 4  # panels per row
_WIDTH_IN, _BAR_IN = 11.0, 0.24
_BASELINE, _OPTION, _OTHER = INK, PALETTE[0], PALETTE[2]
_DRAWN = 0.64  # fraction of a panel's width for bars; the rest is for text


def gain_figure(gains: Gains) -> Figure:
    """Draw the options and their baseline. At most four of the columns are drawn; the table has all."""
    from matplotlib.figure import Figure as New
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    columns = _chosen(gains.columns)
    models = list(dict.fromkeys(row.model for row in gains.rows))
    parts = [[row for row in gains.rows if row.model == model] for model in models]
    heights = [len(part) * _BAR_IN + 0.9 for part in parts]
    figure = New(figsize=(_WIDTH_IN, sum(heights) + 0.5))
    places = figure.subplots(len(parts), len(columns), squeeze=False, gridspec_kw={"height_ratios": heights})
    for line, model, part in zip(places, models, parts, strict=True):
        for k, (axes, column) in enumerate(zip(line, columns, strict=True)):
            (_losses if column in LOSSES else _bars)(axes, column, part)
            for y, row in enumerate(part):
                if gains.elsewhere(row):
                    _other_base(axes, y, column, gains.against(row))
            axes.set_ylim(len(part) - 0.4, -0.6)
            axes.set_yticks(
                range(len(part)), [_name(row, part, gains) for row in part] if k == 0 else [""] * len(part)
            )
            axes.tick_params(labelsize=8)
            axes.grid(visible=False, axis="y")
            axes.set_xlabel(compared_figure(column).heading, fontsize=9)
        emulated = all(run.origin == "emulated" for row in part for run in row.runs)
        panel_title(line[0], f"{model}{' (emulated)' if emulated else ''}")
    kinds = [("baseline", _BASELINE), ("with an option", _OPTION), ("another experiment", _OTHER)]
    used = {_color(row, part) for part in parts for row in part}
    entries: list[tuple[str, Any]] = [
        (name, Patch(facecolor=color, linewidth=0)) for name, color in kinds if color in used
    ]
    if any(gains.elsewhere(row) for row in gains.rows):
        entries.append(("row it is compared with instead", Line2D([], [], color=_BASELINE, linestyle=":")))
    if any(row.cells[c].noise is not None for c in columns if c in LOSSES for row in gains.rows):
        entries.append(
            ("noise of one run against the baseline", Patch(facecolor=_BASELINE, alpha=0.2, linewidth=0))
        )
    legend(figure, entries)
    return figure


def _chosen(columns: Sequence[str]) -> list[str]:
    """Select the drawn columns: only one of the losses, unless there is room for both."""
    known = [column for column in _SHOWN if column in columns]
    if len(known) > _MOST and "loss" in known and "heldout_loss" in known:
        known.remove("loss")
    return known[:_MOST]


def _bars(axes: Any, column: str, rows: Sequence[Gain]) -> None:
    scale = FIGURES[column].shown_factor
    values = [(row.cells[column].value or 0.0) * scale for row in rows]
    axes.set_xlim(0, 1.3 * max(values, default=0.0) or 1.0)
    for y, (row, value) in enumerate(zip(rows, values, strict=True)):
        cell = row.cells[column]
        if row.is_baseline and value:
            axes.axvline(value, color=_BASELINE, linewidth=1, linestyle="--", zorder=0.5)
        if cell.value is None:
            _write_at(axes, y, "unknown" if row.counted else "not compared")
            continue
        axes.barh(y, value, color=_color(row, rows), height=0.72)
        if cell.ratio and cell.low is not None and cell.high is not None:
            base = value / cell.ratio
            interval(axes, y, cell.low * base, cell.high * base, INK, along="x")
        times = "" if cell.ratio is None or row.is_baseline else f"  {cell.ratio:.3f}x"
        _write_at(axes, y, f"{number(value, 3)}{times}")
    _widen(axes)


def _losses(axes: Any, column: str, rows: Sequence[Gain]) -> None:
    values = [v for row in rows if (v := row.cells[column].value) is not None]
    low, high = min(values, default=0.0), max(values, default=1.0)
    wide = (high - low) or abs(high) * 0.01 or 1.0
    axes.set_xlim(low - 0.15 * wide, high + 0.15 * wide)
    for y, row in enumerate(rows):
        cell = row.cells[column]
        if cell.value is None:
            _write_at(axes, y, "unknown" if row.counted else "not compared")
            continue
        if row.is_baseline:
            axes.axvline(cell.value, color=_BASELINE, linewidth=1, linestyle="--", zorder=0.5)
            ends = [cell.value - (cell.noise or 0.0), cell.value + (cell.noise or 0.0)]
            left, right = axes.get_xlim()
            axes.axvspan(max(left, ends[0]), min(right, ends[1]), color=_BASELINE, alpha=0.2, linewidth=0)
        hollow = cell.difference is None
        style = {"color": _color(row, rows), "marker": "o"}
        point(axes, cell.value, y, style, "printed" if hollow else "log", 5.0)
        off = "  not compared" if hollow else "" if row.is_baseline else f"  {cell.difference:+.4f}"
        _write_at(axes, y, f"{cell.value:.4f}{off}")
    axes.locator_params(axis="x", nbins=4)
    _widen(axes)


def _other_base(axes: Any, y: int, column: str, base: Gain | None) -> None:
    """Mark the figure of the row that this one is compared with, if that is not the dashed line."""
    value = base.cells[column].value if base else None
    if value is not None:
        x = value * FIGURES[column].shown_factor
        axes.plot([x, x], [y - 0.5, y + 0.5], color=_BASELINE, linewidth=1.5, linestyle=":", zorder=4)


def _widen(axes: Any) -> None:
    """Make room for text at the right edge; intervals are clipped before it."""
    left, right = axes.get_xlim()
    axes.set_xlim(left, left + (right - left) / _DRAWN)


def _write_at(axes: Any, y: int, text: str) -> None:
    axes.annotate(text, (1.0, y), xycoords=("axes fraction", "data"), va="center", ha="right", fontsize=7)


def _color(row: Gain, rows: Sequence[Gain]) -> str:
    base = next((one for one in rows if one.is_baseline), None)
    if base is not None and row.name != base.name:
        return _OTHER
    return _BASELINE if row.is_baseline else _OPTION


def _name(row: Gain, rows: Sequence[Gain], gains: Gains) -> str:
    base = next((one for one in rows if one.is_baseline), None)
    name = row.label if base is not None and row.name == base.name and row.label else row.title
    other = gains.against(row) if gains.elsewhere(row) else None
    return f"{name} (against {other.label or other.title})" if other else name
