"""The figures of a run's input: pure functions from rows to Matplotlib figures, used inside `figure_style`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from analysis.charts.groups import WIDTH_IN
from analysis.charts.style import PALETTE

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Row = Mapping[str, Any]
_HEIGHT = 0.38  # of a bar


def operations(rows: Sequence[Row], label: str = "seconds of all samples, as measured") -> Figure:
    """Draw wall and CPU seconds of each operation. `rows`: op, wall_s, cpu_s (None: unknown, no bar)."""
    from matplotlib.figure import Figure as New

    figure = New(figsize=(WIDTH_IN, min(14.0, 0.55 * len(rows) + 1.3)))
    axes: Any = figure.subplots()
    for place, (key, color, name) in enumerate(
        (("wall_s", PALETTE[0], "wall"), ("cpu_s", PALETTE[1], "CPU"))
    ):
        known = [(y, row[key]) for y, row in enumerate(rows) if row[key] is not None]
        axes.barh(
            [y + (place - 0.5) * _HEIGHT for y, _ in known],
            [seconds for _, seconds in known],
            height=_HEIGHT,
            color=color,
            label=name,
        )
    axes.set_yticks(range(len(rows)), [str(row["op"]) for row in rows])
    axes.invert_yaxis()
    axes.grid(visible=False, axis="y")
    axes.set_xlabel(label)
    _legend(axes)
    return figure


def waiting(rows: Sequence[Row]) -> Figure:
    """Draw waits and stalls of each epoch, all VMs together, and how long a batch lay ready on average.

    `rows`: epoch, batches, wait_s, stall_s, delay_s. None: unknown, no bar.
    """
    from matplotlib.figure import Figure as New

    figure = New(figsize=(WIDTH_IN, 3.2))
    axes: tuple[Any, Any] = figure.subplots(1, 2)
    waits, delays = axes
    bars = (("wait_s", PALETTE[0], "wait for batches"), ("stall_s", PALETTE[1], "stall (load of steps)"))
    for place, (key, color, name) in enumerate(bars):
        known = [(x, row[key]) for x, row in enumerate(rows) if row[key] is not None]
        waits.bar(
            [x + (place - 0.5) * _HEIGHT for x, _ in known],
            [seconds for _, seconds in known],
            _HEIGHT,
            color=color,
            label=name,
        )
    known = [(x, row["delay_s"] / row["batches"]) for x, row in enumerate(rows) if row["delay_s"] is not None]
    delays.bar([x for x, _ in known], [mean_s for _, mean_s in known], 0.65, color=PALETTE[2], label="delay")
    step = max(1, len(rows) // 10)
    for panel, label in ((waits, "seconds, all VMs"), (delays, "seconds, mean of a batch")):
        panel.set_xticks(range(0, len(rows), step), [str(row["epoch"]) for row in rows[::step]])
        panel.set_xlabel("hivemind epoch")
        panel.set_ylabel(label)
        panel.grid(visible=False, axis="x")
        _legend(panel)
    return figure


def _legend(axes: Any) -> None:
    axes.legend(loc="lower left", bbox_to_anchor=(0, 1.0), ncols=2, fontsize=9, borderaxespad=0.2)
