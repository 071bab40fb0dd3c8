"""Line charts of a figure against the number of peers: one panel per model and basis, one line per series."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from analysis.charts.groups import (
    WIDTH_IN,
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
from analysis.charts.style import INK

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Row = Mapping[str, Any]


def against_peers(
    panels: Sequence[tuple[str, Sequence[Row]]],
    y_label: str,
    log: bool = False,
    ideal: bool = False,
    together: bool = False,
) -> Figure:
    """Draw a figure against the number of peers.

    `panels`: (title, rows of `peer_rows`). `ideal`: draw the line speed-up = peers. `together`: panels in one row share
    the y axis, so that bases can be compared.
    """
    every = [row for _, rows in panels for row in rows]
    looks = styles(str(row["group"]) for row in every)
    groups = sorted({str(row["group"]) for row in every})
    figure, axes = grid(len(panels), 3.1)
    for k, (place, (title, rows)) in enumerate(zip(axes, panels, strict=False)):
        shared = [r for _, other in panels[k - k % 2 : k - k % 2 + 2] for r in other] if together else rows
        _frame(place, title, rows, shared, y_label, log, ideal)
        for group in groups:
            own = [row for row in rows if row["group"] == group]
            shift = (groups.index(group) - (len(groups) - 1) / 2) * min(0.12, 0.6 / max(1, len(groups)))
            _series(place, own, looks[group], shift)
    entries = [(group, handle(looks[group], line=True)) for group in groups]
    if ideal:
        from matplotlib.lines import Line2D

        entries.append(("ideal: speed-up = peers", Line2D([], [], color=INK, linestyle="--", linewidth=1)))
    legend(figure, [*entries, *origin_entries(every)], columns=5)
    return figure


def _series(axes: Any, rows: Sequence[Row], look: Mapping[str, str], shift: float) -> None:
    """Draw points with intervals, and a line through the means at equal numbers of peers."""
    by_peers: dict[int, list[float]] = {}
    for row in rows:
        by_peers.setdefault(int(row["peers"]), []).append(float(row["value"]))
        interval(axes, row["peers"] + shift, row["value_low"], row["value_high"], look["color"])
        point(axes, row["peers"] + shift, row["value"], look, str(row["origin"]), 5.5)
    line = [(n + shift, sum(values) / len(values)) for n, values in sorted(by_peers.items())]
    if len(line) > 1:
        axes.plot(*zip(*line, strict=True), color=look["color"], linewidth=1.1, alpha=0.8, zorder=1)


def _frame(
    axes: Any, title: str, rows: Sequence[Row], shared: Sequence[Row], y_label: str, log: bool, ideal: bool
) -> None:
    counts = sorted({int(row["peers"]) for row in shared}) or [1]
    values = [float(row["value"]) for row in shared if not log or row["value"] > 0] or [1.0]
    top = max(values)
    if ideal:
        top = max(top, float(counts[-1]))
        axes.plot([1, counts[-1]], [1, counts[-1]], color=INK, linestyle="--", linewidth=1, zorder=1)
    if log:
        axes.set_yscale("log")
        axes.set_ylim(min(values) / 1.5, top * 1.5)
        log_ticks(axes.yaxis)
    else:
        axes.set_ylim(0, top * 1.15)
    axes.set_xlim(counts[0] - 0.6, counts[-1] + 0.6)
    far = max(1, (counts[-1] - counts[0]) // 16)
    axes.set_xticks([n for k, n in enumerate(counts) if k == 0 or n - counts[k - 1] >= far])
    panel_title(axes, title, rows)
    axes.set_xlabel("peers (VMs)")
    axes.set_ylabel(y_label)
    if not rows:
        axes.text(0.03, 0.93, "unknown for every run", transform=axes.transAxes, va="top", fontsize=9)


def curves(rows: Sequence[Row]) -> Figure:
    """Draw curves of runs, one line per run, in one panel per value of `panel`, stacked for a narrow screen.

    `rows`: panel (its title and the label of the y axis), x_label, name (of the run), x, y.
    """
    from matplotlib.figure import Figure as New

    panels = list(dict.fromkeys(str(row["panel"]) for row in rows))
    names = list(dict.fromkeys(str(row["name"]) for row in rows))
    looks = styles(names)
    figure = New(figsize=(WIDTH_IN, 2.4 * len(panels) + 0.5))
    places = figure.subplots(len(panels), 1, squeeze=False)[:, 0]
    for axes, panel in zip(places, panels, strict=True):
        own = [row for row in rows if row["panel"] == panel]
        for name in names:
            points = sorted((row["x"], row["y"]) for row in own if row["name"] == name)
            if points:
                look = {key: looks[name][key] for key in ("color", "marker")}
                axes.plot(*zip(*points, strict=True), **look, markersize=4, linewidth=1.3)
        axes.set_ylim(0, 1.1 * max(row["y"] for row in own) or 1.0)
        axes.set_xlabel(own[0]["x_label"])
        axes.set_ylabel(panel)
        axes.xaxis.get_major_locator().set_params(integer=True)
    legend(figure, [(name, handle(looks[name], line=True)) for name in names], columns=3)
    return figure
