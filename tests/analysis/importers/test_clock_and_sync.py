"""Combining two clocks, step ends more precise than the clock, and finding the averaging steps."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis.importers.wandb.clock import one_clock, step_ends
from analysis.importers.wandb.sync import authors_rule, by_bytes, by_epochs, find_sync

NONE = np.full(1000, np.nan)


def _clock(runtime: list[float], unix: list[float]) -> list[float]:
    clock = one_clock(np.array(runtime, dtype=float), np.array(unix, dtype=float))
    assert clock is not None
    return clock.at_s.tolist()


def test_run_time_gives_durations_and_unix_time_the_offset():
    assert _clock([5, 6, 6, 8], [105, 106, 107, 108]) == [105, 106, 106, 108]


@pytest.mark.parametrize(
    ("runtime", "unix"),
    [
        ([0, 1, 2, 3, 4], [100, 101, 5000, 5001, 5002]),  # unix time leaps
        ([0, 1, 900, 901, 902], [100, 101, 102, 103, 104]),  # the run time leaps
        ([0, 1, 2, 3, 4], [100, 101, 42, 43, 44]),  # unix time goes back
        ([0, 1, 0, 1, 2], [100, 101, 102, 103, 104]),  # the process was started again
    ],
)
def test_clock_that_did_not_jump_is_used(runtime: list[float], unix: list[float]):
    clock = one_clock(np.array(runtime, dtype=float), np.array(unix, dtype=float))
    assert clock is not None
    assert np.diff(clock.at_s).tolist() == [1, 1, 1, 1] or clock.at_s[-1] - clock.at_s[0] == pytest.approx(
        4, abs=1
    )
    assert clock.jumps == (2,)


def test_leap_of_both_clocks_counts_as_time_passed():
    assert np.diff(_clock([0, 1, 61, 62], [9, 10, 70, 71])).tolist() == [1, 60, 1]
    assert np.diff(_clock([50, 51, 3, 4], [90, 91, 43, 44])).tolist() == [1, 0, 1]


def test_missing_cells_are_filled_and_no_clock_is_none():
    nan = float("nan")
    assert _clock([nan, 1, nan, 3], [100, 101, nan, 103]) == [101, 101, 101, 103]
    assert _clock([nan] * 3, [100, 101, 103]) == [100, 101, 103]
    assert one_clock(NONE[:3], NONE[:3]) is None


@given(st.lists(st.tuples(st.floats(0.05, 3), st.floats(0, 2)), min_size=1, max_size=80), st.floats(0, 1))
def test_step_ends_are_in_their_second_and_consistent_with_timers(
    steps: list[tuple[float, float]], begin: float
):
    timed = np.array([t for t, _ in steps])
    true = begin + np.cumsum([t + other for t, other in steps])
    ends = step_ends(np.floor(true), timed, 1.0)
    assert np.all(np.floor(true) - 1e-9 <= ends)
    assert np.all(ends <= np.floor(true) + 1 + 1e-9)
    assert np.all(np.abs(ends - true) <= 0.5 + 1e-9)
    assert np.all(np.diff(ends) >= timed[1:] - 1e-9)


def _made(
    steps: int, every: int, sync_s: float, local_s: float = 0.02
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(optimizer seconds, epoch logged with each step, sent bytes around it), averaging at every n-th step."""
    opt = np.full(steps, local_s)
    opt[every - 1 :: every] = sync_s
    epoch = np.floor((np.arange(steps) + 1) / every)
    return opt, epoch, np.where(opt == sync_s, 1e9, 1e4)


def test_three_rules_agree_for_rare_and_long_rounds():
    opt, epoch, sent = _made(400, 100, 20.0)
    ends = np.cumsum(np.where(opt > 1, 22.0, 1.0))
    watched = [(k, float(ends[100 * k - 1]) + 2) for k in (1, 2, 3, 4)]
    for column, seen, rule in (
        (epoch, watched, "epochs"),
        (NONE[:400], watched, "opt_step"),
        (NONE[:400], [], "opt_step"),
    ):
        sync = find_sync(opt, column, ends, sent, seen)
        assert (sync.rule, sync.steps) == (rule, (99, 199, 299, 399))
        assert sync.agree is (None if rule == "opt_step" and not seen else True)
    assert [b.step for b in by_bytes(opt, ends, sent, watched)] == [99, 199, 299, 399]
    assert [b.step for b in by_bytes(opt, ends, sent, [])] == [99, 199, 299, 399]


