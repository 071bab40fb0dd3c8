"""Scatter plots of cost against throughput: log axes, the Pareto front, names or a numbered key."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from analysis.charts.groups import (
    grid,
    handle,
    interval,
    legend,
    log_ticks,
    origin_entries,
    panel_title,
    point,
    styles,
)
from analysis.charts.point_labels import attach
from analysis.charts.style import INK
from analysis.compare.rows import comparable
from analysis.compare.run_figures import natural

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Row = Mapping[str, Any]
_OTHER_CLOCK = "†"
_KEY_COLUMNS = 5
_KEY_SIZE = 7
_FAMILY = re.compile(r"^(CV|NLP|ASR) (?=[A-F]-)")  # omitted in labels: the panel names the model
_Label = tuple[Any, float, float, str]
_Line = tuple[Any, tuple[float, float], tuple[float, float]]


def scatter(panels: Sequence[tuple[str, Sequence[Row]]], front: str = "Pareto front") -> Figure:
    """Draw cost against throughput. `panels`: (title, rows of `scatter_rows`); all panels have the same limits.

    `front`: what the line through the rows with `front` is called.
    """
    figure, labels, lines = _drawn(panels, front, key=False)
    if attach(figure, labels, size=7.5, radius_pt=5.5, lines=lines):
        return figure
    figure, labels, lines = _drawn(panels, front, key=True)
    attach(figure, labels, size=7, radius_pt=4.0, lines=lines)
    return figure


def _drawn(
    panels: Sequence[tuple[str, Sequence[Row]]], front_name: str, key: bool
) -> tuple[Figure, list[_Label], list[_Line]]:
    every = [row for _, rows in panels for row in rows]
    known = {title: [r for r in rows if _at(r)] for title, rows in panels}
    looks = styles(str(row["group"]) for row in every)
    drawn = sorted(
        {(str(r["panel"]), str(r["name"])) for part in known.values() for r in part}, key=_in_order
    )
    numbers = {name: str(k) for k, name in enumerate(drawn, start=1)}
    figure, axes = grid(len(panels), 3.9)
    if key:
        _key(figure, numbers)
    limits = _limits([row for rows in known.values() for row in rows])
    labels: list[_Label] = []
    lines: list[_Line] = []
    dagger = front_seen = False
    for place, (title, rows) in zip(axes, panels, strict=False):
        _frame(place, title, rows, limits)
        for row in known[title]:
            (x, y), look = _at(row) or (0.0, 0.0), looks[str(row["group"])]
            fair = comparable(dict(row), str(row["basis"]))
            dagger = dagger or not fair
            interval(place, y, row["sps_low"], row["sps_high"], look["color"], along="x")
            point(place, x, y, look, str(row["origin"]))
            if row["sps_low"] is not None and row["sps_high"] is not None:
                ends = max(row["sps_low"], limits[0][0]), min(row["sps_high"], limits[0][1])
                lines.append((place, (ends[0], y), (ends[1], y)))
            text = numbers[str(row["panel"]), str(row["name"])] if key else _FAMILY.sub("", str(row["name"]))
            labels.append((place, x, y, text if fair else text + _OTHER_CLOCK))
        front = sorted(p for r in known[title] if r["front"] and (p := _at(r)))
        if len(front) > 1:
            place.plot(*zip(*front, strict=True), color=INK, linewidth=1, linestyle="--", zorder=1)
            lines += [(place, one, other) for one, other in pairwise(front)]
            front_seen = True
    present = {str(row["group"]) for rows in known.values() for row in rows}
    entries = [
        (g, handle(look, "printed" if g == "centralised" else "log"))
        for g, look in looks.items()
        if g in present
    ]
    if front_seen:
        from matplotlib.lines import Line2D

        entries.append((front_name, Line2D([], [], color=INK, linestyle="--", linewidth=1)))
    if dagger:
        entries.append(
            (
                f"{_OTHER_CLOCK} not by wall clock: not in the {front_name}",
                handle({"color": "none", "marker": ""}),
            )
        )
    legend(figure, [*entries, *origin_entries([r for rows in known.values() for r in rows])])
    return figure, labels, lines


def _frame(
    axes: Any, title: str, rows: Sequence[Row], limits: tuple[tuple[float, float], tuple[float, float]]
) -> None:
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlim(*limits[0])
    axes.set_ylim(*limits[1])
    log_ticks(axes.xaxis)
    log_ticks(axes.yaxis)
    panel_title(axes, title, rows)
    axes.set_xlabel("throughput (samples/s)")
    axes.set_ylabel("cost ($ per million samples)")
    if not any(_at(row) for row in rows):
        axes.text(
            0.5, 0.5, "no run with a known rate and price", transform=axes.transAxes, ha="center", fontsize=9
        )


def _key(figure: Figure, numbers: Mapping[tuple[str, str], str]) -> None:
    """Draw the key of the numbers below the panels, with a heading per model, in as many columns as fit."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    renderer: Any = FigureCanvasAgg(figure).get_renderer()
    models = list(dict.fromkeys(model for model, _ in numbers))
    entries: list[str] = []
    for model in models:
        entries += [model] if len(models) > 1 else []
        entries += [f"{number}  {name}" for (of, name), number in numbers.items() if of == model]
    probe = figure.text(0, 0, "\n".join(entries), fontsize=_KEY_SIZE)
    width = 1.1 * probe.get_window_extent(renderer).width / (figure.get_figwidth() * figure.dpi)
    probe.remove()
    columns = max(1, min(_KEY_COLUMNS, int(0.98 / width)))
    lines = -(-len(entries) // columns)
    height_in = lines * _KEY_SIZE * 1.35 / 72 + 0.1
    figure.set_figheight(figure.get_figheight() + height_in)
    share = height_in / figure.get_figheight()
    figure.set_layout_engine("constrained", rect=(0, share, 1, 1 - share))
    for k in range(columns):
        text = "\n".join(entries[k * lines : (k + 1) * lines])
        figure.text(
            0.01 + k * 0.98 / columns,
            share,
            text,
            fontsize=_KEY_SIZE,
            va="top",
            linespacing=1.3,
            in_layout=False,
            label="key",
        )


def _in_order(name: tuple[str, str]) -> tuple[str, list[tuple[int, int | str]]]:
    return name[0], natural(name[1])


def _limits(rows: Sequence[Row]) -> tuple[tuple[float, float], tuple[float, float]]:
    """Limits around the points, ignoring the intervals: those of two epochs would be too wide."""
    points = [p for row in rows if (p := _at(row))] or [(10.0, 1.0), (1000.0, 10.0)]
    xs, ys = zip(*points, strict=True)
    return (min(xs) / 1.6, max(xs) * 1.8), (min(ys) / 1.6, max(ys) * 1.6)


def _at(row: Row) -> tuple[float, float] | None:
    x, y = row["sps"], row["usd_per_1m"]
    return None if not x or not y or x <= 0 or y <= 0 else (float(x), float(y))
