"""The best choices: for each sample any prefix and codec, as one linear program, rounded.

Minimise a T + sum of sent bytes x price, where T is at least the trainer's, the client's, the server's and the network's
time. The program's optimum bounds every choice of whole samples from below.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np
import numpy.typing as npt

from analysis.pipeline.offload.choices import Choices
from analysis.pipeline.offload.pass_time import Assignment, Machines, pass_time

_AS_INTEGERS = 64  # samples, up to which whole ones are chosen exactly
_INTEGERS_S = 20.0  # that this may take; the best found so far counts then, with its bound
_MOST_MOVES = 100  # of single samples, after rounding
_MOST_TRIED = 4096  # combinations of the fractional samples
_WHOLE = 1e-6
_SLACK = 1e-9  # of the time, while the server's work is made small


class SolverError(Exception):
    """HiGHS found no solution."""


@dataclass(frozen=True, slots=True)
class Objective:
    """What is minimised: `per_s` x seconds of a pass + `per_byte` x sent bytes. `time` is seconds alone."""

    per_s: float = 1.0
    per_byte: float = 0.0


TIME = Objective()


@dataclass(frozen=True)
class Best:
    """The choices, the objective's value, and the bound that no choice is below."""

    chosen: Assignment
    value: float
    bound: float

    @property
    def gap(self) -> float:
        """How far the value is above the bound, of the bound."""
        return 0.0 if self.bound <= 0 else max(0.0, self.value / self.bound - 1)


def value_of(choices: Choices, chosen: Assignment, machines: Machines, objective: Objective) -> float:
    """The objective's value."""
    found = pass_time(choices, chosen, machines)
    return objective.per_s * found.seconds + objective.per_byte * found.sent_bytes


def best(
    choices: Choices,
    machines: Machines,
    objective: Objective = TIME,
    *,
    some: bool = False,
    little_work: bool = True,
) -> Best:
    """Solve the program, round it, and move single samples while that helps.

    `some`: at least one sample must be offloaded, which needs a core of the server. `little_work`: of many samples and
    equal times, the server's work is small, which takes as long again to find. Raises SolverError.
    """
    if not machines.storage_cores:
        nothing = np.zeros(choices.samples, dtype=np.intp)
        value = value_of(choices, nothing, machines, objective)
        return Best(nothing, value, value)
    whole = choices.samples <= _AS_INTEGERS
    program = _Program(choices, machines, objective, some=some)
    shares, bound = program.solve(whole=whole)
    if little_work and not whole and objective.per_byte == 0 and not some:
        with suppress(SolverError):  # the first solution is as good
            shares, _ = program.solve(whole=False, most=bound * (1 + _SLACK))
    chosen = _rounded(choices, machines, objective, program.table(shares))
    chosen = _moved(choices, machines, objective, chosen, some=some)
    return Best(chosen, value_of(choices, chosen, machines, objective), bound)


def undominated(choices: Choices, *, some: bool = False) -> npt.NDArray[np.bool_]:
    """(n, c): choices of which no other one of the sample is as good in bytes, server's and client's seconds.

    Of equal ones the first stays, and sending as stored always does. With `some`, sending as stored rules nothing out.
    """
    n, c = choices.sent_bytes.shape
    costs = np.stack([choices.sent_bytes, choices.server_s, choices.client_s], axis=2)
    kept = np.ones((n, c), dtype=bool)
    for one in range(1, c):
        for other in range(1 if some else 0, c):
            if other == one:
                continue
            as_good = (costs[:, other] <= costs[:, one]).all(axis=1)
            better = (costs[:, other] < costs[:, one]).any(axis=1)
            kept[:, one] &= ~(as_good & (better | (other < one)))
    return kept


