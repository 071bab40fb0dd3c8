"""The figures of offloading by a profile alone: pure functions from rows to Matplotlib figures, used inside `figure_style`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from analysis.charts.groups import WIDTH_IN, legend, log_ticks
from analysis.charts.style import INK, PALETTE

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Row = Mapping[str, Any]
_BAR_IN = 0.34
_MARKERS = "os^Dv*"
_LOG_FROM = 5  # times the smallest value, from which on an axis is logarithmic
_MOST_POINTS = 400  # of a curve
_DECADES = 1e3  # times smaller than the largest benefit, from which on a curve is cut
SMALLER, SMALLEST = "smaller than stored", "smallest"


def shrinking(rows: Sequence[Row]) -> Figure:
    """Draw the share of samples that are smaller than stored after each operation, and of those that are smallest then.

    `rows`: op, smaller_percent, smallest_percent.
    """
    from matplotlib.patches import Patch

    figure = _figure(2.2 * _BAR_IN * len(rows) + 1.1)
    axes: Any = figure.subplots()
    for shift, key, color in ((-0.2, "smaller_percent", PALETTE[4]), (0.2, "smallest_percent", PALETTE[0])):
        for y, row in enumerate(rows):
            axes.barh(y + shift, row[key], height=0.38, color=color)
            _label(axes, row[key], y + shift, f"{row[key]:.1f} %")
    _names(axes, [str(row["op"]) for row in rows])
    axes.set_xlim(0, 112)
    axes.set_xticks(range(0, 101, 20))
    axes.set_xlabel("samples, in per cent")
    legend(figure, [(SMALLER, Patch(facecolor=PALETTE[4])), (SMALLEST, Patch(facecolor=PALETTE[0]))])
    return figure


def benefit(rows: Sequence[Row], samples: int) -> Figure:
    """Draw the bytes saved by CPU second, in descending order, over the share of all `samples`.

    `rows`: rank (from 1), mb_per_cpu_s, None: no CPU time is needed, so there is no such figure.
    """
    figure = _figure(3.2)
    axes: Any = figure.subplots()
    known = [(100 * row["rank"] / samples, row["mb_per_cpu_s"]) for row in rows if row["mb_per_cpu_s"]]
    step = max(1, len(known) // _MOST_POINTS)
    drawn = [*known[::step], *known[-1:]]
    axes.plot([x for x, _ in drawn], [y for _, y in drawn], color=PALETTE[0], linewidth=2)
    axes.set_xlim(0, 100)
    most = max((y for _, y in known), default=1.0)
    _log(axes, [y for _, y in known if y * _DECADES >= most])
    axes.set_xlabel("samples, in per cent, those with the largest benefit first")
    axes.set_ylabel("MB saved by CPU second")
    return figure


def policies(rows: Sequence[Row]) -> Figure:
    """Draw seconds and traffic of a pass by policy. `rows`: policy, epoch_s, sent_gb; None: unknown, or impossible."""
    figure = _figure(_BAR_IN * len(rows) + 1.0)
    panels: Any = figure.subplots(1, 2, sharey=True)
    for axes, key, color, label in (
        (panels[0], "epoch_s", PALETTE[2], "seconds of a pass"),
        (panels[1], "sent_gb", PALETTE[4], "GB to the client in a pass"),
    ):
        axes.set_xlim(0, 1.2 * max((row[key] or 0 for row in rows), default=1.0) or 1.0)
        for y, row in enumerate(rows):
            axes.barh(y, row[key] or 0, height=0.72, color=color)
            _label(axes, row[key] or 0, y, "unknown" if row[key] is None else f"{row[key]:.4g}")
        axes.set_xlabel(label)
        axes.grid(visible=False, axis="y")
    _names(panels[0], [str(row["policy"]) for row in rows])
    return figure


def by_cores(rows: Sequence[Row]) -> Figure:
    """Draw seconds of a pass by storage cores, a line for each policy. `rows`: cores, policy, epoch_s (None: no point)."""
    from matplotlib.lines import Line2D

    figure = _figure(3.8)
    axes: Any = figure.subplots()
    entries: list[tuple[str, Any]] = []
    for k, policy in enumerate(dict.fromkeys(row["policy"] for row in rows)):
        own = [row for row in rows if row["policy"] == policy and row["epoch_s"] is not None]
        style: dict[str, Any] = {
            "color": PALETTE[k % len(PALETTE)],
            "marker": _MARKERS[k % len(_MARKERS)],
            "markersize": 8 - k,  # equal lines stay visible below one another
            "linewidth": 1.6,
            "linestyle": ("-", "--", "-.", ":")[k % 4],
        }
        axes.plot([row["cores"] for row in own], [row["epoch_s"] for row in own], **style)
        entries.append((str(policy), Line2D([], [], **style)))
    axes.set_xticks(sorted({row["cores"] for row in rows}))
    _log(axes, [row["epoch_s"] for row in rows if row["epoch_s"]])
    axes.set_xlabel("cores next to the storage")
    axes.set_ylabel("seconds of a pass")
    legend(figure, entries, columns=6)
    return figure


def _figure(height_in: float) -> Figure:
    from matplotlib.figure import Figure as New

    return New(figsize=(WIDTH_IN, height_in))


def _names(axes: Any, names: Sequence[str]) -> None:
    axes.set_yticks(range(len(names)), names, fontsize=9)
    axes.set_ylim(max(len(names), 1) - 0.4, -0.6)
    axes.grid(visible=False, axis="y")


def _label(axes: Any, x: float, y: float, text: str) -> None:
    axes.annotate(text, (x, y), xytext=(3, 0), textcoords="offset points", va="center", fontsize=8, color=INK)


def _log(axes: Any, values: Sequence[float]) -> None:
    """Start the vertical axis at 0, or make it logarithmic if the values are far apart."""
    positive = [value for value in values if value > 0]
    if positive and max(positive) > _LOG_FROM * min(positive):
        axes.set_yscale("log")
        axes.set_ylim(min(positive) / 1.3, max(positive) * 1.3)
        log_ticks(axes.yaxis)
    else:
        axes.set_ylim(0, 1.1 * max(positive, default=1.0))
