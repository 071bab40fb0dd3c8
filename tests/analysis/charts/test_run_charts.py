"""Figures of one run."""

from __future__ import annotations

from analysis.charts.run import traffic_matrix


def test_classes_of_traffic_of_a_pair_are_added_up():
    rows = [
        {"src": "a", "dst": "b", "kind": "zone", "bytes": 2_000_000_000},
        {"src": "a", "dst": "b", "kind": "checkpoint", "bytes": 500_000_000},
        {"src": "b", "dst": "a", "kind": "zone", "bytes": None},
    ]
    (axes, *_) = traffic_matrix(rows).axes
    assert [text.get_text() for text in axes.texts] == ["2.5", "0"]
