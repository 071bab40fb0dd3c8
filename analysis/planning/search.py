"""Search the combinations of kinds of VMs for the Pareto set of throughput and dollars: branch and bound. Pure.

A combination is a multiset of kinds (a place and an accelerator). What one achieves, and what its completions can
achieve at best, are functions of a `Space`; `analysis.planning.peer_space` has that of the predictor.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from math import comb
from typing import Protocol

LIMIT = 60_000
"""Default of the number of figures and bounds that a search computes."""
_ROUNDING = 1e-9  # four VMs at $0.18 an hour meet a goal of $0.72, however the floats are rounded


@dataclass(frozen=True, slots=True)
class Figures:
    """What ranks a combination; dollars per hour = dollars per 10^6 samples x samples/s x 3600 / 10^6.

    Dollars are floats: they rank, and none is billed.
    """

    sps: float
    usd_per_h: float
    usd_per_1m: float


class Space(Protocol):
    """Combinations of `kinds` kinds of VMs, which are numbered from 0; a combination is its count of each."""

    @property
    def kinds(self) -> int: ...

    def fits(self, a: int, b: int) -> bool:
        """Whether a combination may have peers of both kinds; a = b: two of it."""
        ...

    def most(self, kind: int) -> int | None:
        """Return how many peers of a kind there may be; None: no limit."""
        ...

    def figures(self, counts: tuple[int, ...]) -> Figures:
        """The figures of a combination whose kinds fit."""
        ...

    def bound(self, counts: tuple[int, ...], kind: int, peers: int) -> Figures | None:
        """Figures that no completion of `counts` to `peers` peers by at least one of kind `kind` or later surpasses.

        None: no such kind fits.
        """
        ...


@dataclass(frozen=True, slots=True)
class Goals:
    """The user's limits; None: no limit."""

    max_usd_per_h: float | None = None
    min_sps: float | None = None
    max_usd_per_1m: float | None = None

    def excess(self, figures: Figures) -> dict[str, float]:
        """Return by how much each goal is missed, as a fraction of it: 0.1 is 10 %; 0 or less: it is met."""
        found: dict[str, float] = {}
        if self.max_usd_per_h is not None:
            found["max_usd_per_h"] = figures.usd_per_h / self.max_usd_per_h - 1
        if self.min_sps is not None:
            found["min_sps"] = self.min_sps / figures.sps - 1 if figures.sps else float("inf")
        if self.max_usd_per_1m is not None:
            found["max_usd_per_1m"] = figures.usd_per_1m / self.max_usd_per_1m - 1
        return {goal: 0.0 if abs(excess) < _ROUNDING else excess for goal, excess in found.items()}

    def met(self, figures: Figures) -> bool:
        """Whether all goals are met."""
        return all(excess <= 0 for excess in self.excess(figures).values())


@dataclass(frozen=True, slots=True)
class Found:
    """A combination of the Pareto set. `space`: its index in the spaces that were searched."""

    space: int
    counts: tuple[int, ...]
    figures: Figures


@dataclass(slots=True)
class Account:
    """How many combinations there are, and what became of each; the other numbers add up to `combinations`."""

    combinations: int = 0
    evaluated: int = 0
    ruled_out: int = 0  # by a bound: none of them can be in the result
    unfit: int = 0  # kinds that cannot train together, or more of a kind than there are
    not_searched: dict[int, int] = field(default_factory=dict)  # by number of peers, because of the limit

    @property
    def complete(self) -> bool:
        """Whether the result is that of all combinations."""
        return not self.not_searched


@dataclass(frozen=True, slots=True)
class Result:
    """The Pareto set, the fastest first, and the account of the search."""

    front: tuple[Found, ...]
    account: Account


@dataclass(frozen=True, slots=True)
class Infeasible:
    """Why no combination meets the goals. Of those searched, if the account is not complete."""

    goals: tuple[str, ...]  # the smallest set of goals, by name, that nothing meets together
    nearest: Found  # the combination whose largest excess over a goal is the smallest
    excess: dict[str, float]  # of the nearest, by goal: 0.1 is 10 %; 0 or less: met


def combinations_of(kinds: int, peers: int) -> int:
    """Return the number of multisets of `peers` peers of `kinds` kinds."""
    return comb(peers + kinds - 1, peers) if kinds else int(peers == 0)


