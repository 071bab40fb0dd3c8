"""Several jobs on one server: how many of its cores each gets, so that the weighted sum of their passes is least."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

LEAST_GAIN = 1e-3
"""Of a pass in which nothing is offloaded: a smaller gain is none."""


@dataclass(frozen=True, slots=True)
class Demand:
    """One job. `pass_s`: seconds of its pass with 0, 1, 2, ... cores of the server, inf: impossible.

    `least_gain`: of the pass without a core, from 0 to 1; a smaller gain is none, as within the profile's interval. Raises
    ValueError for a weight that is not above 0, no seconds, seconds that are negative or NaN, and such a `least_gain`.
    """

    weight: float
    pass_s: Sequence[float]
    least_gain: float = LEAST_GAIN

    def __post_init__(self) -> None:
        if not 0 < self.weight < math.inf:
            raise ValueError(f"the weight {self.weight:g} is not above 0")
        if not 0 <= self.least_gain < 1:
            raise ValueError(f"the least gain {self.least_gain:g} is not from 0 to 1")
        if not self.pass_s or not all(seconds >= 0 for seconds in self.pass_s) or math.isinf(self.pass_s[0]):
            raise ValueError("a job needs the seconds of its pass with 0, 1, 2, ... cores")

    @property
    def counted_s(self) -> list[float]:
        """`pass_s` without gains that are none: seconds fall only by more than the least gain, else they stay."""
        least = self.least_gain * self.pass_s[0]
        counted = [self.pass_s[0]]
        for seconds in self.pass_s[1:]:
            kept = counted[-1]
            counted.append(seconds if seconds < kept and kept - seconds >= least else kept)
        return counted


def share_cores(demands: Sequence[Demand], cores: int) -> list[int]:
    """Cores of each job, with the least weighted sum of the counted seconds over all splits, and of these the fewest.

    Passes need not get shorter by less and less from core to core, so it is dynamic programming rather than the largest
    marginal gain; where they do, both find the same. Raises ValueError for cores below 0, and for a job whose seconds are
    not known up to all cores.
    """
    if cores < 0:
        raise ValueError(f"{cores} cores are fewer than none")
    if any(len(demand.pass_s) <= cores for demand in demands):
        raise ValueError(f"a job needs the seconds of its pass with each number of cores up to {cores}")
    # the least sum of the jobs so far with at most that many cores, and those used
    least = [(0.0, 0)] * (cores + 1)
    taken: list[list[int]] = []
    for demand in demands:
        counted = demand.counted_s
        before, least, own = least, [], []
        for most in range(cores + 1):
            others = [before[most - mine] for mine in range(most + 1)]
            sums = [
                (value + demand.weight * counted[mine], used + mine)
                for mine, (value, used) in enumerate(others)
            ]
            own.append(min(range(most + 1), key=sums.__getitem__))
            least.append(sums[own[-1]])
        taken.append(own)
    shares: list[int] = []
    for own in reversed(taken):
        shares.append(own[cores])
        cores -= own[cores]
    return shares[::-1]


def pass_by_cores(seconds: Callable[[int], float], cores: int, *, least_gain: float) -> list[float]:
    """Seconds of the best pass with 0 to `cores` cores, which no core makes longer.

    `seconds` is asked for few of them: once a pass is as short as with all cores but for less than `least_gain` (of the
    pass without a core), the rest take as long.
    """
    found = [seconds(0)]
    if not cores:
        return found
    last = seconds(cores)
    for count in range(1, cores + 1):
        if found[-1] <= last or found[-1] - last < least_gain * found[0]:
            return [*found, *[found[-1]] * (cores - len(found) + 1)]
        found.append(min(found[-1], seconds(count) if count < cores else last))
    return found
