"""The search for the Pareto set: equal to brute force with figures of our own, bounded, with an account that adds up."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import combinations_with_replacement

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analysis.planning.search import Figures, Goals, Result, combinations_of, infeasible, meeting, pareto


@dataclass(frozen=True)
class Made:
    """A space by simple laws: rates and prices add up, each round takes longer with the peers and the slowest kind."""

    rates: tuple[float, ...]
    prices: tuple[float, ...]
    rounds: tuple[float, ...]
    apart: frozenset[tuple[int, int]] = frozenset()
    limits: tuple[int | None, ...] = ()

    @property
    def kinds(self) -> int:
        return len(self.rates)

    def fits(self, a: int, b: int) -> bool:
        return (min(a, b), max(a, b)) not in self.apart

    def most(self, kind: int) -> int | None:
        return self.limits[kind] if self.limits else None

    def _made(self, rate: float, price: float, slowest: float, peers: int) -> Figures:
        sps = 1000 / (1000 / rate + slowest * (1 + 0.1 * peers))
        return Figures(sps, price, price / 3600 / sps * 1e6)

    def figures(self, counts: tuple[int, ...]) -> Figures:
        rate = sum(c * r for c, r in zip(counts, self.rates, strict=True))
        price = sum(c * p for c, p in zip(counts, self.prices, strict=True))
        slowest = max(self.rounds[k] for k, c in enumerate(counts) if c)
        return self._made(rate, price, slowest, sum(counts))

    def bound(self, counts: tuple[int, ...], kind: int, peers: int) -> Figures | None:
        used = [k for k, c in enumerate(counts) if c]
        rest = [k for k in range(kind, self.kinds) if all(self.fits(k, u) for u in used)]
        if not rest:
            return None
        left = peers - sum(counts)
        rate = sum(c * r for c, r in zip(counts, self.rates, strict=True))
        price = sum(c * p for c, p in zip(counts, self.prices, strict=True))
        best = self._made(
            rate + left * max(self.rates[k] for k in rest),
            price + left * min(self.prices[k] for k in rest),
            max(self.rounds[k] for k in used),
            peers,
        )
        return Figures(best.sps * (1 + 1e-9), best.usd_per_h * (1 - 1e-9), best.usd_per_1m * (1 - 1e-9))


def everything(space: Made, sizes: range) -> list[Figures]:
    """The figures of all combinations that fit, one after the other."""
    found: list[Figures] = []
    for n in sizes:
        for chosen in combinations_with_replacement(range(space.kinds), n):
            few = all(chosen.count(k) <= (space.most(k) or n) for k in chosen)
            if few and all(space.fits(a, b) for i, a in enumerate(chosen) for b in chosen[i + 1 :]):
                found.append(space.figures(tuple(chosen.count(k) for k in range(space.kinds))))
    return found


def best_of(figures: list[Figures], goals: Goals, cost: str) -> set[tuple[float, float]]:
    """The Pareto set by comparing all with all."""
    some = {(f.sps, getattr(f, cost)) for f in figures if goals.met(f)}
    return {p for p in some if not any(q != p and q[0] >= p[0] and q[1] <= p[1] for q in some)}


def points(result: Result, cost: str) -> set[tuple[float, float]]:
    return {(found.figures.sps, getattr(found.figures, cost)) for found in result.front}


NUMBER = st.floats(0.1, 10, allow_nan=False)


@st.composite
def spaces(draw: st.DrawFn) -> Made:
    k = draw(st.integers(1, 4))
    some = st.lists(NUMBER, min_size=k, max_size=k).map(tuple)
    pairs = st.tuples(st.integers(0, k - 1), st.integers(0, k - 1)).map(lambda p: (min(p), max(p)))
    limits = draw(st.lists(st.one_of(st.none(), st.integers(1, 3)), min_size=k, max_size=k).map(tuple))
    return Made(draw(some), draw(some), draw(some), frozenset(draw(st.sets(pairs, max_size=3))), limits)


LIMITS = st.one_of(st.none(), st.floats(0.1, 60))
GOALS = st.builds(Goals, LIMITS, LIMITS, st.one_of(st.none(), st.floats(1, 1000)))


@settings(max_examples=300, deadline=None)
@given(spaces(), st.integers(1, 3), st.integers(0, 3), GOALS)
def test_equal_to_brute_force(space: Made, low: int, more: int, goals: Goals):
    sizes = range(low, low + more + 1)
    every = everything(space, sizes)
    found = pareto([space], sizes, goals)
    assert points(found, "usd_per_1m") == best_of(every, goals, "usd_per_1m")
    by_hour = pareto([space], sizes, Goals(), cost=lambda f: f.usd_per_h)
    assert points(by_hour, "usd_per_h") == best_of(every, Goals(), "usd_per_h")
    assert points(meeting(by_hour, goals), "usd_per_1m") == best_of(every, goals, "usd_per_1m")
    account = found.account
    assert account.complete
    assert account.combinations == sum(combinations_of(space.kinds, n) for n in sizes)
    assert account.combinations == account.evaluated + account.ruled_out + account.unfit
    assert account.combinations - account.unfit >= len(best_of(every, goals, "usd_per_1m"))
    why = infeasible(by_hour, goals)
    if not every or any(goals.met(f) for f in every):
        assert why is None
        return
    assert why is not None
    only = {name: getattr(goals, name) for name in why.goals}
    assert not any(Goals(**only).met(f) for f in every)
    for name in why.goals:  # without any one of them the others can be met
        assert any(Goals(**{**only, name: None}).met(f) for f in every)
    least = min(max(goals.excess(f).values()) for f in every)
    assert max(why.excess.values()) == pytest.approx(least)


@given(spaces(), st.integers(2, 4), st.integers(0, 30))
def test_a_cut_search_says_what_it_left_out(space: Made, peers: int, limit: int):
    sizes = range(2, peers + 1)
    result = pareto([space], sizes, Goals(), limit=limit)
    account = result.account
    left = sum(account.not_searched.values())
    assert account.combinations == account.evaluated + account.ruled_out + account.unfit + left
    assert account.evaluated <= limit
    every = best_of(everything(space, sizes), Goals(), "usd_per_1m")
    if account.complete:
        assert points(result, "usd_per_1m") == every


def test_a_goal_that_is_met_exactly_is_met():
    goals = Goals(max_usd_per_h=0.72, max_usd_per_1m=1.0, min_sps=0.72e6 / 3600)
    assert goals.met(Figures(0.72e6 / 3600 - 1e-12, 0.7200000000000001, 1.0000000000000002))
    assert goals.excess(Figures(400.0, 0.7200000000000001, 1.5)) == {
        "max_usd_per_h": 0.0, "min_sps": pytest.approx(-0.5), "max_usd_per_1m": 0.5,
    }  # fmt: skip
    assert not goals.met(Figures(200.0, 0.72001, 1.0))


def test_several_spaces_share_one_front():
    slow, fast = Made((1.0,), (1.0,), (1.0,)), Made((2.0,), (1.0,), (1.0,))
    result = pareto([slow, fast], range(2, 4), Goals())
    assert {found.space for found in result.front} == {1}
    assert result.account.combinations == 4


def test_a_million_combinations_end_in_bounded_time():
    kinds = 12
    rates = tuple(1 + math.sin(k) ** 2 for k in range(kinds))
    space = Made(rates, tuple(r**1.5 for r in rates), tuple(0.1 + math.cos(k) ** 2 for k in range(kinds)))
    calls = 0

    class Counted(Made):
        def figures(self, counts: tuple[int, ...]) -> Figures:
            nonlocal calls
            calls += 1
            return super().figures(counts)

        def bound(self, counts: tuple[int, ...], kind: int, peers: int) -> Figures | None:
            nonlocal calls
            calls += 1
            return super().bound(counts, kind, peers)

    result = pareto(
        [Counted(space.rates, space.prices, space.rounds)], range(2, 17), Goals(min_sps=5), limit=5_000
    )
    assert result.account.combinations > 10**6
    assert calls <= 5_000
    assert result.front
    assert not result.account.complete
    assert set(result.account.not_searched) <= set(range(2, 17))


def test_the_number_of_combinations():
    assert combinations_of(4, 3) == len(list(combinations_with_replacement(range(4), 3)))
    assert (combinations_of(0, 0), combinations_of(0, 2), combinations_of(3, 0)) == (1, 0, 1)