def test_authors_rule_fails_for_frequent_rounds_but_epochs_do_not():
    opt, epoch, sent = _made(30, 3, 60.0)
    opt[2::3] *= np.linspace(0.5, 1.5, 10)
    ends = np.cumsum(opt + 0.3)
    assert 0 < len(authors_rule(opt)) < 10
    sync = find_sync(opt, epoch, ends, sent)
    assert sync.steps == tuple(range(2, 30, 3))
    assert sync.agree is False
    watched = [(k + 1, float(ends[s]) + 1.5) for k, s in enumerate(range(2, 30, 3))]
    without = find_sync(opt, NONE[:30], ends, sent, watched)
    assert (without.rule, without.steps) == ("bytes", sync.steps)
    assert [b.epoch for b in without.boundaries] == list(range(1, 11))


@pytest.mark.parametrize("shift", [-2, -1, 1, 2])
def test_shifted_columns_still_give_the_long_step(shift: int):
    opt, epoch, sent = _made(120, 40, 9.0)
    moved = np.roll(epoch, shift)
    moved[:3] = 0
    moved[-3:] = epoch[-4] if shift > 0 else 3  # shifted past the end, the last one is not shown any more
    found = [b.step for b in by_epochs(opt, moved, sent) if b.averaged]
    assert found == [39, 79, 119]


def test_half_of_the_epochs_may_be_missing():
    opt, epoch, sent = _made(120, 40, 9.0)
    for seed in range(20):
        there = np.random.default_rng(seed).random(120) < 0.5
        there[[0, 60]] = True  # else nothing shows that an epoch passed
        found = by_epochs(opt, np.where(there, epoch, np.nan), sent)
        assert [(b.step, b.epoch) for b in found] == [(39, 1), (79, 2), (119, 3)]


def test_long_last_step_without_bytes_is_not_a_round():
    opt, epoch, sent = _made(120, 40, 9.0)
    epoch[-1], sent[-1] = 2, 1e4
    assert [b.step for b in by_epochs(opt, epoch, sent)] == [39, 79]


def test_missing_epochs_are_filled():
    opt, epoch, sent = _made(120, 40, 9.0)
    epoch[[0, 1, 20, 39, 79, 100]] = np.nan  # among them the very steps that advance
    assert [b.step for b in by_epochs(opt, epoch, sent)] == [39, 79, 119]


def test_state_download_is_not_a_round():
    opt, epoch, sent = _made(120, 40, 9.0)
    opt[4], epoch[:4], epoch[4:] = 30.0, 0, epoch[4:] + 5  # joins late: 0, then 5
    found = by_epochs(opt, epoch, sent)
    assert [(b.step, b.epoch, b.averaged) for b in found] == [
        (4, 5, False), (39, 6, True), (79, 7, True), (119, 8, True),
    ]  # fmt: skip
    assert 4 in authors_rule(opt)  # which is why the epochs decide


def test_log_that_starts_with_a_state_download():
    opt, epoch, sent = _made(120, 40, 9.0)
    opt[0] = 30.0
    found = by_epochs(opt, epoch + 5, sent)
    assert [(b.step, b.epoch, b.averaged) for b in found[:2]] == [(0, 5, False), (39, 6, True)]
    assert [b.step for b in by_epochs(opt, epoch, sent)] == [39, 79, 119]  # a slow start of the swarm is none


def test_long_step_without_bytes_is_not_a_round():
    opt, epoch, sent = _made(160, 40, 9.0)
    sent[79] = 2e4  # one epoch behind: it fetched the state instead
    assert [b.averaged for b in by_epochs(opt, epoch, sent)] == [True, False, True, True]


def test_epoch_without_a_long_step_has_no_round():
    opt, epoch, sent = _made(120, 40, 9.0)
    opt[79] = 0.02
    assert [(b.epoch, b.averaged) for b in by_epochs(opt, epoch, sent)] == [(1, True), (2, False), (3, True)]


def test_epochs_in_consecutive_steps_are_kept_apart():
    opt = np.array([0.02, 8.0, 9.0, 0.02, 8.5, 0.02, 0.02, 0.02])
    epoch = np.array([0.0, 1, 2, 2, 3, 3, 3, 3])
    assert [(b.step, b.epoch) for b in by_epochs(opt, epoch, NONE[:8])] == [(1, 1), (2, 2), (4, 3)]


def test_no_steps_and_no_rounds():
    empty = np.zeros(0)
    assert find_sync(empty, empty, empty, empty).steps == ()
    flat = np.full(50, 0.02)
    assert find_sync(flat, np.zeros(50), np.arange(50.0), NONE[:50]).steps == ()
    assert find_sync(flat, NONE[:50], np.arange(50.0), NONE[:50]).steps == ()
    assert authors_rule(flat) == authors_rule(flat[:1]) == ()
