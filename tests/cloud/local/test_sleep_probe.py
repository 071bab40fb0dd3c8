"""What the host notes of itself each second: no process, no clock."""

from __future__ import annotations

import pytest

from cloud.local.network.sleep_probe import Pace, PaceSecond
from metrics.host_load import PaceSecond as Read


def test_each_second_has_its_sleeps_its_pressure_and_its_load():
    pressure, ticks = iter([1_000_000, 1_250_000, 2_250_000]), iter([(50, 100), (150, 300), (150, 400)])
    pace = Pace(lambda: next(pressure), lambda: next(ticks))
    said = [pace.slept(now, late) for now, late in ((100.0, 0.0), (100.5, 0.02), (101.0, 0.3), (102.0, 0.0))]
    assert said[:2] == [None, None]
    first, second = said[2:]
    assert first == PaceSecond(100, 0.02, 2, 1, pytest.approx(0.25), pytest.approx(0.5))
    assert second == PaceSecond(101, 0.3, 1, 1, pytest.approx(1.0), 0.0)


def test_a_kernel_that_counts_neither():
    pace = Pace(lambda: None, lambda: None)
    pace.slept(100.0, 0.0)
    assert pace.slept(101.0, 0.0) == PaceSecond(100, 0.0, 1, 0, None, None)


def test_writer_and_reader_name_the_same_columns():
    assert list(PaceSecond.__dataclass_fields__) == list(Read.__dataclass_fields__)
