"""The swarm's epochs and the rates from them: by hand, and against a second, naive implementation."""

from __future__ import annotations

from random import Random
from statistics import fmean

import pytest
from hypothesis import given
from hypothesis import strategies as st
from synthetic_runs import epoch, random_run, vm

from metrics.epochs.granularity import (
    calculation,
    communication,
    granularity,
    granularity_of_means,
    granularity_of_means_values,
    granularity_phase_timed,
    granularity_spread,
    granularity_stall_free,
)
from metrics.epochs.throughput import (
    dropped_rounds,
    epoch_seconds,
    local_throughput,
    measured,
    swarm_epochs,
    throughput,
    throughput_epoch_mean,
    throughput_phase_timed,
    throughput_values,
)
from metrics.figures import FIGURES
from metrics.records import ProgressRecord
from metrics.stats import mean_interval


def _two_peers():
    return [
        epoch("a", 1, 0, 10, 2, samples=100),
        epoch("b", 1, 0, 10, 4, samples=100),
        epoch("a", 2, 12, 20, 5, samples=110),
        epoch("b", 2, 14, 20, 5, samples=90),
    ]


def test_an_epoch_ends_at_the_mean_of_its_peers_ends():
    first, second = swarm_epochs(_two_peers(), warmup_epochs=1)
    assert (first.ended_s, second.ended_s) == (13.0, 38.0)
    assert (first.duration_s, second.duration_s) == (13.0, 25.0)
    assert (first.warmup, second.warmup) == (True, False)


def test_the_warmup_is_listed_but_not_measured():
    epochs = swarm_epochs(_two_peers(), warmup_epochs=1)
    assert [e.epoch for e in epochs] == [1, 2]
    assert [e.epoch for e in measured(epochs)] == [2]
    found = throughput(epochs)
    assert found is not None
    assert (found.value, found.low, found.n) == (200 / 25, None, 1)
    assert local_throughput(epochs).value == pytest.approx(110 / 20 + 90 / 20)


def test_phase_timed_throughput_excludes_time_outside_phases():
    slow = {"samples": 100, "load_s": 1.0, "move_s": 1.0, "forward_s": 2.0, "backward_s": 4.0, "other_s": 2.0}
    records = [epoch("a", k, 12.0 * (k - 1), 10, 2, **slow) for k in (1, 2)]
    epochs = swarm_epochs(records, 1)
    assert throughput_phase_timed(epochs).value == pytest.approx(100 / 8)
    assert granularity_phase_timed(epochs).value == pytest.approx(7 / 2)
    assert granularity(epochs).value == pytest.approx(10 / 2)


def test_a_long_epoch_counts_for_more_in_throughput_and_its_noise():
    """The epochs' rates would give too narrow an interval for samples over time."""
    calc_s = (10.0, 10.0, 10.0, 10.0, 500.0)
    ends = iter(range(0, 10000, 1000))
    epochs = swarm_epochs([epoch("a", k, next(ends), calc, 1.0) for k, calc in enumerate(calc_s, start=1)], 1)
    found, values = throughput(epochs), mean_interval(throughput_values(epochs))
    assert found is not None
    assert values is not None
    assert (values.value, values.low, values.n) == (pytest.approx(found.value), pytest.approx(found.low), 4)
    assert values.value != pytest.approx(throughput_epoch_mean(epochs).value)
    assert throughput_values(swarm_epochs([], 1)) == []


def test_granularity_of_means_is_the_ratio_of_the_mean_seconds():
    comm_s = (1.5, 1.5, 1.5, 0.25, 1.5)  # in the fourth there was hardly any communication
    ends = iter(range(0, 1000, 100))
    epochs = swarm_epochs([epoch("a", k, next(ends), 3.0, comm) for k, comm in enumerate(comm_s, start=1)], 1)
    found, calc, comm = (f(epochs) for f in (granularity_of_means, calculation, communication))
    assert found.value == pytest.approx(calc.value / comm.value)
    assert found.value == pytest.approx(4 * 3.0 / (3 * 1.5 + 0.25))
    assert found.low < found.value < found.high
    values = mean_interval(granularity_of_means_values(epochs))
    assert values is not None
    assert (values.value, values.low, values.n) == (pytest.approx(found.value), pytest.approx(found.low), 4)
    assert (granularity(epochs).value, found.n) == (pytest.approx((3 * 2.0 + 12.0) / 4), 4)
    spread = granularity_spread(epochs)
    assert (spread.least, spread.median, spread.most, spread.n) == (2.0, 2.0, 12.0, 4)


