"""Labels never overlap and intervals are clipped at the axes, with 8 and with 60 runs."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis.charts import bars as figures_bars
from analysis.charts import lines as figures_lines
from analysis.charts import scatter as figures_scatter
from analysis.charts.point_labels import arrange, needs_leader
from analysis.charts.style import figure_style, svg_file
from analysis.compare.paper import ONE_CLOCK, references
from analysis.compare.rows import Row

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def style() -> Iterator[None]:
    with figure_style():
        yield


def points(count: int, crowded: bool) -> list[Row]:
    """Rows like those of `scatter_rows`; crowded ones are within a tenth of the axes."""
    dice = random.Random(7)
    spread = 1.1 if crowded else 20.0
    return [
        {
            "panel": "ConvNextLarge", "basis": ONE_CLOCK, "name": f"some-experiment-{k}", "group": "ABC"[k % 3], "origin": "log",
            "clock": "wall", "sps": 30 * spread ** dice.random(), "sps_low": -100.0 if k == 0 else 20.0, "sps_high": 5000.0,
            "n": 2, "n_of": "epochs", "usd_per_1m": spread ** dice.random(), "front": k < 2,
        }
        for k in range(count)
    ]  # fmt: skip


def shown_labels(figure: Any) -> list[Any]:
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    renderer = FigureCanvasAgg(figure).get_renderer()
    figure.draw(renderer)
    texts = [t for axes in figure.axes for t in axes.texts if t.get_label() == "label"]
    return [(t.get_text(), t.axes, _extent(t, renderer)) for t in texts]


def _extent(text: Any, renderer: Any) -> Any:
    """The text's own box, without its leader."""
    from matplotlib.text import Text

    text.update_positions(renderer)
    return Text.get_window_extent(text, renderer)


@pytest.mark.parametrize(("count", "crowded"), [(8, False), (8, True), (60, False), (60, True)])
def test_no_two_labels_overlap_and_none_covers_a_point(count: int, crowded: bool):
    rows = points(count, crowded)
    figure = figures_scatter.scatter([("one", rows), ("two", rows)])
    labels = shown_labels(figure)
    assert len(labels) >= (16 if count == 8 else 40 if crowded else 110)
    for k, (text, axes, box) in enumerate(labels):
        area = axes.get_window_extent()
        assert area.x0 <= box.x0, text
        assert box.x1 <= area.x1, text
        assert not [other for other, _, b in labels[k + 1 :] if box.overlaps(b)], text
        for row in rows:
            x, y = axes.transData.transform((row["sps"], row["usd_per_1m"]))
            assert not (box.x0 <= x <= box.x1 and box.y0 <= y <= box.y1), text


def test_few_runs_have_names_and_many_numbers_with_a_key():
    few, many = (figures_scatter.scatter([("one", points(n, True))]) for n in (8, 60))
    assert {text for text, *_ in shown_labels(few)} == {f"some-experiment-{k}" for k in range(8)}
    assert {text for text, *_ in shown_labels(many)} <= {str(k + 1) for k in range(60)}
    columns = [t for t in many.texts if t.get_label() == "key"]
    key = "\n".join(t.get_text() for t in columns)
    assert all(f"{k + 1}  some-experiment-{k}" in key.split("\n") for k in range(60))


@pytest.mark.parametrize("length", [3, 25, 110])
def test_key_columns_do_not_overlap_and_fit_the_figure(length: int):
    rows = [
        row | {"name": f"{row['name']}-{'x' * length}", "panel": "mn"[k % 2]}
        for k, row in enumerate(points(60, True))
    ]
    figure = figures_scatter.scatter([("one", rows)])
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    renderer: Any = FigureCanvasAgg(figure).get_renderer()
    boxes = [t.get_window_extent(renderer) for t in figure.texts if t.get_label() == "key"]
    assert (len(boxes) > 1) == (length < 100)
    assert not any(a.x1 >= b.x0 for a, b in pairwise(boxes))
    assert all(box.x0 >= 0 and box.x1 <= figure.bbox.x1 and box.y0 >= 0 for box in boxes)
    assert all(box.y1 <= axes.get_tightbbox(renderer).y0 for box in boxes for axes in figure.axes)


@given(
    st.lists(st.tuples(st.floats(0, 400), st.floats(0, 300)), max_size=40),
    st.tuples(st.floats(1, 80), st.floats(1, 20)),
)
def test_arranged_boxes_keep_apart_from_each_other_and_from_the_points(
    places: list[tuple[float, float]], size: tuple[float, float]
):
    boxes = arrange(places, [size] * len(places), (0, 0, 400, 300), 4.0, [(0, 100, 400, 102)])
    placed = [box for box in boxes if box is not None]
    assert arrange(places, [size] * len(places), (0, 0, 400, 300), 4.0, [(0, 100, 400, 102)]) == boxes
    for k, a in enumerate(placed):
        assert a[0] >= 0
        assert a[2] <= 400
        assert a[2] - a[0] == pytest.approx(size[0])
        assert not any(a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3] for b in placed[k + 1 :])
        assert not any(a[0] < x < a[2] and a[1] < y < a[3] for x, y in places)


