"""Bar charts: calculation and communication, dollars by kind, series compared; and differences from the paper."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from analysis.charts.groups import WIDTH_IN, grid, interval, legend, n_words, panel_title, styles
from analysis.charts.style import INK, PALETTE
from analysis.compare.run_figures import COST_KINDS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Row = Mapping[str, Any]
_BAR_IN = 0.2
_HATCHES = ("", "///", "...", "xxx", "\\\\\\", "++", "ooo")
_EDGE = "#ffffff"


def phases(rows: Sequence[Row]) -> Figure:
    """Draw a VM's epoch, one bar per run, with overlapped phases on top of each other.

    `rows`: see `phase_rows`; the interval is that of the communication.
    """
    figure, axes = _tall(1, len(rows))
    place = axes[0]
    place.set_xlim(0, 1.05 * max([r["calc_s"] + r["comm_s"] for r in rows], default=1.0))
    for y, row in enumerate(rows):
        calc, comm = row["calc_s"], row["comm_s"]
        begins = calc - row.get("overlapped_s", 0.0)
        place.barh(y, calc, color=PALETTE[0], height=0.72)
        place.barh(
            y, comm, left=begins, color=PALETTE[1], height=0.72, hatch="///", edgecolor=_EDGE, linewidth=0
        )
        ends = [None if row[k] is None else begins + row[k] for k in ("comm_s_low", "comm_s_high")]
        interval(place, y, ends[0], ends[1], INK, along="x")
    _names(place, rows)
    n = n_words(rows)
    place.set_xlabel("seconds of a VM's hivemind epoch" + (f" ({n})" if n else ""))
    legend(
        figure,
        [("calculation", _patch(PALETTE[0], "")), ("communication", _patch(PALETTE[1], "///")), *_star(rows)],
    )
    return figure


def costs(panels: Sequence[tuple[str, Sequence[Row]]]) -> Figure:
    """Draw dollars per VM-hour, stacked by kind. `panels`: (title, rows of `cost_rows`), side by side."""
    fullest = sorted((list(_bars(rows)) for _, rows in panels), key=len, reverse=True)
    names = list(dict.fromkeys(name for part in fullest for name in part))
    figure, axes = _tall(len(panels), len(names))
    kinds = [kind for kind in COST_KINDS if any(r["kind"] == kind for _, rows in panels for r in rows)]
    look = {kind: (PALETTE[k], _HATCHES[k]) for k, kind in enumerate(COST_KINDS)}
    widest = max(
        [sum(r["usd_per_vm_h"] or 0 for r in part) for _, rows in panels for part in _bars(rows).values()],
        default=1.0,
    )
    for place, (title, rows) in zip(axes, panels, strict=False):
        bars = _bars(rows)
        for y, parts in enumerate(bars.get(name, []) for name in names):
            left = 0.0
            for row in parts:
                usd = row["usd_per_vm_h"]
                if usd:
                    color, hatch = look[row["kind"]]
                    place.barh(
                        y, usd, left=left, color=color, hatch=hatch, edgecolor=_EDGE, linewidth=0, height=0.72
                    )
                    left += usd
            lacking = [COST_KINDS[r["kind"]] for r in parts if r["usd_per_vm_h"] is None]
            which = ", ".join(lacking) if len(lacking) < 2 else f"{len(lacking)} of {len(parts)} kinds"
            text = f"unknown: {which}" if lacking else f"{left:.3g}" if parts else "unknown"
            place.annotate(
                text, (left, y), xytext=(3, 0), textcoords="offset points", va="center", fontsize=7
            )
        place.set_xlim(0, (widest or 1.0) * 1.18)
        _names(place, [(bars.get(name) or [{"name": name, "origin": ""}])[0] for name in names])
        panel_title(place, title)
        place.set_xlabel("$ per hour and VM")
    every = [row for _, rows in panels for row in rows]
    legend(figure, [*((COST_KINDS[kind], _patch(*look[kind])) for kind in kinds), *_star(every)], columns=3)
    return figure


def places(panels: Sequence[tuple[str, Sequence[Row]]]) -> Figure:
    """Draw series side by side at equal numbers of peers. `panels`: (model, rows of `place_rows`)."""
    every = [row for _, rows in panels for row in rows]
    looks = styles(str(row["group"]) for row in every)
    figure, axes = grid(len(panels), 3.1)
    for place, (title, rows) in zip(axes, panels, strict=False):
        counts = sorted({int(row["peers"]) for row in rows})
        place.set_ylim(0, 1.15 * max([row["sps"] for row in rows], default=1.0))
        for k, count in enumerate(counts):
            own = [row for row in rows if row["peers"] == count]
            width = 0.8 / len(own)
            for j, row in enumerate(own):
                x, look = k - 0.4 + width * (j + 0.5), looks[str(row["group"])]
                hollow = row["origin"] == "printed"
                place.bar(
                    x, row["sps"], width * 0.9, color="none" if hollow else look["color"], hatch=look["hatch"],
                    edgecolor=look["color"] if hollow else _EDGE, linewidth=1.0 if hollow else 0,
                )  # fmt: skip
                interval(place, x, row["sps_low"], row["sps_high"], INK)
        panel_title(place, title, rows)
        place.set_xticks(range(len(counts)), [str(c) for c in counts])
        place.grid(visible=False, axis="x")
        place.set_xlabel("peers (VMs)")
        place.set_ylabel("throughput (samples/s)")
    groups = sorted({str(row["group"]) for row in every})
    entries = [(group, _patch(looks[group]["color"], looks[group]["hatch"])) for group in groups]
    if any(row["origin"] == "printed" for row in every):
        entries.append(("outline: as printed", _patch("none", "", INK)))
    legend(figure, entries, columns=5)
    return figure


def differences(rows: Sequence[Row]) -> Figure:
    """Draw the relative differences from the paper in per cent, one point per run. `rows`: see `difference_rows`."""
    names = list(dict.fromkeys(str(row["figure"]) for row in rows))
    figure, axes = grid(1, 0.42 * len(names) + 0.8)
    place = axes[0]
    for y, name in enumerate(names):
        values = [
            100 * row["difference"] for row in rows if row["figure"] == name and row["difference"] is not None
        ]
        spread = [y + 0.5 * ((k * 0.618) % 1 - 0.5) for k in range(len(values))]  # separates equal values
        place.plot(values, spread, "o", color=PALETTE[0], markersize=5, alpha=0.75, markeredgewidth=0)
    place.axvline(0, color=INK, linewidth=1)
    place.set_yticks(range(len(names)), names, fontsize=8.5)
    place.set_ylim(len(names) - 0.4, -0.6)
    place.margins(x=0.08)
    place.grid(visible=False, axis="y")
    place.set_xlabel("(ours - paper) / paper, in per cent; one point per run")
    return figure


def _tall(panels: int, bars: int) -> tuple[Figure, list[Any]]:
    from matplotlib.figure import Figure as New

    figure = New(figsize=(WIDTH_IN, max(1.9, _BAR_IN * bars + 1.3)))
    return figure, list(figure.subplots(1, max(1, panels), squeeze=False).flat)


def _bars(rows: Sequence[Row]) -> dict[str, list[Row]]:
    found: dict[str, list[Row]] = {}
    for row in rows:
        found.setdefault(str(row["name"]), []).append(row)
    return found


def _names(axes: Any, rows: Sequence[Row]) -> None:
    marks = {"printed": " *", "emulated": " (emulated)"}
    axes.set_yticks(
        range(len(rows)), [f"{r['name']}{marks.get(str(r['origin']), '')}" for r in rows], fontsize=8
    )
    axes.set_ylim(max(len(rows), 1) - 0.4, -0.6)
    axes.grid(visible=False, axis="y")


def _star(rows: Sequence[Row]) -> list[tuple[str, Any]]:
    """The legend entry of the star after a name, if there is one."""
    return [("* as printed", _patch("none", ""))] if any(row["origin"] == "printed" for row in rows) else []


def _patch(color: str, hatch: str, edge: str = _EDGE) -> Any:
    from matplotlib.patches import Patch

    return Patch(facecolor=color, hatch=hatch, edgecolor=edge, linewidth=0 if edge == _EDGE else 1)
