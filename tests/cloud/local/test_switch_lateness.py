"""The switch's statistics of its own lateness, without sockets or clocks."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloud.local.network.lateness import LATE_EDGES_MS, Lateness


def test_each_second_has_its_packets_its_late_ones_and_its_worst():
    lateness = Lateness(unix_at_zero_s=1000.0)
    for now, late_s in ((1.25, 0.001), (1.5, 0.0101), (1.75, 0.3), (4.0, 0.01)):
        lateness.note(now, now - late_s)
    found = lateness.report()
    assert [row[:3] for row in found["by_second"]] == [[1001, 3, 2], [1004, 1, 0]], (
        "an idle second has no row"
    )
    assert [row[3] for row in found["by_second"]] == pytest.approx([0.3, 0.01])
    assert found["late_worst_s"] == pytest.approx(0.3)
    assert found["late_over_10ms_share"] == pytest.approx(2 / 4)


def test_seconds_are_limited_but_worst_lateness_is_overall():
    lateness = Lateness(unix_at_zero_s=0.0, kept_s=60)
    for second in range(1000):
        lateness.note(float(second), second - (5.0 if second == 3 else 0.0))
    found = lateness.report()
    assert [row[0] for row in found["by_second"]] == list(range(940, 1000))
    assert found["late_worst_s"] == 5.0
    assert found["late_over_10ms_share"] == pytest.approx(1 / 1000)


@given(st.lists(st.tuples(st.floats(0, 2), st.floats(-1, 3)), max_size=60))
def test_the_seconds_add_up_to_the_whole(steps):
    lateness, now = Lateness(unix_at_zero_s=1.5e9), 0.0
    for wait_s, late_s in steps:
        now += wait_s
        lateness.note(now, now - late_s)
    found = lateness.report()
    assert sum(row[1] for row in found["by_second"]) == len(steps) == sum(found["late"].values())
    late = sum(row[2] for row in found["by_second"])
    assert found["late_over_10ms_share"] == (late / len(steps) if steps else 0.0)
    assert max([row[3] for row in found["by_second"]], default=0.0) == pytest.approx(
        found["late_worst_s"], abs=1e-6
    )
    assert len(found["late"]) == len(LATE_EDGES_MS)