def test_label_avoids_lines():
    (box,) = arrange([(100, 100)], [(20, 10)], (0, 0, 400, 300), 4.0, [(0, 99, 400, 101)])
    assert box is not None
    assert box[1] > 101 or box[3] < 99


def test_far_or_ambiguous_labels_need_a_leader():
    box, own = (10.0, 0.0, 30.0, 8.0), (5.0, 4.0)  # 5 from its own point
    assert not needs_leader(box, own, [own, (38.0, 4.0)], 12.0)
    assert needs_leader(box, own, [own, (37.0, 4.0)], 12.0)
    assert needs_leader(box, own, [own, (20.0, 11.0)], 12.0)
    assert needs_leader(box, own, [own], 4.0)


def test_leaders_reach_from_the_label_to_the_point():
    figure = figures_scatter.scatter([("one", points(30, crowded=True))])
    boxes = [box for *_, box in shown_labels(figure)]
    labels = [t for axes in figure.axes for t in axes.texts if t.get_label() == "label"]
    led = [(t, box) for t, box in zip(labels, boxes, strict=True) if t.arrow_patch is not None]
    assert led
    for label, box in led:
        x, y = label.axes.transData.transform(label.xy)
        away = math.hypot(max(box.x0 - x, 0, x - box.x1), max(box.y0 - y, 0, y - box.y1))
        ends = label.arrow_patch.get_path().vertices
        assert math.dist(ends[0], ends[-1]) > away - 3.0 * figure.dpi / 72


def test_an_interval_beyond_the_axes_ends_in_an_arrow():
    rows = [
        {"panel": "m", "group": "A", "name": str(n), "peers": n, "origin": "log", "value": 100.0 * n, "value_low": low,
         "value_high": high, "n": 2, "n_of": "epochs"}
        for n, low, high in ((2, 150.0, 250.0), (8, -4000.0, 6000.0))
    ]  # fmt: skip
    figure = figures_lines.against_peers([("m", rows)], "throughput (samples/s)")
    (axes,) = figure.axes
    marks = [line.get_marker() for line in axes.lines]
    assert marks.count("_") == 2
    assert (marks.count("v"), marks.count("^")) == (1, 1)
    assert axes.get_ylim() == (0, pytest.approx(920))
    assert "n = 2 epochs" in axes.get_title(loc="left")
    assert axes.get_ylabel() == "throughput (samples/s)"


def test_unknown_kind_is_shown_as_text():
    rows = [
        {"name": "x", "origin": "own", "kind": "vm", "usd_per_vm_h": 0.2},
        {"name": "x", "origin": "own", "kind": "oceania", "usd_per_vm_h": None},
    ]
    figure = figures_bars.costs([("", rows)])
    (axes,) = figure.axes
    assert len(axes.patches) == 1
    assert [t.get_text() for t in axes.texts] == ["unknown: egress to or from Oceania"]


def test_names_are_not_parsed_as_math():
    rows = [row | {"name": f"$\\frac{{{k}$ <&>"} for k, row in enumerate(points(3, False))]
    svg = svg_file(figures_scatter.scatter([("one $x$", rows)]))
    assert "$\\frac{0$ &lt;&amp;&gt;" in svg


def test_equal_rows_give_equal_figures():
    rows = points(12, True)
    assert svg_file(figures_scatter.scatter([("one", rows)])) == svg_file(
        figures_scatter.scatter([("one", rows)])
    )


def test_names_of_60_bars_do_not_overlap():
    rows = [
        {"name": f"a-rather-long-experiment-name-{k}", "origin": "emulated", "calc_s": 100.0, "comm_s": 10.0 + k,
         "comm_s_low": None, "comm_s_high": None, "n": 3, "n_of": "epochs"}
        for k in range(60)
    ]  # fmt: skip
    figure = figures_bars.phases(rows)
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    renderer = FigureCanvasAgg(figure).get_renderer()
    figure.draw(renderer)
    boxes = [t.get_window_extent(renderer) for t in figure.axes[0].get_yticklabels()]
    assert len(boxes) == 60
    assert not any(a.overlaps(b) for a, b in pairwise(boxes))
    assert all(box.x0 >= 0 for box in boxes)


def test_references_have_a_clock_a_basis_and_a_source():
    for row in references():
        assert row.clock in ("wall", "phase-timed", "unknown")
        assert row.source
        assert row.note
