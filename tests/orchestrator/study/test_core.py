"""The decisions of a study: what is run and repeated; crashes do not change the results."""

from __future__ import annotations

from contextlib import suppress
from itertools import accumulate

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from study_world import Died, RunEnd, StudyWorld, job, runner_of, table

from orchestrator.study.core import (
    Begun,
    Ended,
    Finish,
    Inspect,
    Job,
    Retry,
    Start,
    Started,
    left_to_run,
    named_jobs,
    next_action,
    replay_study,
    run_id_of,
    to_retry,
)
from orchestrator.study.eta import OVERHEAD_S, remaining_s
from orchestrator.study.verdict import Disturbance

DONE, FAILED = RunEnd("done"), RunEnd("failed")
BUSY = RunEnd("done", {Disturbance.HOST_BUSY: "late"})
DROPPED = RunEnd("done", {Disturbance.DROPPED_ROUNDS: "1 round"})
A, B = job("a"), job("b")


def test_every_job_is_run_once_in_order():
    world = StudyWorld({})
    state = runner_of(world, [A, B]).run()
    assert list(world.made) == ["a-20231114-abcd-1", "b-20231114-abcd-1"]
    assert table(state) == [("a", "done", (), 1), ("b", "done", (), 1)]
    assert not state.failed
    assert isinstance(next_action(state), Finish)


def test_a_failed_run_does_not_end_the_study():
    world = StudyWorld({"a": [FAILED], "b": [DONE], "c": [RunEnd("refused")]})
    state = runner_of(world, [A, B, job("c")]).run()
    assert [one.job.key for one in state.failed] == ["a", "c"]
    assert table(state)[1] == ("b", "done", (), 1)
    assert state.jobs[2].attempts[0].end.error == "refused"


@pytest.mark.parametrize(
    ("script", "runs", "disturbed"),
    [
        ([BUSY, DONE], 2, ()),
        ([BUSY, BUSY, DONE], 3, ()),
        ([BUSY], 3, BUSY.disturbed),
        ([BUSY, FAILED], 2, BUSY.disturbed),  # the numbers that there are
        ([DROPPED, BUSY], 3, DROPPED.disturbed),  # a dropped round counts, a busy host does not
        ([BUSY, DROPPED, BUSY], 3, DROPPED.disturbed),
        ([DROPPED, DONE], 2, ()),
    ],
)
def test_a_disturbed_run_is_repeated_at_most_twice(script, runs, disturbed):
    world = StudyWorld({"a": script})
    state = runner_of(world, [A]).run()
    assert table(state) == [("a", "done", disturbed, runs)]
    assert not state.failed


def test_failed_repeat_is_reported_and_retried_on_request():
    world = StudyWorld({"a": [BUSY, FAILED, DONE], "b": [FAILED]})
    state = runner_of(world, [A, B]).run()
    assert [one.job.key for one in state.failed] == ["b"]
    assert [one.job.key for one in state.repeat_failed] == ["a"]
    assert to_retry(state) == ("a", "b")
    world.append(Retry(0.0, to_retry(state, ["a"])))
    state = runner_of(world, [A, B]).run()
    assert table(state)[0] == ("a", "done", (), 3)
    assert not state.repeat_failed


def test_no_repeats_with_zero_retries():
    assert table(runner_of(StudyWorld({"a": [BUSY]}), [A], 0).run())[0][3] == 1


def test_hanging_run_is_torn_down_at_its_limit():
    world = StudyWorld({"a": [RunEnd("hangs")]})
    state = runner_of(world, [A, B]).run()
    (failed,) = state.failed
    assert failed.attempts[0].end.status == "too_long"
    assert "500 s" in failed.attempts[0].end.error
    assert world.runs["a-20231114-abcd-1"].state == "ended"