class _Program:
    """Variables: a share of each undominated choice but the first one, which takes the rest, and T.

    HiGHS has absolute tolerances, so T and the objective are in units of what they are if nothing is offloaded.
    """

    def __init__(self, choices: Choices, machines: Machines, objective: Objective, *, some: bool) -> None:
        from scipy.sparse import csr_array, vstack

        kept = undominated(choices, some=some)
        kept[:, 0] = False
        self._shape = kept.shape
        self._rows, self._columns = np.nonzero(kept)
        count = len(self._rows)

        def change(values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
            return (values - values[:, :1])[self._rows, self._columns]

        by_byte = 8 / machines.bandwidth_bps
        self._server = change(choices.server_s)
        sent = change(choices.sent_bytes)
        base = pass_time(choices, np.zeros(choices.samples, dtype=np.intp), machines)
        unit_s = base.seconds or 1.0
        self._unit = objective.per_s * base.seconds + objective.per_byte * base.sent_bytes or 1.0
        times = np.vstack(
            [
                np.append(change(choices.client_s) / machines.client_cores / unit_s, -1.0),
                np.append(self._server / machines.storage_cores / unit_s, -1.0),
                np.append(sent * by_byte / unit_s, -1.0),
            ]
        )
        used = csr_array((np.ones(count), (self._rows, np.arange(count))), shape=(choices.samples, count + 1))
        self._matrix: Any = vstack([csr_array(times), used[np.unique(self._rows)]]).tocsr()
        limits = [-base.t_cc_s / unit_s, -base.t_cs_s / unit_s, -base.t_net_s / unit_s]
        self._limits: Any = np.concatenate([limits, np.ones(len(np.unique(self._rows)))])
        if some and count:
            self._matrix = vstack([self._matrix, csr_array(np.append(-np.ones(count), 0.0)[None, :])]).tocsr()
            self._limits = np.append(self._limits, -1.0)
        self._cost = np.append(objective.per_byte * sent, objective.per_s * unit_s) / self._unit
        self._fixed = objective.per_byte * base.sent_bytes
        self._least = machines.trainer_s / unit_s

    def solve(self, *, whole: bool, most: float | None = None) -> tuple[npt.NDArray[np.float64], float]:
        """Shares and the optimum, which is a bound. `most`: rather the least server's work up to this value."""
        from scipy.optimize import Bounds, LinearConstraint, linprog, milp

        count = len(self._rows)
        lower: Any = np.append(np.zeros(count), self._least)
        upper: Any = np.append(np.ones(count), np.inf)
        if whole:
            found: Any = milp(
                self._cost,
                integrality=np.append(np.ones(count), 0),
                bounds=Bounds(lower, upper),
                constraints=LinearConstraint(self._matrix, ub=self._limits),
                options={"mip_rel_gap": 0.0, "time_limit": _INTEGERS_S},
            )
        else:
            matrix, limits, cost = self._matrix, self._limits, self._cost
            if most is not None:
                from scipy.sparse import csr_array, vstack

                matrix = vstack([matrix, csr_array(self._cost[None, :])]).tocsr()
                limits = np.append(limits, (most - self._fixed) / self._unit)
                cost = np.append(self._server / (self._server.max(initial=0.0) or 1.0), 0.0)
            bounds = [(0, 1)] * count + [(self._least, None)]
            for method in ("highs", "highs-ipm"):  # the simplex method may fail where the other one does not
                found = linprog(cost, A_ub=matrix, b_ub=limits, bounds=bounds, method=method)
                if found.status == 0:
                    break
        stopped = whole and found.status == 1  # at its limit of time: the best so far, and a bound
        if found.x is None or (found.status != 0 and not stopped):
            raise SolverError(f"the program has no solution ({found.message})")
        bound = found.fun if not whole else (found.mip_dual_bound if count else found.fun)
        return found.x[:-1], float(bound) * self._unit + self._fixed

    def table(self, shares: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """(n, c): the share of each choice of each sample; those of a sample add up to 1."""
        table = np.zeros(self._shape)
        table[self._rows, self._columns] = np.clip(shares, 0.0, 1.0)
        table[:, 0] = np.maximum(0.0, 1.0 - table.sum(axis=1))
        return table


def _rounded(
    choices: Choices, machines: Machines, objective: Objective, table: npt.NDArray[np.float64]
) -> Assignment:
    """Whole choices: those with the largest share, and of the few fractional samples the best combination."""
    chosen = np.argmax(table, axis=1)
    split = np.flatnonzero(np.max(table, axis=1) < 1 - _WHOLE)
    supports = [np.flatnonzero(table[i] > _WHOLE) for i in split]
    tried = 1
    for k, support in enumerate(supports):
        tried *= len(support)
        if tried > _MOST_TRIED:
            split, supports = split[:k], supports[:k]
            break
    best_value, best_chosen = math.inf, chosen
    for combination in product(*supports):
        candidate = chosen.copy()
        candidate[split] = combination
        value = value_of(choices, candidate, machines, objective)
        if value < best_value:
            best_value, best_chosen = value, candidate
    return best_chosen


def _moved(
    choices: Choices, machines: Machines, objective: Objective, chosen: Assignment, *, some: bool
) -> Assignment:
    """Change the one sample's choice that lowers the value most, again and again. With `some`, one stays offloaded."""
    rows = np.arange(choices.samples)
    chosen = chosen.copy()
    for _ in range(_MOST_MOVES):
        now = value_of(choices, chosen, machines, objective)

        def after(values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
            own = values[rows, chosen]  # noqa: B023 - called in this round only
            return own.sum() - own[:, None] + values

        sent = after(choices.sent_bytes)
        seconds = np.maximum(
            np.maximum(machines.trainer_s, 8 * sent / machines.bandwidth_bps),
            np.maximum(
                after(choices.client_s) / machines.client_cores,
                after(choices.server_s) / machines.storage_cores,
            ),
        )
        values = objective.per_s * seconds + objective.per_byte * sent
        offloaded = np.count_nonzero(chosen)
        if some and offloaded == 1:
            values[chosen > 0, 0] = np.inf
        forced = some and offloaded == 0
        if forced:
            values[:, 0] = np.inf
        i, choice = np.unravel_index(np.argmin(values), values.shape)
        moved = chosen.copy()
        moved[i] = choice
        if not forced and value_of(choices, moved, machines, objective) >= now * (1 - _SLACK):
            break
        chosen = moved
    return chosen


def better_of(
    found: Best, others: Sequence[Assignment], choices: Choices, machines: Machines, objective: Objective
) -> Best:
    """The best of `found` and other choices, which it is then never worse than."""
    for other in others:
        value = value_of(choices, other, machines, objective)
        if value < found.value:
            found = replace(found, chosen=other, value=value)
    return found
