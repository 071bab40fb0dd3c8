"""Several passes with caches: by hand, by brute force, and the known numbers."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_up_samples import many_samples, samples, write_times

from analysis.pipeline.offload import policies
from analysis.pipeline.offload.best import Objective, best, undominated, value_of
from analysis.pipeline.offload.choices import Choice, Choices, Codec, choices_of
from analysis.pipeline.offload.compare import PolicyRow, cheapest, compare_policies, least_bytes
from analysis.pipeline.offload.pass_time import Machines, PassTime, Prices, usd
from analysis.pipeline.offload.passes import (
    Caches,
    MeanPass,
    Problem,
    filled,
    passes_time,
    problem_of,
)
from analysis.pipeline.offload.sample_profile import SampleProfile
from analysis.pipeline.offload.sophon_file import read_sophon

ROOMY = 1e15


def two() -> SampleProfile:
    """Two samples; only the first shrinks."""
    return SampleProfile(
        ["a", "b"],
        ("decode", "crop"),
        np.array([3e5, 1e5]),
        np.array([[2.4e6, 1.5e5], [8e5, 1.5e5]]),
        np.array([[0.016, 0.002], [0.008, 0.002]]),
    )


def test_the_choices_by_hand():
    codec = Codec("zlib", 1, 0.5, 0.003, 0.001)
    profile = two()
    problem = problem_of(profile, choices_of(profile, [codec]), Caches(4, 1e6, 1e6))
    names = problem.names
    assert names[:4] == (Choice(0), Choice(1), Choice(2), Choice(1, "zlib"))
    assert set(names[4:]) == {
        Choice(0, on_client=0), Choice(0, on_client=1), Choice(1, on_client=1), Choice(1, "zlib", on_client=1),
        Choice(0, on_server=0), Choice(1, on_server=0), Choice(1, on_server=1), Choice(2, on_server=0),
        Choice(2, on_server=1), Choice(1, "zlib", on_server=0), Choice(1, "zlib", on_server=1),
    }  # fmt: skip
    first, later = problem.phases
    client, server = problem.caches
    assert (first.share, later.share) == (0.25, 0.75)

    def of(name: Choice) -> list[list[float]]:
        k = names.index(name)
        return [
            [
                float(one[0, k])
                for one in (
                    phase.choices.sent_bytes,
                    phase.choices.server_s,
                    phase.choices.client_s,
                    phase.store_bytes,
                )
            ]
            for phase in problem.phases
        ] + [[float(client.kept_bytes[0, k]), float(server.kept_bytes[0, k])]]

    def close(found: list[list[float]], expected: list[list[float]]) -> None:
        for one, other in zip(found, expected, strict=True):
            assert one == pytest.approx(other)

    close(of(Choice(2)), [[1.5e5, 0.018, 0, 3e5], [1.5e5, 0.018, 0, 3e5], [0, 0]])
    close(of(Choice(0, on_client=0)), [[3e5, 0, 0.018, 3e5], [0, 0, 0.018, 0], [3e5, 0]])
    close(of(Choice(0, on_client=1)), [[3e5, 0, 0.018, 3e5], [0, 0, 0.002, 0], [2.4e6, 0]])
    close(of(Choice(1, on_client=1)), [[2.4e6, 0.016, 0.002, 3e5], [0, 0, 0.002, 0], [2.4e6, 0]])
    close(of(Choice(1, "zlib", on_client=1)), [[1.2e6, 0.019, 0.003, 3e5], [0, 0, 0.003, 0], [1.2e6, 0]])
    close(of(Choice(0, on_server=0)), [[3e5, 0, 0.018, 3e5], [3e5, 0, 0.018, 0], [0, 3e5]])
    close(of(Choice(2, on_server=1)), [[1.5e5, 0.018, 0, 3e5], [1.5e5, 0.002, 0, 0], [0, 2.4e6]])


def test_what_is_random_is_not_cached():
    profile = two()
    choices = choices_of(profile)
    only_raw = problem_of(profile, choices, Caches(2, 1e6, 0, random_from=1)).names[3:]
    assert only_raw == (Choice(0, on_client=0),)
    all_of_it = problem_of(profile, choices, Caches(2, 1e6, 0, random_from=3)).names
    assert Choice(2, on_client=2) in all_of_it
    for one in (Caches(1, 1e6, 1e6), Caches(5, 0, 0)):
        assert problem_of(profile, choices, one).names == choices.names


def test_the_mean_of_passes_by_hand():
    """The client keeps the second sample, the server the first."""
    profile = two()
    choices, machines = choices_of(profile), Machines(0.001, 8e6, 2, 0.5)
    problem = problem_of(profile, choices, Caches(4, 1e5, 3e5))
    chosen = filled(problem, policies.greedy(choices, machines, ["a", "b"]))
    assert [problem.names[k] for k in chosen] == [Choice(2, on_server=0), Choice(0, on_client=0)]
    found = passes_time(problem, chosen, machines)
    assert isinstance(found, MeanPass)
    assert (found.first.seconds, found.later.seconds) == pytest.approx((0.25, 0.15))
    assert found.seconds == pytest.approx(0.25 / 4 + 0.15 * 3 / 4)
    assert (found.sent_bytes, found.store_bytes) == pytest.approx((1.5e5 + 1e5 / 4, 4e5 / 4))
    assert (found.client_cached, found.server_cached, found.offloaded) == (1, 1, 1)
    prices = Prices(1.0, 0.0, 1e-6, 1e-7, 0.5)
    assert usd(found, found.store_bytes, prices) == pytest.approx(1.5 * 0.175 + 0.1 + 0.0175)
    # nothing is offloaded: the server is not used, and keeps nothing
    nothing = filled(problem, policies.none(choices))
    assert [problem.names[k] for k in nothing] == [Choice(0), Choice(0, on_client=0)]
    assert not passes_time(problem, nothing, machines).uses_server


def problems_with_caches(most: int) -> st.SearchStrategy[tuple[SampleProfile, Choices, Machines, Caches]]:
    caches = st.builds(
        Caches,
        st.sampled_from([1.5, 2.0, 10.0]),
        st.sampled_from([0.0, 5e5, 1e6]),
        st.sampled_from([0.0, 5e5, 1e6]),
        st.sampled_from([1, 2, 4]),
    )
    return st.builds(lambda one, own: (*one, own), samples(most=most), caches)


@given(
    problems_with_caches(2),
    st.sampled_from(
        [Objective(), Objective(1e-4, 1e-10), Objective(1e-4, 1e-10, 1e-10), Objective(0.0, 1e-9, 1e-9)]
    ),
)
@settings(max_examples=80)
def test_best_is_brute_force_s(drawn: tuple[SampleProfile, Choices, Machines, Caches], objective: Objective):
    profile, choices, machines, caches = drawn
    problem = problem_of(profile, choices, caches)
    found = best(problem, machines, objective)
    columns = (
        np.arange(len(problem.names)) if machines.storage_cores else np.flatnonzero(~problem.uses_server)
    )
    every = product(columns, repeat=problem.samples)
    least = min(value_of(problem, np.array(one), machines, objective) for one in every)
    assert found.value == pytest.approx(least, rel=1e-6, abs=1e-12)
    assert found.bound <= found.value * (1 + 1e-6) + 1e-12
    assert problem.fits(found.chosen)
    assert undominated(problem)[:, 0].all()


@given(problems_with_caches(2), st.tuples(*[st.sampled_from([0.0, 1.0, 5.0])] * 5))
@settings(max_examples=80)
def test_the_least_dollars_are_brute_force_s(
    drawn: tuple[SampleProfile, Choices, Machines, Caches], usd_of: tuple[float, float, float, float, float]
):
    """Both legs at their own price, and the server, which is rented only if something uses it."""
    profile, choices, machines, caches = drawn
    per_s, direct, into, out, server = usd_of
    prices = Prices(per_s, direct * 1e-6, into * 1e-6, out * 1e-6, server)
    problem = problem_of(profile, choices, caches)
    raw = float(profile.raw_bytes.sum())

    def value(found: PassTime) -> float:
        return usd(found, found.store_bytes if isinstance(found, MeanPass) else raw, prices)

    nothing = policies.none(choices)
    chosen, _, gap = cheapest(problem, machines, [nothing], "usd", prices, value)
    columns = (
        np.arange(len(problem.names)) if machines.storage_cores else np.flatnonzero(~problem.uses_server)
    )
    every = (np.array(one) for one in product(columns, repeat=problem.samples))
    least = min(value(passes_time(problem, one, machines)) for one in every if problem.fits(one))
    assert value(passes_time(problem, chosen, machines)) == pytest.approx(least, rel=1e-6, abs=1e-9)
    assert problem.fits(chosen)
    assert gap <= 1e-5


@given(problems_with_caches(10), st.sampled_from(["time", "usd"]))
@settings(max_examples=40)
def test_no_policy_is_better_than_best(drawn: tuple[SampleProfile, Choices, Machines, Caches], aim: str):
    profile, _, machines, caches = drawn
    prices = Prices(1e-3, 1e-7, 5e-8, 5e-8, 1e-3)
    found = compare_policies(
        profile, machines, aim="usd" if aim == "usd" else "time", prices=prices, caches=caches
    )

    def value(row: PolicyRow) -> float:
        assert row.found is not None
        return (
            row.found.seconds if aim == "time" else float("inf") if row.usd_per_1m is None else row.usd_per_1m
        )

    assert value(found[-1]) <= min(map(value, found)) * (1 + 1e-9) + 1e-12


@pytest.mark.parametrize("caches", [Caches(1, 1e9, 1e9), Caches(7, 0, 0)])
def test_one_pass_or_no_cache_changes_nothing(caches: Caches):
    profile, machines = many_samples(3, 300), Machines(0.1, 430e6, 48, 2)
    prices = Prices(1e-3, 1e-10, 1e-11, 1e-10, 1e-4)
    for aim in ("time", "usd"):
        assert compare_policies(profile, machines, aim=aim, prices=prices, caches=caches) == compare_policies(
            profile, machines, aim=aim, prices=prices
        )


@pytest.mark.parametrize("objective", [Objective(), Objective(1e-4, 1e-11, 1e-11)])
def test_many_samples_are_within_a_thousandth_of_the_bound(objective: Objective):
    profile, machines = many_samples(3, 2000), Machines(0.1, 430e6, 48, 1)
    problem = problem_of(profile, choices_of(profile), Caches(3, 1e8, 2e8))
    found = best(problem, machines, objective)
    assert 0 <= found.gap <= 1e-3
    assert problem.fits(found.chosen)
    assert {problem.names[k].on_client for k in found.chosen} > {None}


def test_where_the_trainer_limits_nothing_uses_the_server():
    profile = many_samples(5, 300)
    problem = problem_of(profile, choices_of(profile), Caches(3, 1e7, 1e9))
    found = best(problem, Machines(1e4, 430e6, 48, 2))
    assert found.value == 1e4
    assert not problem.uses_server[found.chosen].any()


def test_what_leaves_the_store_counts_only_if_it_is_paid_for():
    profile = two()
    problem = problem_of(profile, choices_of(profile), Caches(3, 0, 1e9))
    kept = problem.names.index(Choice(0, on_server=0))
    assert undominated(problem)[:, kept].all()
    assert not undominated(problem, store=False)[:, kept].any()


@pytest.fixture
def openimages(sophon_sizes: Path, tmp_path: Path) -> SampleProfile:
    """The published sizes, with times."""
    write_times(sophon_sizes, tmp_path / "times.csv")
    return read_sophon(sophon_sizes, tmp_path / "times.csv")


def test_at_2_29_passes_a_cached_sample_costs_as_much_as_an_offloaded_one(openimages: SampleProfile):
    """Raw samples are fetched once by a client with room for all, offloaded ones in every pass: raw = passes x least."""
    raw, least = float(openimages.raw_bytes.sum()), least_bytes(openimages)
    assert raw / least == pytest.approx(2.2921, abs=5e-5)
    choices = choices_of(openimages)
    smallest = np.argmin(choices.sent_bytes, axis=1)
    for passes, cheaper in ((2, "offloaded"), (raw / least, "equal"), (3, "cached")):
        problem = problem_of(openimages, choices, Caches(passes, ROOMY))
        machines = Machines(0, 430e6, 48, 1e6)
        cached = passes_time(problem, filled(problem, policies.none(choices)), machines)
        offloaded = passes_time(problem, smallest, machines)
        assert isinstance(cached, MeanPass)
        assert cached.client_cached == 20_000
        assert cached.sent_bytes == pytest.approx(raw / passes)
        ratio = cached.sent_bytes / offloaded.sent_bytes
        assert (ratio > 1.1, ratio < 0.9) == (cheaper == "offloaded", cheaper == "cached")
        assert (ratio == pytest.approx(1)) == (cheaper == "equal")


def test_from_b2_a_caching_server_without_egress_charge_pays_from_the_second_pass_on(
    openimages: SampleProfile,
):
    """The clients' disks are too small, so without the server each pass fetches all from B2 at $0.01 a GB."""
    free_egress = Prices(0.0, 0.01e-9, 0.01e-9, 0.0)
    for passes, verdict, usd_per_1m in ((1, "no_difference", 3.18), (2, "pays", 1.59), (4, "pays", 0.795)):
        rows = {
            row.policy: row
            for row in compare_policies(
                openimages,
                Machines(20, 430e6, 48, 8),
                aim="usd",
                prices=free_egress,
                caches=Caches(passes, 0, ROOMY),
            )
        }
        assert rows["none"].usd_per_1m == pytest.approx(3.18, abs=5e-3)
        assert rows["best"].usd_per_1m == pytest.approx(usd_per_1m, abs=5e-3)
        assert rows["best"].verdict == verdict


def test_what_is_refused():
    for given_, words in (
        ((0.0,), "0 passes are not 1 or more"),
        ((float("nan"),), "nan passes"),
        ((2, -1.0), "the client's cache of -1 bytes"),
        ((2, 0, float("inf")), "the server's cache of inf bytes"),
        ((2, 0, 0, 0), "the first random operation 0 is not 1 or more"),
    ):
        with pytest.raises(ValueError, match=words):
            Caches(*given_)
    profile = two()
    with pytest.raises(ValueError, match="the first random operation 4 is not from 1 to 3"):
        problem_of(profile, choices_of(profile), Caches(2, 1.0, random_from=4))
    with pytest.raises(ValueError, match="is not from 1 to 3"):
        compare_policies(profile, Machines(0, 8e6, 2, 1), caches=Caches(random_from=4))


def test_a_problem_of_one_pass_is_that_of_its_choices():
    profile = two()
    problem = Problem.of(choices_of(profile))
    assert (len(problem.phases), problem.caches, problem.samples) == (1, (), 2)
    assert problem.phases[0].store_bytes[:, 2].tolist() == [3e5, 1e5]