# Once journalled, while it is made, without a controller.
@pytest.mark.parametrize(("first", "second"), [(2, 8), (3, 9), (4, 7)])
def test_limit_counts_from_the_actual_start_of_a_run(first: int, second: int):
    world = StudyWorld({}, faults={first: "kill", second: "kill"})
    for later_s in (86400.0, 0.0):  # the second process dies, too, in the run that it began
        with suppress(Died):
            runner_of(world, [A]).run()
        world.pass_s(later_s)
    state = runner_of(world, [A]).run()
    assert table(state) == [("a", "done", (), 1)]
    assert set(world.made.values()) == {1}


def test_limit_holds_across_crashes_of_the_study():
    world = StudyWorld({"a": [RunEnd("hangs")]}, faults={6: "kill"})
    with pytest.raises(Died):
        runner_of(world, [A]).run()
    world.pass_s(86400.0)
    before_s = world.now
    (failed,) = runner_of(world, [A]).run().failed
    assert failed.attempts[0].end.status == "too_long"
    assert world.now - before_s < 100  # at once


def test_interrupted_run_is_torn_down_and_repeated_on_resume():
    world = StudyWorld({}, faults={15: "interrupt"})  # while the second run is watched
    with pytest.raises(KeyboardInterrupt):
        runner_of(world, [A, B]).run()
    assert world.runs["b-20231114-abcd-1"].status == "stopped"
    assert not any(run.state == "running" for run in world.runs.values())
    state = runner_of(world, [A, B]).run()
    assert list(world.made) == ["a-20231114-abcd-1", "b-20231114-abcd-1", "b-20231114-abcd-2"]
    assert table(state) == [("a", "done", (), 1), ("b", "done", (), 1)]


def test_a_run_that_ended_just_before_ctrl_c_keeps_its_numbers():
    world = StudyWorld({}, faults={16: "interrupt"})
    with pytest.raises(KeyboardInterrupt):
        runner_of(world, [A, B]).run()
    state = runner_of(world, [A, B]).run()
    assert list(world.made) == ["a-20231114-abcd-1", "b-20231114-abcd-1"]
    assert table(state) == [("a", "done", (), 1), ("b", "done", (), 1)]


def test_failed_jobs_are_retried_on_request():
    world = StudyWorld({"a": [FAILED, BUSY, DONE]})
    state = runner_of(world, [A, B]).run()
    world.append(Retry(0.0, tuple(one.job.key for one in state.failed)))
    state = runner_of(world, [A, B]).run()
    assert table(state)[0] == ("a", "done", (), 3)  # the failed one has taken no repeat away
    assert world.made["b-20231114-abcd-1"] == 1


def test_failed_jobs_are_retried_last_unless_named():
    world = StudyWorld({"a": [FAILED], "b": [FAILED], "c": [DONE]})
    begun = runner_of(world, [A, B, job("c")]).run(["a", "b"])
    assert to_retry(begun) == ()
    assert to_retry(begun, ["b"]) == ("b",)
    assert to_retry(begun, ["c"]) == ()
    over = runner_of(world, [A, B, job("c")]).run()
    assert to_retry(over) == ("a", "b")
    assert to_retry(over, ["a"]) == ("a",)


def test_only_some_jobs():
    jobs = [job("geo-a2"), job("geo-c8"), Job("geo-c8-wan", "geo-c8", "wan", None, 1.0)]
    for only, expected in ((["geo-c8"], [1, 2]), (["geo-a*"], [0]), (["wan", "geo-a2"], [0, 2]), (["x"], [])):
        state = runner_of(StudyWorld({}), jobs).run(only)
        assert [k for k, one in enumerate(state.jobs) if one.attempts] == expected
    begun = replay_study(jobs, 2, [Started(0.0, "geo-a2", 1, "r")])
    assert isinstance(
        next_action(begun, ["geo-c8"]), Inspect
    )  # a run that may be in progress is never left alone
    assert [one.job.key for one in left_to_run(begun, ["wan"])] == ["geo-a2", "geo-c8-wan"]


