"""LotusMap's method (Bachkaniwala et al., IISWC 2024), to compare it with the join of samples and spans.

An operation is run alone, often enough that a function of a certain length is seen with a certain probability. The functions
seen are the operation's. In a profile of the whole pipeline, which knows no operations, the counter of a function that
several operations share is split by the time that these operations take.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Set

from analysis.pipeline.native_function import NativeFunction
from analysis.pipeline.op_functions import Joined

CONFIDENCE = 0.75
CALLS = 5
"""Calls of an operation in one run; only the last is recorded, because caches are warm then."""
SHORTEST = 0.1
"""The function that is to be seen takes this share of its operation."""


def runs(span_ns: float, interval_ns: float, confidence: float = CONFIDENCE) -> int:
    """The smallest n with 1 - (1 - f/s)^n >= C: so many runs see a function of length f, at a sampling interval s.

    Raises ValueError unless the lengths are above 0, and 0 < C < 1.
    """
    if not span_ns > 0 or not interval_ns > 0 or not 0 < confidence < 1:
        raise ValueError(f"f = {span_ns}, s = {interval_ns} and C = {confidence} are not in their ranges")
    share = span_ns / interval_ns
    if share >= 1:
        return 1
    n = max(1, math.ceil(math.log1p(-confidence) / math.log1p(-share)))
    while n > 1 and seen(share, n - 1) >= confidence:
        n -= 1
    while seen(share, n) < confidence:
        n += 1
    return n


def seen(share: float, n: int) -> float:
    """1 - (1 - share)^n: how probably a function that takes `share` of a sampling interval is seen in n runs."""
    return 1.0 if share >= 1 else -math.expm1(n * math.log1p(-share))


def split(
    counters: Mapping[NativeFunction, float],
    functions: Mapping[str, Set[NativeFunction]],
    op_ns: Mapping[str, float],
) -> dict[str | None, dict[NativeFunction, float]]:
    """Split each function's counter by w_op = T_op / sum of T over the operations that share it; T is `op_ns`.

    Under None are the counters of functions that no operation has.
    """
    found: dict[str | None, dict[NativeFunction, float]] = {None: {}, **{op: {} for op in functions}}
    for function, counter in counters.items():
        sharing = [op for op, its in functions.items() if function in its]
        together = sum(op_ns[op] for op in sharing)
        if together <= 0:
            found[None][function] = counter
            continue
        for op in sharing:
            found[op][function] = counter * op_ns[op] / together
    return found


def error(joined: Joined, found: Mapping[str | None, Mapping[NativeFunction, float]]) -> float | None:
    """The share of samples that `found` attributes otherwise than the join: to another operation, to none, or to one instead
    of none.

    None without samples.
    """
    truth: dict[str | None, Mapping[NativeFunction, float]] = {None: joined.between, **joined.ops}
    total = sum(sum(part.values()) for part in truth.values())
    if not total:
        return None
    wrong = 0.0
    for op in {*truth, *found}:
        ours, theirs = truth.get(op, {}), found.get(op, {})
        for function in {*ours, *theirs}:
            wrong += max(0.0, theirs.get(function, 0) - ours.get(function, 0))
    return wrong / total
