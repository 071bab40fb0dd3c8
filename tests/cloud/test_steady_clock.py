"""A clock that is set while a run goes on."""

from __future__ import annotations

from cloud.steady_clock import steady_clock


def test_a_clock_set_back_or_forward_changes_nothing():
    wall, ticks = [1000.0], [5.0]
    now_s = steady_clock(lambda: wall[0], lambda: ticks[0])
    seen = [now_s()]
    for set_to, passed in ((1001.0, 1.0), (-3600.0, 1.0), (1e9, 1.0)):
        wall[0], ticks[0] = set_to, ticks[0] + passed
        seen.append(now_s())
    assert seen == [1000.0, 1001.0, 1002.0, 1003.0]


def test_after_a_restart_it_goes_on_behind_what_is_written_already():
    now_s = steady_clock(lambda: 900.0, lambda: 5.0, not_before_s=1000.0)
    assert now_s() == 1000.0


def test_the_real_one_is_the_machines_time_and_goes_on():
    import time

    now_s = steady_clock()
    first = now_s()
    assert abs(first - time.time()) < 5
    assert now_s() >= first
