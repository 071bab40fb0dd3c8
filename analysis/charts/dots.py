"""Dot charts of published, replayed and emulated figures, one line per run, with the accepted range."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from analysis.charts.groups import WIDTH_IN, handle, legend, log_ticks, panel_title, point
from analysis.charts.style import INK, PALETTE
from metrics.provenance import all_marks

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Row = Mapping[str, Any]
_ROW_IN = 0.24
_PUBLISHED = {"color": INK, "marker": "o"}
_REPLAYED = {"color": PALETTE[1], "marker": "|"}
_EMULATED = {"color": PALETTE[0], "marker": "D"}
_CONTENDED = {"color": PALETTE[5], "marker": "X"}


def dots(panels: Sequence[tuple[str, str, Sequence[Row]]]) -> Figure:
    """Draw figures of runs as dots.

    `panels`: (title, label of the axis, rows of one figure), stacked so that all are visible on a narrow screen. Rows
    are those of `analysis.compare.published.long_rows` with the accepted range `low` to `high` (None: no limit).
    """
    from matplotlib.figure import Figure as New
    from matplotlib.patches import Patch

    heights = [len(rows) * _ROW_IN + 1.0 for _, _, rows in panels]
    figure = New(figsize=(WIDTH_IN, sum(heights) + 0.5))
    places = figure.subplots(len(panels), 1, squeeze=False, gridspec_kw={"height_ratios": heights})
    for place, panel in zip(places[:, 0], panels, strict=True):
        _panel(place, *panel)
    every = [row for _, _, rows in panels for row in rows]
    entries: list[tuple[str, Any]] = [("published", handle(_PUBLISHED, "printed"))]
    if any(row["replayed"] is not None for row in every):
        entries.append(("replayed from its logs", handle(_REPLAYED, "log")))
    entries.append((all_marks(row["origin"] for row in every), handle(_EMULATED, "emulated")))
    if any(row["host_contended"] for row in every):
        entries.append(("the same, but the host was too busy", handle(_CONTENDED, "log")))
    if any(row["low"] is not None for row in every):
        entries.append(("accepted", Patch(color=PALETTE[2], alpha=0.25)))
    legend(figure, entries, columns=3)
    return figure


def _panel(axes: Any, title: str, label: str, rows: Sequence[Row]) -> None:
    keys = ("published", "replayed", "emulated", "low", "high")
    values = [row[key] for row in rows for key in keys if row[key]]
    axes.set_xscale("log")
    axes.set_xlim(min(values, default=1.0) / 1.1, max(values, default=10.0) * 1.1)
    axes.set_ylim(len(rows) - 0.4, -0.6)
    log_ticks(axes.xaxis)
    axes.set_yticks(range(len(rows)), [str(row["experiment"]) for row in rows], fontsize=8)
    panel_title(axes, title)
    axes.set_xlabel(label)
    for y, row in enumerate(rows):
        if row["low"] is not None and row["high"] is not None:
            axes.barh(y, row["high"] - row["low"], left=row["low"], height=0.62, color=PALETTE[2], alpha=0.25)
        if row["published"]:
            point(axes, row["published"], y, _PUBLISHED, "printed", 7.0)
        if row["replayed"]:
            point(axes, row["replayed"], y, _REPLAYED, "log", 9.0)
        if row["emulated"]:
            contended = row["host_contended"]
            point(
                axes, row["emulated"], y, _CONTENDED if contended else _EMULATED,
                "log" if contended else "emulated", 4.5,
            )  # fmt: skip
