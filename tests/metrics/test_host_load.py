"""Whether the host kept the emulation's clock: only the measured epochs' seconds count."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from synthetic_runs import epoch

from metrics.epochs.throughput import swarm_epochs
from metrics.host_load import (
    PaceSecond,
    describe_host,
    host_trust,
    limits,
    pace_of,
    spans_of,
    stretched_share,
)

CALM = {"late": {"0.5": 500}, "late_worst_s": 4.2, "late_over_10ms_share": 0.4, "sleep_worst_s": 3.0}
"""A whole life whose start was late."""


def seconds(begin: int, end: int, worst_s: float = 0.001, late: int = 0) -> list[list[float]]:
    return [[s, 10, late, worst_s] for s in range(begin, end)]


def pace(begin: int, end: int, worst_s: float = 0.001, pressure: float | None = 0.3) -> list[PaceSecond]:
    return [PaceSecond(s, worst_s, 20, 0, pressure, 0.4) for s in range(begin, end)]


def test_delays_during_the_start_do_not_count():
    switch = {**CALM, "by_second": [*seconds(100, 130, 4.2, 9), *seconds(130, 150)]}
    found = host_trust(switch, [*pace(100, 130, 3.0, 0.99), *pace(130, 150)], [(130.0, 150.0)], 0.002)
    assert (found["contended"], found["reasons"]) == (False, [])
    assert (found["late_worst_s"], found["late_over_10ms_share"], found["sleep_worst_s"]) == (
        0.001,
        0.0,
        0.001,
    )
    assert (found["pressure_share"], found["busy_share"]) == (pytest.approx(0.3), pytest.approx(0.4))
    assert found["basis"] == "measured epochs, 20 s"


def test_each_limit_has_its_reason():
    switch = {**CALM, "by_second": seconds(0, 60, 0.9, 3)}
    found = host_trust(switch, pace(0, 60, 2.0, 0.9), [(10.0, 50.0)], 0.08)
    assert found["contended"]
    assert found["reasons"] == [
        "a packet was 0.90 s late",
        "30% of the packets were more than 10 ms late",
        "a sleep was 2.00 s too long",
        "some task waited for a CPU 90% of the time",
        "the peers' emulated accelerators took 8.0% longer than asked",
    ]
    assert "a packet was 0.90 s late" in describe_host(found)
    assert "(measured epochs, 40 s)" in describe_host(found)


def test_value_at_its_limit_is_accepted():
    at = limits()
    rows = [[5, 100, round(100 * at["late_over_10ms_share"]), at["late_worst_s"]]]
    row = PaceSecond(5, at["sleep_worst_s"], 20, 0, at["pressure_share"], 1.0)
    found = host_trust({**CALM, "by_second": rows}, [row], [(5.0, 6.0)], at["stretched_share"])
    assert found["contended"] is False  # a busy machine that kept the clock kept the clock


@pytest.mark.parametrize(
    ("switch", "spans"),
    [
        (CALM, [(130.0, 150.0)]),  # an older switch
        ({**CALM, "by_second": seconds(100, 150)}, []),  # nothing was measured
        (
            {**CALM, "by_second": seconds(140, 150)},
            [(130.0, 150.0)],
        ),  # a long run: the switch has forgotten it
    ],
)
def test_without_seconds_the_whole_run_counts_and_the_basis_says_so(switch, spans):
    found = host_trust(switch, pace(100, 150), spans, None)
    assert found["contended"]
    assert (found["late_worst_s"], found["late_over_10ms_share"]) == (4.2, 0.4)
    assert found["basis"] == "whole run, its start included"
    assert "whole run" in describe_host(found)


def test_idle_second_is_not_a_truncated_one():
    switch = {"late": {"0.5": 100}, "late_worst_s": 0.001, "late_over_10ms_share": 0.0, "sleep_worst_s": 0.0}
    found = host_trust({**switch, "by_second": seconds(140, 150)}, pace(120, 150), [(130.0, 150.0)], None)
    assert found["basis"].startswith("measured epochs")


def test_a_kernel_without_pressure_is_unknown_and_no_reason():
    found = host_trust({**CALM, "by_second": seconds(0, 9)}, pace(0, 9, pressure=None), [(0.0, 9.0)], None)
    assert (found["pressure_share"], found["stretched_share"], found["contended"]) == (None, None, False)


def test_loopback_has_sleeps_and_no_packets():
    found = host_trust({"sleep_worst_s": 9.0}, pace(0, 30, worst_s=0.02), [(10.0, 20.0)], None)
    assert (found["late_worst_s"], found["sleep_worst_s"], found["contended"]) == (None, 0.02, False)
    assert found["basis"].startswith("measured epochs")


def test_unwatched_host_is_unknown():
    found = host_trust({}, [], [(0.0, 9.0)], None)
    assert found["contended"] is None
    assert describe_host(found) == describe_host(None) == ""


def test_hosts_of_older_runs_are_described():
    assert (
        describe_host({"contended": True, "reasons": ["late packets"]})
        == "late packets (whole run, its start included)"
    )
    assert describe_host({"contended": True, "reasons": []}).startswith("late packets or stretched sleeps")


_ROWS = st.lists(
    st.tuples(st.integers(1, 50), st.floats(0, 5)).flatmap(
        lambda at: st.tuples(st.just(at[0]), st.integers(0, at[0]), st.just(at[1]))
    ),
    min_size=1,
    max_size=60,
)


@given(_ROWS, st.integers(0, 59), st.integers(1, 60))
def test_only_seconds_of_the_spans_count(rows, first, length):
    by_second = [[s, packets, late, worst] for s, (packets, late, worst) in enumerate(rows)]
    switch = {**CALM, "late": {"inf": sum(r[1] for r in by_second)}, "by_second": by_second}
    found = host_trust(switch, [], [(float(first), float(first + length))], None)
    inside = [r for r in by_second if first <= r[0] < first + length]
    if inside:
        assert found["late_worst_s"] == max(r[3] for r in inside)
        assert found["late_over_10ms_share"] == sum(r[2] for r in inside) / sum(r[1] for r in inside)
    else:
        assert found["late_worst_s"] is None


def test_measured_epochs_give_the_spans():
    records = [epoch(v, k, 100 + (k - 1) * 30.0, 20.0, 10.0) for v in "ab" for k in (1, 2, 3)]
    assert spans_of(swarm_epochs(records, 1)) == [(130.0, 160.0), (160.0, 190.0)]


def test_padding_that_took_longer():
    records = [epoch(v, k, 0.0, 20.0, 10.0) for v in "ab" for k in (1, 2)]
    asked = {r.vm: (r.forward_s + r.backward_s) / r.steps / 1.25 for r in records}
    assert stretched_share(records, [2], asked) == pytest.approx(0.25)
    assert stretched_share(records, [2], {}) is None
    assert stretched_share(records, [], asked) is None


def test_pace_file_of_a_restarted_host():
    header = "second,sleep_worst_s,sleeps,sleeps_late,pressure_share,busy_share\n"
    text = f"{header}7,0.001,19,0,,\n{header}9,0.2,18,3,0.25,0.5\n10,0.00"
    assert pace_of(text) == [PaceSecond(7, 0.001, 19, 0, None, None), PaceSecond(9, 0.2, 18, 3, 0.25, 0.5)]
    assert pace_of("") == []


def test_peers_that_calculate_on_the_host_are_judged_by_late_packets_only():
    switch = {**CALM, "by_second": seconds(0, 60)}
    busy = (switch, pace(0, 60, 2.0, 0.99), [(10.0, 50.0)], None)
    assert host_trust(*busy)["contended"]
    found = host_trust(*busy, calculates=True)
    assert (found["contended"], found["reasons"], found["pressure_share"]) == (False, [], pytest.approx(0.99))
    late = {**CALM, "by_second": seconds(0, 60, 0.9, 3)}
    assert len(host_trust(late, *busy[1:], calculates=True)["reasons"]) == 2
    unknown = host_trust({}, pace(0, 60, 2.0, 0.99), [(10.0, 50.0)], None, calculates=True)
    assert unknown["contended"] is None