def test_granularity_without_stalls_leaves_out_the_load_seconds():
    loads_s, ends = (1.0, 1.0, 2.0), iter(range(0, 1000, 100))
    records = [
        record
        for k, (load_s, began_s) in enumerate(zip(loads_s, ends, strict=False), start=1)
        for record in (
            epoch("a", k, began_s, 10.0, 2.0, load_s=load_s),
            epoch("b", k, began_s, 20.0, 4.0, load_s=5 * load_s),
        )
    ]
    epochs = swarm_epochs(records, 1)
    found = granularity_stall_free(epochs)
    assert found is not None
    # Means over the peers: calculation 15 s, load 3 and 6 s, communication 3 s.
    assert found.value == pytest.approx((12.0 + 9.0) / (3.0 + 3.0))
    assert granularity_of_means(epochs).value == pytest.approx(5.0)
    assert FIGURES["granularity_stall_free"].of_epoch(epochs[1]) == pytest.approx((9 / 2 + 15 / 4) / 2)


def test_granularity_without_stalls_is_unknown_without_load_seconds_or_communication():
    known = epoch("a", 1, 0.0, 10.0, 2.0, load_s=1.0)
    for other in (epoch("b", 1, 0.0, 10.0, 2.0, load_s=0.0), None):
        epochs = swarm_epochs([known, *([other] if other else [])], 0)
        assert (granularity_stall_free(epochs) is None) == (other is not None)
        assert (FIGURES["granularity_stall_free"].of_epoch(epochs[0]) is None) == (other is not None)
    alone = swarm_epochs([epoch("a", 1, 0.0, 10.0, 0.0, load_s=1.0)], 0)
    assert granularity_stall_free(alone) is None
    assert granularity_stall_free([]) is None


@given(
    st.lists(st.tuples(st.floats(0.1, 100), st.floats(0.01, 1), st.floats(0.1, 100)), min_size=1, max_size=8)
)
def test_stalls_never_lower_the_granularity(epochs_s: list[tuple[float, float, float]]):
    records = [
        epoch("a", k, 1000.0 * k, calc, comm, load_s=calc * share)
        for k, (calc, share, comm) in enumerate(epochs_s, start=1)
    ]
    epochs = swarm_epochs(records, 0)
    without, whole = granularity_stall_free(epochs), granularity_of_means(epochs)
    assert -1e-9 <= without.value < whole.value


def test_granularity_is_unknown_where_nobody_communicated():
    epochs = swarm_epochs([epoch("a", k, 20.0 * k, 10, 0) for k in (1, 2, 3)], 1)
    assert granularity_of_means(epochs) is None
    assert granularity_of_means_values(epochs) == []
    assert granularity_spread(epochs) is None


def test_nothing_measured_is_none_not_zero():
    assert throughput(swarm_epochs([], 1)) is None
    assert granularity(swarm_epochs(_two_peers(), 2)) is None
    assert epoch_seconds(swarm_epochs(_two_peers(), 2)) is None


def test_joined_and_left():
    records = [*_two_peers(), epoch("b", 3, 39, 5, 1), epoch("c", 3, 37, 7, 1)]
    third = swarm_epochs(records, 1, vms=[vm("a", ended_s=30.0), vm("b"), vm("c")])[2]
    assert (third.joined, third.left, third.complete) == (("c",), ("a",), True)


def test_last_epoch_not_reported_by_a_running_peer_is_not_measured():
    records = [*_two_peers(), epoch("b", 3, 39, 5, 1)]
    epochs = swarm_epochs(records, 1, vms=[vm("a"), vm("b")])
    assert not epochs[2].complete
    assert [e.epoch for e in measured(epochs)] == [2]


def test_a_gap_in_the_epochs_is_not_measured_over():
    epochs = swarm_epochs([epoch("a", 1, 0), epoch("a", 3, 30)], 0)
    assert [e.duration_s for e in epochs] == [12.0, None]


