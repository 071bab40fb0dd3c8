"""Cores of one server shared among jobs: the split of brute force, and no core for a gain that is none."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_up_samples import many, problems, write_times

from analysis.pipeline.offload.best import best
from analysis.pipeline.offload.choices import Choices, choices_of
from analysis.pipeline.offload.pass_time import Machines
from analysis.pipeline.offload.sharing import Demand, pass_by_cores, share_cores
from analysis.pipeline.offload.sophon_file import read_sophon

MOST = 5
DEMANDS = st.lists(
    st.builds(
        Demand,
        st.sampled_from([0.5, 1.0, 2.0, 7.0]),
        st.lists(st.integers(1, 20).map(float), min_size=MOST + 1, max_size=MOST + 1),
        st.sampled_from([0.0, 1e-3, 0.1]),
    ),
    max_size=4,
)


def weighted(demands: list[Demand], split: tuple[int, ...] | list[int]) -> float:
    return sum(one.weight * one.counted_s[cores] for one, cores in zip(demands, split, strict=True))


@given(DEMANDS, st.integers(0, MOST))
def test_the_split_is_brute_force_s(demands: list[Demand], cores: int):
    """Also where passes get shorter by more from core to core, which misleads marginal gains."""
    shares = share_cores(demands, cores)
    splits = [one for one in product(range(cores + 1), repeat=len(demands)) if sum(one) <= cores]
    least = min(weighted(demands, one) for one in splits)
    assert weighted(demands, shares) == pytest.approx(least)
    assert sum(shares) == min(
        sum(one) for one in splits if weighted(demands, one) <= weighted(demands, shares) * (1 + 1e-12)
    )


@given(DEMANDS, st.integers(0, MOST))
def test_where_each_core_gains_less_it_is_the_marginal_gain_s(demands: list[Demand], cores: int):
    convex = []
    for one in demands:
        gains = sorted((a - b for a, b in zip(one.pass_s, one.pass_s[1:], strict=False)), reverse=True)
        gains = [max(0.0, gain) for gain in gains]
        start = sum(gains) + 1
        convex.append(Demand(one.weight, [start - sum(gains[:c]) for c in range(MOST + 1)], 0.0))
    shares = [0] * len(convex)
    for _ in range(cores):
        gains = [
            one.weight * (one.pass_s[c] - one.pass_s[c + 1]) if c < MOST else 0.0
            for one, c in zip(convex, shares, strict=True)
        ]
        if not gains or max(gains) <= 0:
            break
        shares[gains.index(max(gains))] += 1
    assert weighted(convex, share_cores(convex, cores)) == pytest.approx(weighted(convex, shares))


@given(problems(most=3), problems(most=3), st.sampled_from([1.0, 3.0]))
def test_jobs_with_profiles_are_shared_as_by_brute_force(
    one: tuple[Choices, Machines, list[str]], other: tuple[Choices, Machines, list[str]], weight: float
):
    def curve(choices: Choices, machines: Machines) -> list[float]:
        def seconds(cores: int) -> float:
            own = Machines(machines.trainer_s, machines.bandwidth_bps, machines.client_cores, cores)
            return best(choices, own).value

        return pass_by_cores(seconds, 3, least_gain=0.0)

    a, b = curve(*one[:2]), curve(*other[:2])
    shares = share_cores([Demand(weight, a, 0.0), Demand(1.0, b, 0.0)], 3)
    least = min(weight * a[x] + b[y] for x in range(4) for y in range(4) if x + y <= 3)
    assert weight * a[shares[0]] + b[shares[1]] == pytest.approx(least)


def test_a_gain_that_is_none_gets_no_core():
    small = Demand(100.0, [100.0, 99.95, 99.93])
    assert share_cores([small, Demand(1.0, [100.0, 90.0, 85.0])], 2) == [0, 2]
    within = Demand(1.0, [100.0, 96.0, 93.0], 0.05)  # the first core gains less than 5 %, both gain more
    assert within.counted_s == [100.0, 100.0, 93.0]
    assert share_cores([within], 1) == [0]
    assert share_cores([within], 2) == [2]
    assert share_cores([], 4) == []


def test_two_jobs_of_the_published_sizes(sophon_sizes: Path, tmp_path: Path):
    """The one with twice the weight gets more of four cores; the passes are those of the known numbers."""
    write_times(sophon_sizes, tmp_path / "times.csv")
    choices = choices_of(read_sophon(sophon_sizes, tmp_path / "times.csv"))

    def seconds(cores: int) -> float:
        return best(choices, Machines(20, 430e6, 48, cores), little_work=False).value

    curve = pass_by_cores(seconds, 4, least_gain=1e-3)
    assert curve == pytest.approx([118.38, 76.69, 63.56, 56.76, 53.08], abs=0.01)
    assert share_cores([Demand(2.0, curve), Demand(1.0, curve)], 4) == [3, 1]


def test_few_passes_are_calculated():
    asked = []

    def seconds(cores: int) -> float:
        asked.append(cores)
        return max(10.0, 100.0 / (1 + 3 * cores))

    assert pass_by_cores(seconds, 64, least_gain=1e-3) == [100.0, 25.0, 100 / 7, *[10.0] * 62]
    assert sorted(asked) == [0, 1, 2, 3, 64]
    assert pass_by_cores(lambda _: 5.0, 0, least_gain=0.0) == [5.0]


def test_the_least_work_is_a_matter_of_ties_only():
    choices = many(7, 500)
    machines = Machines(0.1, 430e6, 48, 2)
    assert best(choices, machines, little_work=False).value == pytest.approx(
        best(choices, machines).value, rel=1e-5
    )


def test_what_is_refused():
    for demand, words in (
        ((0.0, [1.0]), "the weight 0 is not above 0"),
        ((float("nan"), [1.0]), "the weight nan is not above 0"),
        ((1.0, [1.0], 1.0), "the least gain 1 is not from 0 to 1"),
        ((1.0, []), "needs the seconds of its pass"),
        ((1.0, [1.0, float("nan")]), "needs the seconds of its pass"),
        ((1.0, [float("inf"), 1.0]), "needs the seconds of its pass"),
    ):
        with pytest.raises(ValueError, match=words):
            Demand(*demand)
    with pytest.raises(ValueError, match="-1 cores are fewer than none"):
        share_cores([], -1)
    with pytest.raises(ValueError, match="with each number of cores up to 2"):
        share_cores([Demand(1.0, [2.0, 1.0])], 2)