def test_each_only_pattern_must_match_a_job():
    names = {"geo-a2": ("geo-a2", "geo-a2", ""), "geo-c8-wan": ("geo-c8-wan", "geo-c8", "wan")}
    assert named_jobs(names, []) == ("geo-a2", "geo-c8-wan")
    assert named_jobs(names, ["wan", "geo-c*"]) == ("geo-c8-wan",)
    with pytest.raises(
        ValueError, match=r"--only geo-typo: matches no run of the study \(runs: geo-a2, geo-c8-wan\)"
    ):
        named_jobs(names, ["geo-a2", "geo-typo"])
    with pytest.raises(ValueError, match="--only '': matches no run of the study"):
        named_jobs(names, [""])


def test_inconsistent_journal_is_refused():
    start = Started(0.0, "a", 1, "r")
    for events in (
        [Started(0.0, "x", 1, "r")],
        [start, start],
        [Ended(0.0, "a", 1, "done")],
        [Begun(0.0, "a", 1)],
        [start, Begun(0.0, "a", 2)],
        [Retry(0.0, ("x",))],
    ):
        with pytest.raises(ValueError, match=r"no run|out of order|not in progress"):
            replay_study([A], 2, events)


def test_run_ids_are_deterministic():
    assert run_id_of("paper-abc-20231114-1a2b", "geo-c8-nlp", 3) == "geo-c8-nlp-20231114-1a2b-3"


ENDS = st.lists(
    st.sampled_from([DONE, BUSY, FAILED, RunEnd("refused"), RunEnd("hangs"), RunEnd("no_capacity")]),
    min_size=1, max_size=4,
)  # fmt: skip


FAULTS = st.tuples(
    st.integers(1, 25), st.sampled_from(["kill", "kill all", "interrupt"]), st.sampled_from([0.0, 86400.0])
)


@settings(max_examples=150)
@given(
    scripts=st.lists(ENDS, min_size=1, max_size=4),
    faults=st.lists(FAULTS, max_size=8),
    retries=st.integers(0, 2),
)
def test_any_faults_give_the_same_results(scripts, faults, retries):
    """The study survives kill -9 at any step, with or without its runs, Ctrl-C, and a day until it is resumed.

    It ends like an undisturbed one, and no run is created twice or in parallel with another.
    """
    jobs = [job(f"j{k}") for k in range(len(scripts))]
    ends = {one.key: script for one, script in zip(jobs, scripts, strict=True)}
    undisturbed = table(runner_of(StudyWorld(ends), jobs, retries).run())
    steps = accumulate(step for step, _, _ in faults)
    world = StudyWorld(ends, faults={at: kind for at, (_, kind, _) in zip(steps, faults, strict=True)})
    for _, _, later_s in faults:
        with suppress(Died, KeyboardInterrupt):
            runner_of(world, jobs, retries).run()
        world.pass_s(later_s)
    world.faults = {}
    state = runner_of(world, jobs, retries).run()
    assert set(world.made.values()) <= {1}
    assert not world.overlapped
    assert not world.going
    assert table(state) == undisturbed


def test_time_left_uses_the_observed_overhead():
    jobs = [A, B, job("c")]
    begun = replay_study(jobs, 2, [])
    assert remaining_s(begun, 0.0) == 3 * (100 + OVERHEAD_S)
    events = [Started(0.0, "a", 1, "r"), Ended(120.0, "a", 1, "done"), Started(120.0, "b", 1, "r")]
    assert remaining_s(replay_study(jobs, 2, events), 150.0) == (120 - 30) + 120
    assert remaining_s(replay_study(jobs, 2, events), 990.0) == 120
    unknown = replay_study([*jobs, job("d", None)], 2, events)
    assert remaining_s(unknown, 150.0) is None
    assert remaining_s(unknown, 150.0, ["c"]) == (120 - 30) + 120  # what goes on, and what will run
    # The study was away before it made the run.
    late = replay_study(jobs, 2, [*events, Begun(5000.0, "b", 1)])
    assert remaining_s(late, 5030.0, ["b"]) == 120 - 30


def test_first_action_is_to_start_the_first_job():
    assert next_action(replay_study([A, B], 2, [])) == Start(A, 1)
