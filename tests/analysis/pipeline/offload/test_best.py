"""The best choices are those of brute force, and never worse than any policy."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_up_samples import many, problems

from analysis.pipeline.offload import policies
from analysis.pipeline.offload.best import Objective, best, undominated, value_of
from analysis.pipeline.offload.choices import Choices, choices_of
from analysis.pipeline.offload.compare import cheapest
from analysis.pipeline.offload.pass_time import Machines, PassTime, Prices, pass_time, usd
from analysis.pipeline.offload.sample_profile import SampleProfile

OBJECTIVES = st.sampled_from(
    [Objective(), Objective(1e-4, 1e-10), Objective(1e-3, 0.0), Objective(0.0, 1e-9)]
)


@given(problems(most=4), OBJECTIVES)
@settings(max_examples=60, deadline=None)
def test_best_is_brute_force_s(problem: tuple[Choices, Machines, list[str]], objective: Objective):
    choices, machines, _ = problem
    found = best(choices, machines, objective)
    n, c = choices.sent_bytes.shape
    possible = range(c) if machines.storage_cores else range(1)
    least = min(value_of(choices, np.array(one), machines, objective) for one in product(possible, repeat=n))
    assert found.value == pytest.approx(least, rel=1e-6, abs=1e-12)
    assert found.bound <= found.value * (1 + 1e-6) + 1e-12


@given(problems(most=10), OBJECTIVES)
@settings(max_examples=40, deadline=None)
def test_dominated_choices_are_never_needed(
    problem: tuple[Choices, Machines, list[str]], objective: Objective
):
    """Up to 10 samples, by brute force over the choices that are left if these are not too many."""
    choices, machines, keys = problem
    kept = undominated(choices)
    assert kept[:, 0].all()
    found = best(choices, machines, objective)
    others = [
        policies.none(choices),
        *(
            (policies.everything(choices), policies.greedy(choices, machines, keys))
            if machines.storage_cores
            else ()
        ),
    ]
    for other in others:
        assert found.value <= value_of(choices, other, machines, objective) * (1 + 1e-6) + 1e-12
    supports = (
        [np.flatnonzero(row) for row in kept] if machines.storage_cores else [np.zeros(1, int)] * len(kept)
    )
    if np.prod([float(len(one)) for one in supports]) <= 3000:
        least = min(value_of(choices, np.array(one), machines, objective) for one in product(*supports))
        assert found.value == pytest.approx(least, rel=1e-6, abs=1e-12)


PRICES = st.tuples(*[st.sampled_from([0.0, 1.0, 5.0])] * 5)


@given(problems(most=3), PRICES)
@settings(max_examples=80, deadline=None)
def test_the_least_dollars_are_brute_force_s(
    problem: tuple[Choices, Machines, list[str]], usd_of: tuple[float, float, float, float, float]
):
    """With its own price for each leg, and for the server, which is only rented if something is offloaded."""
    choices, machines, _ = problem
    per_s, direct, into, out, server = usd_of
    prices = Prices(per_s, direct * 1e-6, into * 1e-6, out * 1e-6, server)
    raw = float(choices.sent_bytes[:, 0].sum())

    def value(found: PassTime) -> float:
        return usd(found, raw, prices)

    n, c = choices.sent_bytes.shape
    nothing = policies.none(choices)
    chosen, _, gap = cheapest(choices, machines, [nothing], "usd", prices, value)
    every = product(range(c), repeat=n) if machines.storage_cores else [tuple(nothing)]
    least = min(value(pass_time(choices, np.array(one), machines)) for one in every)
    reached = value(pass_time(choices, chosen, machines))
    assert reached == pytest.approx(least, rel=1e-6, abs=1e-9)
    assert gap <= 1e-5


@pytest.mark.parametrize("cores", [0.5, 1, 4])
@pytest.mark.parametrize("client", [0.5, 48])
def test_many_samples_are_within_a_thousandth_of_the_bound(cores: float, client: float):
    choices, machines = many(3, 3000), Machines(1.0, 430e6, client, cores)
    for objective in (Objective(), Objective(1e-4, 1e-11)):
        found = best(choices, machines, objective)
        assert 0 <= found.gap <= 1e-3
        for other in (
            policies.none(choices),
            policies.greedy(choices, machines, list(map(str, range(3000)))),
        ):
            assert found.value <= value_of(choices, other, machines, objective) * (1 + 1e-3)


def test_where_the_client_s_cpu_limits_it_is_relieved():
    """Greedy offloads for the network only, and does nothing here."""
    choices, machines = many(5, 500), Machines(0.1, 1e12, 1, 2)
    assert not policies.greedy(choices, machines, list(map(str, range(500)))).any()
    assert best(choices, machines).value < 0.7 * value_of(
        choices, policies.none(choices), machines, Objective()
    )


def test_where_the_trainer_limits_nothing_is_offloaded():
    choices, machines = many(5, 500), Machines(1e4, 430e6, 48, 2)
    found = best(choices, machines)
    assert not found.chosen.any()
    assert (found.value, found.gap) == (1e4, 0.0)


def test_with_some_offloaded_a_choice_worse_than_sending_as_stored_may_be_the_best():
    """The first sample takes the server 100 s; the second grows by a byte, which its choice as stored is better than."""
    profile = SampleProfile(
        ["a", "b"],
        ("op",),
        np.array([1000.0, 1000.0]),
        np.array([[10.0], [1001.0]]),
        np.array([[100.0], [0.0]]),
    )
    choices, machines = choices_of(profile), Machines(0.0, 8e3, 1e4, 1)
    assert undominated(choices)[1].tolist() == [True, False]
    assert undominated(choices, some=True)[1].tolist() == [True, True]
    found = best(choices, machines, some=True)
    assert found.chosen.tolist() == [0, 1]
    assert found.bound <= found.value * (1 + 1e-9)
    assert found.gap < 1e-6
