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
from analysis.pipeline.offload.passes import Problem

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
    """What is minimised: `per_s` x seconds of a pass + `per_byte` x sent bytes + `per_store_byte` x those that leave the store.

    `TIME` is seconds alone.
    """

    per_s: float = 1.0
    per_byte: float = 0.0
    per_store_byte: float = 0.0


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


def value_of(
    choices: Choices | Problem, chosen: Assignment, machines: Machines, objective: Objective
) -> float:
    """The objective's value, of a pass in the mean; inf if the caches are too small."""
    problem = _problem(choices)
    if not problem.fits(chosen):
        return math.inf
    rows = np.arange(problem.samples)
    value = 0.0
    for phase in problem.phases:
        found = pass_time(phase.choices, chosen, machines)
        of_pass = objective.per_s * found.seconds + objective.per_byte * found.sent_bytes
        if objective.per_store_byte:
            of_pass += objective.per_store_byte * math.fsum(phase.store_bytes[rows, chosen])
        value += phase.share * of_pass
    return value


def best(
    choices: Choices | Problem,
    machines: Machines,
    objective: Objective = TIME,
    *,
    some: bool = False,
    little_work: bool = True,
) -> Best:
    """Solve the program, round it, and move single samples while that helps.

    `some`: at least one sample must use the server, which needs a core of it. `little_work`: of many samples and equal
    times, the server's work is small, which takes longer to find. Without a core of the server nothing uses it. Raises
    SolverError.
    """
    problem = _problem(choices)
    if not machines.storage_cores and problem.uses_server.any():
        direct = np.flatnonzero(~problem.uses_server)
        found = best(problem.only(direct), machines, objective)
        return replace(found, chosen=direct[found.chosen])
    if len(problem.names) == 1:
        nothing = np.zeros(problem.samples, dtype=np.intp)
        value = value_of(problem, nothing, machines, objective)
        return Best(nothing, value, value)
    whole = problem.samples <= _AS_INTEGERS
    interior = not little_work or len(problem.phases) > 1
    program = _Program(problem, machines, objective, some=some, interior=interior)
    shares, bound = program.solve(whole=whole)
    seconds_alone = objective.per_byte == objective.per_store_byte == 0
    if little_work and not whole and seconds_alone and not some:
        with suppress(SolverError):  # the first solution is as good
            shares, _ = program.solve(whole=False, most=bound * (1 + _SLACK))
    chosen = _rounded(problem, machines, objective, program.table(shares))
    chosen = _moved(problem, machines, objective, chosen, some=some)
    return Best(chosen, value_of(problem, chosen, machines, objective), bound)


def _problem(choices: Choices | Problem) -> Problem:
    return choices if isinstance(choices, Problem) else Problem.of(choices)


def undominated(
    choices: Choices | Problem, *, some: bool = False, store: bool = True
) -> npt.NDArray[np.bool_]:
    """(n, c): choices of which no other one of the sample is as good in bytes, server's and client's seconds, and caches.

    `store`: bytes that leave the store count too. Of equal ones the first stays, and sending as stored always does. With
    `some`, choices without the server rule out none that use it.
    """
    problem = _problem(choices)
    n, c = len(problem.phases[0].choices.sent_bytes), len(problem.names)
    costs: Any = np.stack(
        [
            values
            for phase in problem.phases
            for values in (phase.choices.sent_bytes, phase.choices.server_s, phase.choices.client_s)
        ]
        + [phase.store_bytes for phase in problem.phases if store]
        + [cache.kept_bytes for cache in problem.caches],
        axis=2,
    )
    server = problem.uses_server
    kept = np.ones((n, c), dtype=bool)
    for one in range(1, c):
        for other in range(c):
            if other == one or (some and server[one] and not server[other]):
                continue
            as_good = (costs[:, other] <= costs[:, one]).all(axis=1)
            better = (costs[:, other] < costs[:, one]).any(axis=1)
            kept[:, one] &= ~(as_good & (better | (other < one)))
    return kept


