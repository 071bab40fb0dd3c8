"""Shared by the study report's figures: styles of groups, points by origin, intervals clipped at the axes, legends."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from analysis.charts.style import INK, PALETTE

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Row = Mapping[str, Any]
WIDTH_IN = 9.0
ORIGINS = {
    "log": "filled: from logs",
    "printed": "hollow: as printed",
    "own": "filled: measured",
    "emulated": "half filled: emulated",
}
_MARKERS = "os^Dv<>PhX"
_HATCHES = ("", "///", "...", "\\\\\\", "xxx", "++", "ooo", "--")
_CENTRALISED = "centralised"
PROPOSALS, ALONE = "proposals, predicted", "one VM, predicted"
"""Groups of predicted figures: crosses, which no measured figure has."""
_FIXED = {
    _CENTRALISED: {"color": INK, "marker": "*", "hatch": ""},
    PROPOSALS: {"color": PALETTE[5], "marker": "x", "hatch": ""},
    ALONE: {"color": PALETTE[2], "marker": "+", "hatch": ""},
}
_LETTERS = ("A", "B", "C", "D", "E", "F")


def styles(groups: Iterable[str]) -> dict[str, dict[str, str]]:
    """Return colour, marker and hatch of each group, deterministic for a set of groups."""
    named = sorted({g for g in groups if g not in _FIXED})
    # The paper's series look the same on every page.
    taken = [_LETTERS.index(g) for g in named if g in _LETTERS]
    others = [k for k in range(len(named) + len(_LETTERS)) if k not in taken]
    found: dict[str, dict[str, str]] = {}
    for group in named:
        k = _LETTERS.index(group) if group in _LETTERS else others.pop(0)
        found[group] = {
            "color": PALETTE[k % len(PALETTE)],
            "marker": _MARKERS[k % len(_MARKERS)],
            "hatch": _HATCHES[k % len(_HATCHES)],
        }
    return {**found, **_FIXED}


def point(axes: Any, x: float, y: float, style: Mapping[str, str], origin: str, size: float = 6.5) -> None:
    """Draw a marker whose filling shows the origin of the figure (see ORIGINS)."""
    axes.plot(x, y, linestyle="none", zorder=3, **_face(style, origin, size))


def interval(
    axes: Any, at: float, low: float | None, high: float | None, color: str, along: str = "y"
) -> None:
    """Draw a 95 % interval along an axis whose limits are set, with an arrow where it leaves the axes."""
    if low is None or high is None:
        return
    limits = axes.get_ylim() if along == "y" else axes.get_xlim()
    bottom, top = max(low, limits[0]), min(high, limits[1])
    if bottom >= top:
        return
    ends = (
        (bottom, low < bottom, "v" if along == "y" else "<"),
        (top, high > top, "^" if along == "y" else ">"),
    )
    line = ([at, at], [bottom, top]) if along == "y" else ([bottom, top], [at, at])
    axes.plot(*line, color=color, linewidth=1.0, alpha=0.75, zorder=2)
    for end, cut, arrow in ends:
        spot = ([at], [end]) if along == "y" else ([end], [at])
        marker = arrow if cut else "_" if along == "y" else "|"
        axes.plot(
            *spot,
            marker=marker,
            color=color,
            markersize=4.5,
            alpha=0.75,
            clip_on=not cut,
            zorder=2,
            linestyle="none",
        )


def grid(panels: int, height_in: float, columns: int = 2) -> tuple[Figure, list[Any]]:
    """Create a figure with a grid of panels, at most `columns` per row; unused cells are empty."""
    from matplotlib.figure import Figure as New

    across = min(columns, max(1, panels))
    down = -(-max(1, panels) // across)
    figure = New(figsize=(WIDTH_IN, height_in * down + 0.5))
    axes: list[Any] = list(figure.subplots(down, across, squeeze=False).flat)
    for empty in axes[panels:]:
        empty.set_axis_off()
    return figure, axes[: max(1, panels)]


def panel_title(axes: Any, title: str, rows: Iterable[Row] = ()) -> None:
    """Set a panel's title, with n if the rows have it."""
    n = n_words(rows)
    axes.set_title(f"{title} ({n})" if n else title, fontsize=9.5, loc="left", pad=9)


def log_ticks(axis: Any) -> None:
    """Label a logarithmic axis at 1, 2 and 5 times the powers of ten."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_formatter(NullFormatter())


def legend(figure: Figure, entries: Sequence[tuple[str, Any]], columns: int = 4) -> None:
    """Draw a legend above all panels."""
    if entries:
        names, handles = zip(*entries, strict=True)
        figure.legend(handles, names, loc="outside upper left", ncols=columns, fontsize=8.5, handlelength=1.8)


def n_words(rows: Iterable[Row]) -> str:
    """Describe n: "n = 2 epochs", "n = 2 to 5 epochs"; "" if no row has it."""
    counts = sorted({int(row["n"]) for row in rows if row.get("n") and row["n_of"] == "epochs"})
    if not counts:
        return ""
    return f"n = {counts[0]}{f' to {counts[-1]}' if len(counts) > 1 else ''} epochs"


def handle(style: Mapping[str, str], origin: str = "log", line: bool = False) -> Any:
    """Return the marker of a legend entry."""
    from matplotlib.lines import Line2D

    return Line2D([], [], linestyle="-" if line else "none", **_face(style, origin, 6.5))


def origin_entries(rows: Iterable[Row]) -> list[tuple[str, Any]]:
    """Return legend entries for the marker filling of the origins in `rows`."""
    present = {str(row["origin"]) for row in rows}
    grey = {"color": INK, "marker": "o"}
    return [(words, handle(grey, origin)) for origin, words in ORIGINS.items() if origin in present]


def _face(style: Mapping[str, str], origin: str, size: float) -> dict[str, Any]:
    fill = {"printed": "none", "emulated": "bottom"}.get(origin, "full")
    return {
        "color": style["color"],
        "marker": style["marker"],
        "markersize": size + (2 if style["marker"] in "*+" else 0),
        "fillstyle": fill,
        "markerfacecoloralt": "none",
        "markeredgewidth": 1.3,
    }
