"""The figures of a run's report: pure functions from rows to Matplotlib figures, used inside `figure_style`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from analysis.charts.groups import WIDTH_IN
from analysis.charts.style import PALETTE
from metrics.readable import number, unit_of_bytes, usd
from metrics.records import VmEnd, end_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Row = Mapping[str, Any]


def timeline(vms: Sequence[Row], epochs: Sequence[Row], losses: Sequence[Row]) -> Figure:
    """Draw VMs by slot over wall time, from request to end, their averaging rounds, and losses of all peers.

    `vms`: slot, vm, location, requested_s, ready_s, ended_s, end_cause (seconds since the launch);
    `epochs`: vm, sync_began_s, sync_ended_s; `losses`: all_peers_lost_s.
    """
    slots = sorted({str(row["slot"]) for row in vms})
    figure, axes = _subplots(0.45 * len(slots) + 1.5)
    line_of = {row["vm"]: slots.index(str(row["slot"])) for row in vms}
    seen: set[str] = set()

    def bar(
        y: int, begin: float, end: float, color: str, alpha: float, label: str, height: float = 0.6
    ) -> None:
        axes.barh(
            y,
            end - begin,
            left=begin,
            height=height,
            color=color,
            alpha=alpha,
            label=None if label in seen else label,
        )
        seen.add(label)

    for row in vms:
        y = line_of[row["vm"]]
        ready = row["ready_s"] if row["ready_s"] is not None else row["ended_s"]
        bar(y, row["requested_s"], ready, PALETTE[4], 0.45, "requested, booting")
        if row["ready_s"] is not None:
            bar(y, ready, row["ended_s"], PALETTE[0], 0.45, "running")
        if end_of(str(row["end_cause"])) is VmEnd.PREEMPTED:
            axes.plot(
                row["ended_s"],
                y,
                marker="x",
                color=PALETTE[5],
                markersize=9,
                markeredgewidth=2,
                linestyle="none",
                label=None if "preempted" in seen else "preempted",
            )
            seen.add("preempted")
    for row in epochs:
        if row["vm"] in line_of:
            bar(
                line_of[row["vm"]],
                row["sync_began_s"],
                row["sync_ended_s"],
                PALETTE[1],
                1.0,
                "averaging",
                0.34,
            )
    for n, row in enumerate(losses):
        label = None if n else "all peers lost"
        axes.axvline(row["all_peers_lost_s"], color=PALETTE[5], linewidth=1.5, linestyle="--", label=label)
    place_of = {str(row["slot"]): str(row["location"]) for row in vms}
    axes.set_yticks(range(len(slots)), [f"{slot}\n{place_of[slot]}" for slot in slots], fontsize=8)
    axes.invert_yaxis()
    axes.grid(visible=False, axis="y")
    axes.set_xlim(left=0)
    axes.set_xlabel("wall time since the launch (s)")
    _legend(axes, 4)
    return figure


def calc_comm(rows: Sequence[Row]) -> Figure:
    """Draw calculation and communication time of each epoch, mean over its peers, without overlapped communication.

    `rows`: epoch, warmup, calc_s, comm_s, overlapped_s.
    """
    figure, axes = _subplots(3.2)
    labels = [f"{row['epoch']}\n(warm-up)" if row["warmup"] else str(row["epoch"]) for row in rows]
    positions = range(len(rows))
    calc, comm = [row["calc_s"] for row in rows], [row["comm_s"] - row["overlapped_s"] for row in rows]
    axes.bar(positions, calc, color=PALETTE[0], label="calculation", width=0.65)
    axes.bar(positions, comm, bottom=calc, color=PALETTE[1], label="communication", width=0.65)
    step = max(1, len(rows) // 15)
    axes.set_xticks(list(positions)[::step], labels[::step])
    axes.set_xlabel("hivemind epoch")
    axes.set_ylabel("seconds, full scale")
    axes.grid(visible=False, axis="x")
    _legend(axes, 2)
    return figure


def traffic_matrix(rows: Sequence[Row]) -> Figure:
    """Draw full-scale bytes by source and destination. `rows`: src, dst, bytes; those of the same pair are added up."""
    sources = sorted({str(row["src"]) for row in rows})
    targets = sorted({str(row["dst"]) for row in rows})
    sums: dict[tuple[str, str], float] = {}
    for row in rows:
        pair = str(row["src"]), str(row["dst"])
        sums[pair] = sums.get(pair, 0.0) + float(row["bytes"] or 0)
    unit, unit_bytes = unit_of_bytes(max(sums.values(), default=0.0))
    cells = {pair: total / unit_bytes for pair, total in sums.items()}
    figure, axes = _subplots(0.42 * len(sources) + 1.6)
    grid = [[cells.get((s, t), float("nan")) for t in targets] for s in sources]
    top = max(cells.values(), default=0.0) or 1.0
    image = axes.imshow(grid, cmap="cividis", vmin=0, vmax=top, aspect="auto")
    for y, source in enumerate(sources):
        for x, target in enumerate(targets):
            if (source, target) in cells:
                value = cells[source, target]
                axes.text(
                    x,
                    y,
                    number(value, 3),
                    ha="center",
                    va="center",
                    fontsize=8,
                    color="#101214" if value > 0.55 * top else "#f4f6f8",
                )
    axes.set_xticks(
        range(len(targets)), targets, rotation=30 if len(targets) > 5 else 0, fontsize=8, ha="center"
    )
    axes.set_yticks(range(len(sources)), sources, fontsize=8)
    axes.grid(visible=False)
    axes.set_xlabel("to")
    axes.set_ylabel("from")
    figure.colorbar(image, ax=axes, label=unit, shrink=0.9)
    return figure


def cost_stack(rows: Sequence[Row]) -> Figure:
    """Draw dollars by kind. `rows`: what, usd (None: unknown price, drawn as a labelled hatched sliver)."""
    figure, axes = _subplots(0.42 * len(rows) + 1.0)
    known = [float(row["usd"]) for row in rows if row["usd"] is not None]
    sliver = (max(known, default=1.0) or 1.0) * 0.03
    for y, row in enumerate(rows):
        if row["usd"] is None:
            axes.barh(y, sliver, color="none", edgecolor=PALETTE[5], hatch="///")
            axes.annotate(
                "unknown price",
                (sliver, y),
                xytext=(4, 0),
                textcoords="offset points",
                va="center",
                fontsize=9,
            )
        else:
            axes.barh(y, float(row["usd"]), color=PALETTE[y % len(PALETTE)])
            axes.annotate(
                usd(row["usd"]),
                (float(row["usd"]), y),
                xytext=(4, 0),
                textcoords="offset points",
                va="center",
                fontsize=9,
            )
    axes.set_yticks(range(len(rows)), [str(row["what"]) for row in rows], fontsize=9)
    axes.invert_yaxis()
    axes.margins(x=0.14)
    axes.grid(visible=False, axis="y")
    axes.set_xlabel("US dollars, full scale")
    return figure


def utilisation(rows: Sequence[Row]) -> Figure:
    """Draw CPU (and GPU, where known) and network of each group of VMs over time: a row of two panels per group.

    `rows`: group, at_s, and the fields of `metrics.utilisation.Busy`. Unknown values are gaps.
    """
    from matplotlib.figure import Figure as New

    groups = sorted({str(row["group"]) for row in rows})
    figure = New(figsize=(WIDTH_IN, 1.9 * len(groups) + 0.8))
    rates = [row[f"{way}_peak_bytes_per_s"] or 0.0 for row in rows for way in ("sent", "received")]
    unit, unit_bytes = unit_of_bytes(max(rates, default=0.0))
    for (busy, network), group in zip(
        figure.subplots(len(groups), 2, squeeze=False, sharex=True), groups, strict=True
    ):
        own = [row for row in rows if row["group"] == group]
        for color, key, name in ((PALETTE[0], "cpu", "CPU"), (PALETTE[2], "gpu", "GPU")):
            _mean_and_peak(busy, own, f"{key}_mean", f"{key}_peak", 0.01, color, name)
        for color, way in ((PALETTE[1], "sent"), (PALETTE[3], "received")):
            names = (f"{way}_mean_bytes_per_s", f"{way}_peak_bytes_per_s")
            _mean_and_peak(network, own, *names, unit_bytes, color, way)
        busy.set_ylim(0, 105)
        busy.set_ylabel(f"{group}\n% busy")
        network.set_ylim(bottom=0)
        network.set_ylabel(f"{unit}/s per VM")
        for axes in (busy, network):
            if axes.lines:
                axes.legend(
                    loc="lower right", bbox_to_anchor=(1, 1.0), ncols=2, fontsize=8, borderaxespad=0.2
                )
            if group == groups[-1]:
                axes.set_xlabel("wall time since the launch (s)")
    return figure


def _mean_and_peak(
    axes: Any, rows: Sequence[Row], mean: str, peak: str, unit: float, color: str, name: str
) -> None:
    """Draw a mean as a line and its peaks as dots; nothing if all are unknown."""
    if all(row[mean] is None for row in rows):
        return
    times = [row["at_s"] for row in rows]
    for key, look in (
        (mean, {"label": name}),
        (peak, {"linestyle": "none", "marker": ".", "markersize": 2.5}),
    ):
        values = [float("nan") if row[key] is None else row[key] / unit for row in rows]
        axes.plot(times, values, color=color, linewidth=1.2, **look)


def learning(rows: Sequence[Row], accuracy: float | None) -> Figure:
    """Draw the training loss by epoch, one line per peer, and the final held-out accuracy. `rows`: vm, epoch, loss."""
    figure, axes = _subplots(3.2)
    for k, vm in enumerate(sorted({str(row["vm"]) for row in rows})):
        points = [(row["epoch"], row["loss"]) for row in rows if row["vm"] == vm]
        axes.plot(
            *zip(*points, strict=True), marker="o", markersize=3.5, color=PALETTE[k % len(PALETTE)], label=vm
        )
    axes.set_xlabel("hivemind epoch")
    axes.set_ylabel("training loss (nats)")
    axes.set_ylim(0, 1.08 * max([row["loss"] for row in rows if row["loss"] is not None], default=1.0) or 1.0)
    axes.xaxis.get_major_locator().set_params(integer=True)
    if accuracy is not None:
        axes.set_title(f"held-out accuracy at the end: {accuracy:.1%}", loc="right", fontsize=9)
    _legend(axes, 1 if len(axes.lines) < 2 else 4)
    return figure


def evaluation(rows: Sequence[Row], target: Row | None = None) -> Figure:
    """Draw each held-out figure over samples, time and dollars: one row of panels per figure.

    `rows`: epoch, figure, value, trained_samples, trained_s, usd. An axis of which nothing is known is left out; without
    any of the three, the figures are drawn by epoch. `target`: name, at_most, at_least; drawn as a dashed line.
    """
    from matplotlib.figure import Figure as New

    names = list(dict.fromkeys(str(row["figure"]) for row in rows))
    axes_of = [axis for axis in _curve_axes(rows) if any(row[axis[0]] is not None for row in rows)]
    axes_of = axes_of or [("epoch", 1.0, "hivemind epoch")]
    figure = New(figsize=(WIDTH_IN, 2.3 * len(names) + 0.4))
    places = figure.subplots(len(names), len(axes_of), squeeze=False, sharex="col", sharey="row")
    for k, (line, name) in enumerate(zip(places, names, strict=True)):
        bound = None if target is None or target["name"] != name else _bound(target)
        for axes, (column, unit, label) in zip(line, axes_of, strict=True):
            known = [row for row in rows if row["figure"] == name and row[column] is not None]
            points = [(row[column] / unit, row["value"]) for row in known]
            if points:
                axes.plot(
                    *zip(*points, strict=True), marker="o", markersize=4, color=PALETTE[k % len(PALETTE)]
                )
            if bound is not None:
                axes.axhline(bound, color=PALETTE[5], linewidth=1.2, linestyle="--", label="target")
            axes.set_xlabel(label)
            _few_ticks(axes.xaxis, column)
        line[0].set_ylabel(name)
        if bound is not None:
            line[0].legend(loc="best", fontsize=8)
    return figure


def _curve_axes(rows: Sequence[Row]) -> list[tuple[str, float, str]]:
    """Return the x axes of learning curves: the column, what its values are divided by, the label."""
    longest_s = max((row["trained_s"] for row in rows if row["trained_s"] is not None), default=0.0)
    unit_s, unit = next(((s, u) for s, u in ((3600.0, "h"), (60.0, "min")) if longest_s >= 2 * s), (1.0, "s"))
    return [
        ("trained_samples", 1.0, "samples trained on"),
        ("trained_s", unit_s, f"training time ({unit})"),
        ("usd", 1.0, "dollars spent"),
    ]


def _few_ticks(axis: Any, column: str) -> None:
    from matplotlib.ticker import EngFormatter, MaxNLocator

    axis.set_major_locator(MaxNLocator(4, integer=column == "epoch"))
    if column == "trained_samples":
        axis.set_major_formatter(EngFormatter(sep=""))


def _bound(target: Row) -> float:
    return target["at_least"] if target["at_most"] is None else target["at_most"]


def comparison(rows: Sequence[Row]) -> Figure:
    """Draw this run's figures / the paper's, with the intervals. `rows`: what, ratio, low, high."""
    figure, axes = _subplots(0.42 * len(rows) + 1.2)
    for y, row in enumerate(rows):
        low, high = row["low"], row["high"]
        if low is not None and high is not None:
            axes.plot([low, high], [y, y], color=PALETTE[0], linewidth=2)
        axes.plot(row["ratio"], y, "o", color=PALETTE[0], markersize=7)
    axes.axvline(1.0, color=PALETTE[5], linewidth=1.2)
    axes.set_yticks(range(len(rows)), [str(row["what"]) for row in rows])
    axes.invert_yaxis()
    axes.margins(x=0.1, y=0.2)
    axes.grid(visible=False, axis="y")
    axes.set_xlabel("this run / the paper (1 = equal); the line is the 95 % t interval of this run")
    return figure


def _subplots(height_in: float) -> tuple[Figure, Any]:
    from matplotlib.figure import Figure as New

    figure = New(figsize=(WIDTH_IN, max(1.6, min(height_in, 14.0))))
    return figure, figure.subplots()


def _legend(axes: Any, columns: int) -> None:
    axes.legend(loc="lower left", bbox_to_anchor=(0, 1.0), ncols=columns, fontsize=9, borderaxespad=0.2)
