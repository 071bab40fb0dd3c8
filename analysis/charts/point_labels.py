"""Places labels next to points without overlaps: each label is tried at some offsets and otherwise left out.

`arrange` is pure and deterministic. If not all names fit, the caller shows numbers and a key. A leader line connects
a label with its point if the label is far away or about as near to another point.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from analysis.charts.style import INK

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Box = tuple[float, float, float, float]  # left, bottom, right, top

_DIRECTIONS = ((1, 0), (-1, 0), (0, 1), (0, -1), (1, 1), (-1, 1), (1, -1), (-1, -1))
_REACH = (2.0, 8.0, 16.0, 28.0, 44.0)  # distances from the point's edge
_GAP = 1.5
_STEP = 4.0
_LEADER = {"arrowstyle": "-", "color": INK, "linewidth": 0.5, "shrinkA": 0, "shrinkB": 1, "zorder": 9}
_APART = 1.5  # a label needs no leader if other points are this many times farther away than its own
_EDGE = {
    "boxstyle": "square,pad=0",
    "facecolor": "none",
    "edgecolor": "none",
}  # the box where a leader starts


def arrange(
    points: Sequence[tuple[float, float]],
    sizes: Sequence[tuple[float, float]],
    bounds: Box,
    radius: float,
    lines: Sequence[Box] = (),
) -> list[Box | None]:
    """Find a free box inside `bounds` for each point's label, nearest first; None if there is none.

    No box touches another box or the square of `radius` around any point. `lines` are crossed only if nothing else is
    free. All in one unit (pixels).
    """
    taken: list[Box] = [(x - radius, y - radius, x + radius, y + radius) for x, y in points]
    placed: list[Box | None] = [None] * len(points)
    for k in sorted(range(len(points)), key=lambda i: (points[i], i)):
        free = [
            b
            for b in _candidates(points[k], sizes[k], radius)
            if _inside(b, bounds) and not any(_meet(b, t) for t in taken)
        ]
        box = next((b for b in free if not any(_meet(b, line) for line in lines)), free[0] if free else None)
        placed[k] = box
        if box is not None:
            taken.append(box)
    return placed


def needs_leader(
    box: Box, own: tuple[float, float], points: Sequence[tuple[float, float]], far: float
) -> bool:
    """Whether a label is farther than `far` from its own point, or about as near to another of the `points`."""
    near = _distance(box, own)
    return near > far or any(_distance(box, point) < _APART * near for point in points if point != own)


def attach(
    figure: Figure,
    labels: Sequence[tuple[Any, float, float, str]],
    size: float,
    radius_pt: float,
    lines: Sequence[tuple[Any, tuple[float, float], tuple[float, float]]] = (),
) -> bool:
    """Draw labels (axes, x, y, text) on a figure; returns False if there was no room for one.

    `lines`: (axes, one end, the other end), which labels avoid. The layout engine is run once and then removed, because
    moved axes would move the points relative to their labels.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    canvas = FigureCanvasAgg(figure)
    figure.draw_without_rendering()
    figure.set_layout_engine("none")
    renderer: Any = canvas.get_renderer()
    pixel = figure.dpi / 72
    complete = True
    for axes in dict.fromkeys(label[0] for label in labels):
        own = [label for label in labels if label[0] is axes]
        points = [tuple(axes.transData.transform((x, y))) for _, x, y, _ in own]
        sizes = []
        for *_, text in own:
            probe = axes.text(0, 0, text, fontsize=size)
            extent = probe.get_window_extent(renderer)
            probe.remove()
            sizes.append((extent.width, extent.height))
        area = axes.get_window_extent(renderer)
        drawn: list[Box] = []
        for place, one, other in lines:
            if place is axes:
                drawn += _along(*axes.transData.transform([one, other]))
        boxes = arrange(points, sizes, (area.x0, area.y0, area.x1, area.y1), radius_pt * pixel, drawn)
        for (_, x, y, text), (px, py), box in zip(own, points, boxes, strict=True):
            if box is None:
                complete = False
                continue
            led = needs_leader(box, (px, py), points, (radius_pt + 10) * pixel)
            # Anchored on the side of the point, so that a wider font extends away from it.
            side, at_x = (
                ("left", box[0])
                if box[0] > px
                else ("right", box[2])
                if box[2] < px
                else ("center", (box[0] + box[2]) / 2)
            )
            axes.annotate(
                text,
                (x, y),
                xytext=((at_x - px) / pixel, (box[1] - py) / pixel),
                textcoords="offset points",
                fontsize=size,
                ha=side,
                va="bottom",
                label="label",  # tests find the labels by it
                in_layout=False,
                bbox=_EDGE if led else None,
                arrowprops=_LEADER if led else None,
            )
    return complete


def _candidates(point: tuple[float, float], size: tuple[float, float], radius: float) -> list[Box]:
    (x, y), (width, height) = point, size
    found: list[Box] = []
    for reach in _REACH:
        away = radius + reach
        for dx, dy in _DIRECTIONS:
            left = x + away if dx > 0 else x - away - width if dx < 0 else x - width / 2
            bottom = y + away if dy > 0 else y - away - height if dy < 0 else y - height / 2
            found.append((left, bottom, left + width, bottom + height))
    return found


def _along(one: Sequence[float], other: Sequence[float]) -> list[Box]:
    """Cover a straight line with small boxes."""
    (x0, y0), (x1, y1) = one, other
    steps = max(1, round(max(abs(x1 - x0), abs(y1 - y0)) / _STEP))
    spots = [(x0 + (x1 - x0) * k / steps, y0 + (y1 - y0) * k / steps) for k in range(steps + 1)]
    return [(x - 1, y - 1, x + 1, y + 1) for x, y in spots]


def _distance(box: Box, point: tuple[float, float]) -> float:
    x, y = point
    return math.hypot(max(box[0] - x, 0.0, x - box[2]), max(box[1] - y, 0.0, y - box[3]))


def _inside(box: Box, bounds: Box) -> bool:
    return box[0] >= bounds[0] and box[1] >= bounds[1] and box[2] <= bounds[2] and box[3] <= bounds[3]


def _meet(a: Box, b: Box) -> bool:
    return a[0] < b[2] + _GAP and b[0] < a[2] + _GAP and a[1] < b[3] + _GAP and b[1] < a[3] + _GAP