def pareto(
    spaces: Sequence[Space],
    sizes: Sequence[int],
    goals: Goals,
    *,
    limit: int = LIMIT,
    cost: Callable[[Figures], float] = lambda figures: figures.usd_per_1m,
) -> Result:
    """Return the Pareto set of samples/s and `cost` of the combinations of `sizes` peers that meet the goals.

    Combinations with equal samples/s and equal cost count once, the first found. At most `limit` figures and bounds are
    computed: what then is left is in the account, and the combinations of one kind alone are computed first.
    """
    front: list[Found] = []
    account = Account(
        combinations=sum(combinations_of(space.kinds, n) for space in spaces for n in sizes),
    )
    steps = 0

    def take(number: int, counts: tuple[int, ...]) -> None:
        figures = spaces[number].figures(counts)
        if not goals.met(figures) or _dominated(front, figures, cost):
            return
        front[:] = [f for f in front if not _at_least(figures, f.figures, cost)]
        front.append(Found(number, counts, figures))

    for number, counts in _alone(spaces, sizes):  # good combinations early make more bounds useful
        if steps < limit:
            steps += 1
            take(number, counts)
    for n in sizes:
        for number, space in enumerate(spaces):
            # Each node: counts so far, the next kind that may be added, combinations below it.
            zero = (0,) * space.kinds
            stack = [(zero, 0, combinations_of(space.kinds, n))] if space.kinds else []
            while stack:
                counts, kind, below = stack.pop()
                left = n - sum(counts)
                if left and not _fits_all(space, counts):
                    account.unfit += below
                    continue
                if steps >= limit:
                    account.not_searched[n] = account.not_searched.get(n, 0) + below
                    continue
                if not left:
                    if _fits_all(space, counts):
                        steps += 1
                        account.evaluated += 1
                        take(number, counts)
                    else:
                        account.unfit += 1
                    continue
                if any(counts):
                    steps += 1
                    best = space.bound(counts, kind, n)
                    if best is None:
                        account.unfit += below
                        continue
                    best = _within(best, goals)
                    if not goals.met(best) or _dominated(front, best, cost):
                        account.ruled_out += below
                        continue
                stack += _children(space.kinds, counts, kind, left)
    front.sort(key=lambda found: -found.figures.sps)
    return Result(tuple(front), account)


def meeting(result: Result, goals: Goals) -> Result:
    """Reduce the Pareto set of samples/s and dollars per hour to that of samples/s and $/10^6 samples within goals.

    Nothing is lost: what is faster or equal, and cheaper or equal per hour, is so per sample, and meets the same goals.
    """
    front: list[Found] = []
    for found in result.front:
        if goals.met(found.figures) and not _dominated(front, found.figures, _per_1m):
            front = [f for f in front if not _at_least(found.figures, f.figures, _per_1m)]
            front.append(found)
    return Result(tuple(front), result.account)


def infeasible(result: Result, goals: Goals) -> Infeasible | None:
    """Say which goals nothing meets, from the Pareto set of samples/s and dollars per hour without goals.

    That set decides: whatever is as fast and as cheap per hour is as cheap per sample. None: all goals are met by a
    combination, or there is none at all.
    """
    if not result.front or any(goals.met(found.figures) for found in result.front):
        return None
    excesses = [goals.excess(found.figures) for found in result.front]
    names = tuple(excesses[0])
    smallest = next(
        some
        for size in range(1, len(names) + 1)
        for some in combinations(names, size)
        if all(any(excess[name] > 0 for name in some) for excess in excesses)
    )
    nearest = min(range(len(excesses)), key=lambda k: max(excesses[k].values()))
    return Infeasible(smallest, result.front[nearest], excesses[nearest])


def _alone(spaces: Sequence[Space], sizes: Sequence[int]) -> Iterator[tuple[int, tuple[int, ...]]]:
    for n in sizes:
        for number, space in enumerate(spaces):
            for kind in range(space.kinds):
                counts = tuple(n if k == kind else 0 for k in range(space.kinds))
                if _fits_all(space, counts):
                    yield number, counts


def _children(
    kinds: int, counts: tuple[int, ...], kind: int, left: int
) -> list[tuple[tuple[int, ...], int, int]]:
    """Return the nodes below a node: the next kind that is used, and how many of it; the fullest last."""
    found: list[tuple[tuple[int, ...], int, int]] = []
    for k in range(kind, kinds):
        for count in range(1, left + 1):
            below = combinations_of(kinds - k - 1, left - count)
            if below:
                found.append(((*counts[:k], count, *counts[k + 1 :]), k + 1, below))
    return found


def _within(best: Figures, goals: Goals) -> Figures:
    """Return a bound of only those completions that meet the goal per hour: $/h is $/10^6 samples x samples/s."""
    if goals.max_usd_per_h is None or best.usd_per_1m <= 0:
        return best
    most_sps = goals.max_usd_per_h / (best.usd_per_1m * 3600 / 1e6) * (1 + 1e-9)
    return replace(best, sps=min(best.sps, most_sps))


def _fits_all(space: Space, counts: tuple[int, ...]) -> bool:
    used = [k for k, count in enumerate(counts) if count]
    if any(counts[k] > (space.most(k) or counts[k]) for k in used):
        return False
    return all(counts[k] == 1 or space.fits(k, k) for k in used) and all(
        space.fits(a, b) for a, b in combinations(used, 2)
    )


def _per_1m(figures: Figures) -> float:
    return figures.usd_per_1m


def _at_least(a: Figures, b: Figures, cost: Callable[[Figures], float]) -> bool:
    """Whether `a` is as fast as `b` and costs as little."""
    return a.sps >= b.sps and cost(a) <= cost(b)


def _dominated(front: Sequence[Found], figures: Figures, cost: Callable[[Figures], float]) -> bool:
    return any(_at_least(found.figures, figures, cost) for found in front)