class _Program:
    """Variables: a share of each undominated choice but the first one, which takes the rest, and each phase's T.

    HiGHS has absolute tolerances, so T, the objective and the caches are in units of what they are if nothing is offloaded.
    """

    def __init__(
        self, problem: Problem, machines: Machines, objective: Objective, *, some: bool, interior: bool
    ) -> None:
        """`interior`: rather the interior-point method, which is fast, but often finds another one of equal optima."""
        from scipy.sparse import csr_array, vstack

        self._interior = interior
        kept = undominated(problem, some=some, store=objective.per_store_byte > 0)
        kept[:, 0] = False
        self._shape = kept.shape
        self._rows, self._columns = np.nonzero(kept)
        count, phases = len(self._rows), len(problem.phases)

        def change(values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
            return (values - values[:, :1])[self._rows, self._columns]

        by_byte = 8 / machines.bandwidth_bps
        nothing = np.zeros(problem.samples, dtype=np.intp)
        bases = [pass_time(phase.choices, nothing, machines) for phase in problem.phases]
        unit_s = bases[0].seconds or 1.0
        self._unit = value_of(problem, nothing, machines, objective) or 1.0
        self._server = np.zeros(count)
        self._fixed = 0.0
        times: list[npt.NDArray[np.float64]] = []
        limits: list[float] = []
        cost = np.zeros(count)
        for k, (phase, base) in enumerate(zip(problem.phases, bases, strict=True)):
            server, sent = change(phase.choices.server_s), change(phase.choices.sent_bytes)
            longest = np.zeros(phases)
            longest[k] = -1.0
            times += [
                np.append(change(phase.choices.client_s) / machines.client_cores / unit_s, longest),
                np.append(server / (machines.storage_cores or 1.0) / unit_s, longest),
                np.append(sent * by_byte / unit_s, longest),
            ]
            limits += [-base.t_cc_s / unit_s, -base.t_cs_s / unit_s, -base.t_net_s / unit_s]
            self._server += phase.share * server
            cost += phase.share * objective.per_byte * sent
            self._fixed += phase.share * objective.per_byte * base.sent_bytes
            if objective.per_store_byte:
                cost += phase.share * objective.per_store_byte * change(phase.store_bytes)
                self._fixed += phase.share * objective.per_store_byte * float(phase.store_bytes[:, 0].sum())
        for cache in problem.caches:
            times.append(np.append(change(cache.kept_bytes) / cache.most_bytes, np.zeros(phases)))
            limits.append(1.0)
        used = csr_array(
            (np.ones(count), (self._rows, np.arange(count))), shape=(problem.samples, count + phases)
        )
        self._matrix: Any = vstack([csr_array(np.vstack(times)), used[np.unique(self._rows)]]).tocsr()
        self._limits: Any = np.concatenate([limits, np.ones(len(np.unique(self._rows)))])
        if some and count:
            uses = problem.uses_server[self._columns].astype(float)
            self._matrix = vstack(
                [self._matrix, csr_array(np.append(-uses, np.zeros(phases))[None, :])]
            ).tocsr()
            self._limits = np.append(self._limits, -1.0)
        by_phase = [phase.share * objective.per_s * unit_s for phase in problem.phases]
        self._cost = np.append(cost, by_phase) / self._unit
        self._least = machines.trainer_s / unit_s
        self._phases = phases

    def solve(self, *, whole: bool, most: float | None = None) -> tuple[npt.NDArray[np.float64], float]:
        """Shares and the optimum, which is a bound. `most`: rather the least server's work up to this value."""
        from scipy.optimize import Bounds, LinearConstraint, linprog, milp

        count = len(self._rows)
        lower: Any = np.append(np.zeros(count), [self._least] * self._phases)
        upper: Any = np.append(np.ones(count), [np.inf] * self._phases)
        if whole:
            found: Any = milp(
                self._cost,
                integrality=np.append(np.ones(count), [0] * self._phases),
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
                cost = np.append(self._server / (self._server.max(initial=0.0) or 1.0), [0.0] * self._phases)
            bounds = [(0, 1)] * count + [(self._least, None)] * self._phases
            methods = ("highs", "highs-ipm")  # one may fail where the other one does not
            for method in reversed(methods) if self._interior else methods:
                found = linprog(cost, A_ub=matrix, b_ub=limits, bounds=bounds, method=method)
                if found.status == 0:
                    break
        stopped = whole and found.status == 1  # at its limit of time: the best so far, and a bound
        if found.x is None or (found.status != 0 and not stopped):
            raise SolverError(f"the program has no solution ({found.message})")
        bound = found.fun if not whole else (found.mip_dual_bound if count else found.fun)
        return found.x[: -self._phases], float(bound) * self._unit + self._fixed

    def table(self, shares: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """(n, c): the share of each choice of each sample; those of a sample add up to 1."""
        table = np.zeros(self._shape)
        table[self._rows, self._columns] = np.clip(shares, 0.0, 1.0)
        table[:, 0] = np.maximum(0.0, 1.0 - table.sum(axis=1))
        return table


def _rounded(
    problem: Problem, machines: Machines, objective: Objective, table: npt.NDArray[np.float64]
) -> Assignment:
    """Whole choices: those with the largest share, and of the few fractional samples the best combination.

    With caches, a fractional sample may also be sent as stored, which no cache is too small for.
    """
    chosen = np.argmax(table, axis=1)
    split = np.flatnonzero(np.max(table, axis=1) < 1 - _WHOLE)
    supports = [np.flatnonzero(table[i] > _WHOLE) for i in split]
    if problem.caches:
        chosen[split] = 0
        supports = [np.union1d([0], support) for support in supports]
    tried = 1
    for k, support in enumerate(supports):
        tried *= len(support)
        if tried > _MOST_TRIED:
            split, supports = split[:k], supports[:k]
            break
    chosen = _fitted(problem, chosen)
    best_value, best_chosen = math.inf, chosen
    for combination in product(*supports):
        candidate = chosen.copy()
        candidate[split] = combination
        value = value_of(problem, candidate, machines, objective)
        if value < best_value:
            best_value, best_chosen = value, candidate
    return best_chosen


def _fitted(problem: Problem, chosen: Assignment) -> Assignment:
    """Send samples as stored while a cache is too small; by the solver's tolerance it may be."""
    rows = np.arange(problem.samples)
    chosen = chosen.copy()
    for cache in problem.caches:
        while (over := math.fsum(cache.kept_bytes[rows, chosen]) - cache.most_bytes) > 0:
            own = cache.kept_bytes[rows, chosen]
            enough = np.flatnonzero(own >= over)
            chosen[enough[np.argmin(own[enough])] if len(enough) else np.argmax(own)] = 0
    return chosen


def _moved(
    problem: Problem, machines: Machines, objective: Objective, chosen: Assignment, *, some: bool
) -> Assignment:
    """Change the one sample's choice that lowers the value most, again and again. With `some`, one keeps using the server."""
    rows = np.arange(problem.samples)
    server = problem.uses_server
    cores = machines.storage_cores or 1.0
    chosen = chosen.copy()
    for _ in range(_MOST_MOVES):
        now = value_of(problem, chosen, machines, objective)

        def after(values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
            own = values[rows, chosen]  # noqa: B023 - called in this round only
            return own.sum() - own[:, None] + values

        values = np.zeros((problem.samples, len(problem.names)))
        for phase in problem.phases:
            sent = after(phase.choices.sent_bytes)
            seconds = np.maximum(
                np.maximum(machines.trainer_s, 8 * sent / machines.bandwidth_bps),
                np.maximum(
                    after(phase.choices.client_s) / machines.client_cores,
                    after(phase.choices.server_s) / cores,
                ),
            )
            of_pass = objective.per_s * seconds + objective.per_byte * sent
            if objective.per_store_byte:
                of_pass += objective.per_store_byte * after(phase.store_bytes)
            values += phase.share * of_pass
        for cache in problem.caches:
            values[after(cache.kept_bytes) > cache.most_bytes] = np.inf
        used = server[chosen]
        if some and np.count_nonzero(used) == 1:
            values[np.ix_(used, ~server)] = np.inf
        forced = some and not used.any()
        if forced:
            values[:, ~server] = np.inf
        i, choice = np.unravel_index(np.argmin(values), values.shape)
        moved = chosen.copy()
        moved[i] = choice
        if not forced and value_of(problem, moved, machines, objective) >= now * (1 - _SLACK):
            break
        chosen = moved
    return chosen


def better_of(
    found: Best,
    others: Sequence[Assignment],
    choices: Choices | Problem,
    machines: Machines,
    objective: Objective,
) -> Best:
    """The best of `found` and other choices, which it is then never worse than."""
    for other in others:
        value = value_of(choices, other, machines, objective)
        if value < found.value:
            found = replace(found, chosen=other, value=value)
    return found
