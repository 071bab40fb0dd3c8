"""The figures of the report on an input pipeline: pure functions from rows to Matplotlib figures, used inside
`figure_style`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from analysis.charts.groups import WIDTH_IN, interval, legend, log_ticks, panel_title
from analysis.charts.style import INK, PALETTE

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Row = Mapping[str, Any]
_BAR_IN = 0.24
_HATCHES = ("", "///", "...", "xxx")
_LOG_FROM = 30  # times the smallest value, from which on an axis is logarithmic
_MOST_TIMES = 2.5  # the dollars that options are compared with, beyond which bars are cut


def workers(rows: Sequence[Row]) -> Figure:
    """Draw samples/s by workers, and the mean wait and delay of a batch.

    `rows`: name, samples_per_s, samples_per_s_low, samples_per_s_high, wait_s, delay_s (means of a batch). None: unknown,
    no bar.
    """
    figure, (rates, times) = _panels(2, 0.0, height_in=3.2)
    places = range(len(rows))
    _column(rates, rows, "samples_per_s", 0.0, 0.6, PALETTE[2], "")
    highest = [row[key] for row in rows for key in ("samples_per_s", "samples_per_s_high") if row[key]]
    rates.set_ylim(0, 1.1 * max(highest, default=1.0) or 1.0)
    for x, row in enumerate(rows):
        interval(rates, x, row["samples_per_s_low"], row["samples_per_s_high"], INK)
    _column(times, rows, "wait_s", -0.2, 0.38, PALETTE[0], "wait of the consumer")
    _column(times, rows, "delay_s", 0.2, 0.38, PALETTE[1], "delay of the batch")
    times.legend(loc="lower left", bbox_to_anchor=(0, 1.0), ncols=2, fontsize=9, borderaxespad=0.2)
    for panel, label in ((rates, "samples/s"), (times, "seconds, mean of a batch")):
        panel.set_xticks(places, [str(row["name"]) for row in rows])
        panel.set_ylabel(label)
        panel.grid(visible=False, axis="x")
    return figure


def functions(rows: Sequence[Row]) -> Figure:
    """Draw each function's share of its operation, with its interval.

    `rows`: op, function, library, share_percent, low_percent, high_percent (None: exact), grouped by operation.
    """
    figure, (axes,) = _panels(1, _BAR_IN * len(rows))
    colors = {op: PALETTE[k % len(PALETTE)] for k, op in enumerate(dict.fromkeys(row["op"] for row in rows))}
    axes.set_xlim(0, 100)
    for y, row in enumerate(rows):
        axes.barh(y, row["share_percent"], color=colors[row["op"]], height=0.72)
        interval(axes, y, row["low_percent"], row["high_percent"], INK, along="x")
    _names(axes, [f"{row['op']}: {_short(row['function'])} ({_library(row['library'])})" for row in rows])
    axes.set_xlabel("share of its operation, in per cent")
    return figure


def strategies(rows: Sequence[Row]) -> Figure:
    """Draw samples/s that each strategy delivers, with its interval, and its bytes of a sample in the store.

    `rows`: strategy, t4_sps, t4_sps_low, t4_sps_high, stored_bytes.
    """
    figure, (rates, sizes) = _panels(2, _BAR_IN * len(rows), share_y=True)
    rates.set_xlim(0, 1.08 * max((row["t4_sps_high"] or row["t4_sps"] for row in rows), default=1.0) or 1.0)
    for y, row in enumerate(rows):
        rates.barh(y, row["t4_sps"], color=PALETTE[2], height=0.72)
        interval(rates, y, row["t4_sps_low"], row["t4_sps_high"], INK, along="x")
    stored_kb = [row["stored_bytes"] / 1e3 for row in rows]
    if min(stored_kb, default=1.0) > 0 and max(stored_kb) > _LOG_FROM * min(stored_kb):
        sizes.set_xscale("log")
        sizes.set_xlim(min(stored_kb) / 2, max(stored_kb) * 2)
        log_ticks(sizes.xaxis)
    sizes.barh(range(len(rows)), stored_kb, color=PALETTE[4], height=0.72)
    _names(rates, [str(row["strategy"]) for row in rows])
    sizes.grid(visible=False, axis="y")
    rates.set_xlabel("delivered samples/s (T4)")
    sizes.set_xlabel("kB of a sample in the store")
    return figure


def dollars(panels: Sequence[tuple[str, Sequence[Row]]], parts: Mapping[str, str]) -> Figure:
    """Draw dollars per million samples, stacked by part.

    `panels`: (title, rows), stacked so that all are visible on a narrow screen; a row has strategy, usd_per_1m,
    usd_per_1m_low, usd_per_1m_high (None: unknown), verdict and each of `parts`, which maps names in the rows to words.
    """
    from matplotlib.figure import Figure as New
    from matplotlib.patches import Patch

    heights = [_BAR_IN * len(rows) + 1.0 for _, rows in panels]
    figure = New(figsize=(WIDTH_IN, sum(heights) + 0.5))
    places = figure.subplots(len(panels), 1, squeeze=False, gridspec_kw={"height_ratios": heights})
    looks = {part: (PALETTE[k], _HATCHES[k % len(_HATCHES)]) for k, part in enumerate(parts)}
    for axes, (title, rows) in zip(places[:, 0], panels, strict=True):
        axes.set_xlim(0, _limit(rows))
        for y, row in enumerate(rows):
            _stack(axes, y, row, looks)
        panel_title(axes, title)
        _names(axes, [str(row["strategy"]) for row in rows])
        axes.set_xlabel("$ per million samples")
    patches = [
        (words, Patch(facecolor=looks[part][0], hatch=looks[part][1], edgecolor="#ffffff", linewidth=0))
        for part, words in parts.items()
    ]
    legend(figure, patches)
    return figure


def _stack(axes: Any, y: int, row: Row, looks: Mapping[str, tuple[str, str]]) -> None:
    if row["usd_per_1m"] is None:
        axes.annotate("unknown", (0, y), xytext=(3, 0), textcoords="offset points", va="center", fontsize=7.5)
        return
    left = 0.0
    for part, (color, hatch) in looks.items():
        usd = float(row[part] or 0)
        if usd > 0:
            axes.barh(
                y, usd, left=left, color=color, hatch=hatch, edgecolor="#ffffff", linewidth=0, height=0.72
            )
            left += usd
    interval(axes, y, row["usd_per_1m_low"], row["usd_per_1m_high"], INK, along="x")
    _, limit = axes.get_xlim()
    if left > limit:
        box = {"boxstyle": "round,pad=0.15", "facecolor": "#ffffff", "edgecolor": "none"}
        axes.annotate(
            f"{left:.3g} \u2192", (limit, y), xytext=(-6, 0), textcoords="offset points", ha="right", va="center",
            fontsize=7.5, color="#1f2328", bbox=box,
        )  # fmt: skip


def _limit(rows: Sequence[Row]) -> float:
    """The end of the axis: far dearer options than the one that is compared with are cut."""
    ends = [row["usd_per_1m_high"] or row["usd_per_1m"] for row in rows if row["usd_per_1m"] is not None]
    base = [row["usd_per_1m"] for row in rows if row["verdict"] == "baseline" and row["usd_per_1m"]]
    return min([1.12 * max(ends, default=1.0) or 1.0, *(_MOST_TIMES * usd for usd in base)])


def _panels(
    count: int, bars_in: float, *, height_in: float | None = None, share_y: bool = False
) -> tuple[Figure, list[Any]]:
    from matplotlib.figure import Figure as New

    figure = New(figsize=(WIDTH_IN, height_in or max(1.8, bars_in + 0.9)))
    return figure, list(figure.subplots(1, count, squeeze=False, sharey=share_y).flat)


def _column(
    axes: Any, rows: Sequence[Row], key: str, shift: float, width: float, color: str, name: str
) -> None:
    known = [(x + shift, row[key]) for x, row in enumerate(rows) if row[key] is not None]
    axes.bar([x for x, _ in known], [value for _, value in known], width, color=color, label=name)


def _names(axes: Any, names: Sequence[str]) -> None:
    axes.set_yticks(range(len(names)), names, fontsize=8)
    axes.set_ylim(max(len(names), 1) - 0.4, -0.6)
    axes.grid(visible=False, axis="y")


def _short(name: str, most: int = 44) -> str:
    return name if len(name) <= most else f"{name[: most - 1]}\u2026"


def _library(name: str) -> str:
    """A library's name without the tag of its platform: `_imaging` of `_imaging.cpython-311-x86_64-linux-gnu.so`."""
    return name.partition(".cpython-")[0]