def test_lost_parts_of_a_round_count_except_for_a_lone_peer():
    alone = {"dropped": "averaging could not begin", "group_size": 1}
    records = [
        epoch("a", 1, dropped="received 43 %"),
        epoch("b", 1, dropped="local gradients;received 43 %"),
        epoch("a", 2, 12, **alone),  # b died at 23, in the middle of its round: part of it was lost
        epoch("a", 3, 24, **alone),
    ]
    died = [vm("a"), vm("b", ended_s=23.0, end_cause="preempted")]
    epochs = swarm_epochs(records, 0, vms=died)
    assert [e.epoch for e in dropped_rounds(epochs)] == [1, 2]
    assert [e.lone for e in epochs] == [False, False, True]
    # b lives and averages elsewhere: then a was not alone, it was cut off.
    assert [e.epoch for e in dropped_rounds(swarm_epochs(records, 0, vms=[vm("a"), vm("b")]))] == [1, 2, 3]


def test_the_crossing_is_interpolated_between_two_scrapes():
    scrapes = [ProgressRecord(t, "", 0, n, 0.0, 2, None) for t, n in ((2.0, 40), (6.0, 120), (8.0, 150))]
    (found,) = swarm_epochs([epoch("a", 1, 0, 10, 2)], 0, scrapes, target_batch_size=100)
    assert found.crossed_s == pytest.approx(5.0)
    (none,) = swarm_epochs([epoch("a", 1, 0, 10, 2)], 0, (), target_batch_size=100)
    assert none.crossed_s is None


@given(st.integers(0, 10_000))
def test_the_order_of_the_records_does_not_matter(seed):
    records = random_run(seed)
    again = list(records)
    Random(seed + 1).shuffle(again)
    assert swarm_epochs(records, 1) == swarm_epochs(again, 1)


def _naive(records, warmup):
    """The definitions of docs/numbers.md, written a second time without the code under test."""
    numbers = sorted({r.epoch for r in records})
    of = {k: [r for r in records if r.epoch == k] for k in numbers}
    ends = {k: sum(r.ended_s for r in of[k]) / len(of[k]) for k in numbers}
    samples, walls, rates, calcs, comms, grans = [], [], [], [], [], []
    for k in numbers:
        if k - 1 in of:
            wall = ends[k] - ends[k - 1]
        elif k == numbers[0]:
            wall = ends[k] - sum(r.began_s for r in of[k]) / len(of[k])
        else:
            continue
        gone = {r.vm for r in of.get(k - 1, [])} - {r.vm for r in of[k]}
        if k <= warmup or wall <= 0 or (k == numbers[-1] and gone):
            continue
        samples.append(sum(r.samples for r in of[k]))
        walls.append(wall)
        rates.append(samples[-1] / wall)
        calcs.append(fmean(r.calc_s for r in of[k]))
        comms.append(fmean(r.comm_s for r in of[k]))
        grans.append(fmean(r.calc_s / r.comm_s for r in of[k]))
    if not walls:
        return None
    return sum(samples) / sum(walls), fmean(rates), fmean(calcs), fmean(comms), fmean(grans), fmean(walls)


@given(st.integers(0, 10_000), st.integers(0, 2))
def test_agrees_with_a_second_implementation(seed, warmup):
    records = random_run(seed)
    epochs = swarm_epochs(records, warmup)
    ours = [
        f(epochs)
        for f in (throughput, throughput_epoch_mean, calculation, communication, granularity, epoch_seconds)
    ]
    naive = _naive(records, warmup)
    if naive is None:
        assert ours == [None] * 6
    else:
        assert [o.value for o in ours] == pytest.approx(naive, rel=1e-9)


@given(st.lists(st.tuples(st.floats(0.1, 100), st.floats(0.1, 100)), min_size=1, max_size=8))
def test_granularity_of_means_lies_within_the_spread_of_the_epochs(seconds: list[tuple[float, float]]):
    records = [
        epoch(vm, k, 1000.0 * k, calc * share, comm)
        for k, (calc, comm) in enumerate(seconds, start=1)
        for vm, share in (("a", 1.0), ("b", 3.0))
    ]
    epochs = swarm_epochs(records, 0)
    found, within = granularity_of_means(epochs), granularity_spread(epochs)
    assert within.least * (1 - 1e-9) <= found.value <= within.most * (1 + 1e-9)
    assert within.n == len(seconds)
