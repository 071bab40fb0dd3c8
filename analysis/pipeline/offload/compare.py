"""All policies for one profile: seconds, bytes and dollars of a pass, and whether offloading pays."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from analysis.pipeline.offload import policies
from analysis.pipeline.offload.best import Objective, best, better_of
from analysis.pipeline.offload.choices import Choices, Codec, check_codecs, choices_of
from analysis.pipeline.offload.pass_time import (
    BOUND_WORDS,
    Assignment,
    Machines,
    PassTime,
    Prices,
    usd,
    usd_parts,
)
from analysis.pipeline.offload.passes import (
    Caches,
    MeanPass,
    Problem,
    filled,
    passes_time,
    problem_of,
)
from analysis.pipeline.offload.sample_profile import SampleProfile

Verdict = Literal["baseline", "pays", "does_not", "no_difference", "off", "unknown"]
Aim = Literal["time", "usd"]
_EQUAL = 1e-3  # of a value: less is no difference
_MILLION = 1e6


@dataclass(frozen=True, slots=True)
class PolicyRow:
    """One policy. None: unknown, and `why` says why. Of several passes with caches, all numbers are those of a pass in the mean.

    `sent_bytes` are payload, without headers. `bound_s`: no choice of prefixes and codecs makes a shorter pass.
    """

    policy: str
    trainer_s: float
    net_s: float | None
    sent_bytes: float | None
    offloaded: int | None
    found: PassTime | None  # all times; None without the operations' times
    usd_per_1m: float | None
    bound_s: float | None
    verdict: Verdict
    why: str
    usd_parts_per_1m: dict[str, float] | None = None  # of `usd_per_1m`, by `BILL_WORDS`

    def to_json(self) -> dict[str, Any]:
        """Plain JSON types."""
        found = self.found
        mean = found if isinstance(found, MeanPass) else None
        of_pass = [found, found] if mean is None else [mean.first, mean.later]
        first_s, later_s = (
            None if one is None or math.isinf(one.seconds) else one.seconds for one in of_pass
        )
        none_cached = None if found is None else 0
        return {
            "t_g_s": self.trainer_s,
            "t_cc_s": None if found is None else found.t_cc_s,
            "t_cs_s": None if found is None or math.isinf(found.t_cs_s) else found.t_cs_s,
            "t_net_s": self.net_s,
            "epoch_s": None if found is None or math.isinf(found.seconds) else found.seconds,
            "first_pass_s": first_s,
            "later_pass_s": later_s,
            "bytes": self.sent_bytes,
            "offloaded": self.offloaded,
            "client_cached": none_cached if mean is None else mean.client_cached,
            "server_cached": none_cached if mean is None else mean.server_cached,
            "storage_cpu_s": None if found is None else found.server_cpu_s,
            "usd_per_1m_samples": self.usd_per_1m,
            "bound_s": self.bound_s,
            "verdict": self.verdict,
            "why": self.why,
        }


def shrinking(profile: SampleProfile) -> int:
    """Samples that are smaller after some operation than they are stored."""
    return int(np.count_nonzero(profile.smallest))


def least_bytes(profile: SampleProfile) -> float:
    """Bytes of a pass in which each sample is sent where it is smallest."""
    return math.fsum(np.min(profile.sizes, axis=1))


def shrinking_by_op(profile: SampleProfile) -> dict[str, int]:
    """By operation, the samples that are smallest after it, the first of equals counting."""
    counts = np.bincount(profile.smallest, minlength=len(profile.ops) + 1)
    return {op: int(count) for op, count in zip(profile.ops, counts[1:], strict=True)}


def compare_policies(
    profile: SampleProfile,
    machines: Machines,
    *,
    aim: Aim = "time",
    prefix_ops: int = 2,
    codecs: Sequence[Codec] = (),
    speed: Sequence[float] | float = 1.0,
    prices: Prices | None = None,
    caches: Caches = Caches(),
    little_work: bool = True,
    time_off: bool = False,
) -> tuple[PolicyRow, ...]:
    """Compare none, all, prefix:K, fastflow, greedy and best; `best` alone minimises `aim`.

    With several passes and caches, the other policies fill these in the order of the samples, and greedy decides as for one
    pass. `little_work`: as for `best`. `time_off`: time is no reason to offload, because the input is not I/O-bound; with
    the aim time, `best` then offloads nothing and the verdicts are `off`.

    Raises ValueError for a prefix that the pipeline does not have, for what `choices_of` refuses, and for the aim usd
    without prices; SolverError.
    """
    if not 1 <= prefix_ops <= len(profile.ops):
        raise ValueError(
            f"the pipeline has {len(profile.ops)} operations, so prefix:{prefix_ops} does not exist"
        )
    if aim == "usd" and prices is None:
        raise ValueError("dollars cannot be minimised without prices")
    check_codecs(codecs, len(profile.ops))
    if profile.op_s is None:
        if caches.matter:
            raise ValueError("passes with caches need the operations' times; give them with --times")
        return _by_bytes(profile, machines, prefix_ops)
    choices = choices_of(profile, codecs, speed)
    problem = problem_of(profile, choices, caches)
    raw_bytes = float(math.fsum(profile.raw_bytes))
    fixed: dict[str, Assignment] = {
        "none": policies.none(choices),
        "all": policies.everything(choices),
        f"prefix:{prefix_ops}": policies.prefix(choices, prefix_ops),
        "fastflow": policies.fastflow(choices, machines),
        "greedy": policies.greedy(choices, machines, profile.keys),
    }
    if problem.caches:
        fixed = {name: filled(problem, one) for name, one in fixed.items()}
        faster = min(("none", "all"), key=lambda name: passes_time(problem, fixed[name], machines).seconds)
        fixed["fastflow"] = fixed[faster]

    def usd_of(found: PassTime) -> float | None:
        if prices is None or math.isinf(found.seconds):
            return None
        return usd(found, _store_bytes(found, raw_bytes), prices)

    def parts_of(found: PassTime) -> dict[str, float] | None:
        if prices is None or math.isinf(found.seconds):
            return None
        parts = usd_parts(found, _store_bytes(found, raw_bytes), prices)
        return {part: amount * _MILLION / choices.samples for part, amount in parts.items()}

    def value(found: PassTime) -> float:
        amount = found.seconds if aim == "time" else usd_of(found)
        return math.inf if amount is None else amount

    off = time_off and aim == "time"
    bound_s = gap = None
    chosen = fixed["none"]
    if not off:
        chosen, bound_s, gap = cheapest(
            problem, machines, list(fixed.values()), aim, prices, value, little_work=little_work
        )
    found = {name: passes_time(problem, one, machines) for name, one in {**fixed, "best": chosen}.items()}
    base = value(found["none"])
    return tuple(
        PolicyRow(
            name,
            one.t_g_s,
            one.t_net_s,
            one.sent_bytes,
            one.offloaded,
            one,
            _per_1m(usd_of(one), choices.samples),
            bound_s if name == "best" else None,
            "baseline" if name == "none" else "off" if off else _verdict(value(one), base),
            _OFF if off and name == "best" else _why(one, gap if name == "best" else None),
            parts_of(one),
        )
        for name, one in found.items()
    )


def compare_by_cores(
    profile: SampleProfile, machines: Machines, most: int, **options: Any
) -> dict[int, tuple[PolicyRow, ...]]:
    """`compare_policies` with 0 to `most` storage cores in place of those of `machines`; raises as it does."""
    return {
        cores: compare_policies(profile, replace(machines, storage_cores=cores), **options, little_work=False)
        for cores in range(most + 1)
    }


def cheapest(
    choices: Choices | Problem,
    machines: Machines,
    others: Sequence[Assignment],
    aim: Aim,
    prices: Prices | None,
    value: Callable[[PassTime], float],
    *,
    little_work: bool = True,
) -> tuple[Assignment, float | None, float]:
    """The best choices, the bound of a pass in seconds (aim time), and the gap to the program's bound.

    `others`: other choices, the first of which does not use the server. `value`: what is minimised. Raises SolverError.
    """
    problem = choices if isinstance(choices, Problem) else Problem.of(choices)
    if aim == "time":
        found = best(problem, machines, little_work=little_work)
        found = better_of(found, others, problem, machines, Objective())
        return found.chosen, found.bound, found.gap
    assert prices is not None
    # With a server all bytes go through it; without one it is not rented and they take the direct way.
    ways = [*others]
    columns = np.flatnonzero(~problem.uses_server)
    straight = best(problem.only(columns), machines, Objective(prices.usd_per_s, prices.store_to_client_usd))
    ways.append(columns[straight.chosen])
    bound = straight.bound
    if machines.storage_cores and len(columns) < len(problem.names):
        per_s = prices.usd_per_s + prices.server_usd_per_s
        if problem.caches:
            objective = Objective(per_s, prices.server_to_client_usd, prices.store_to_server_usd)
            raw_usd = 0.0
        else:  # all that is stored leaves the store in every pass
            objective = Objective(per_s, prices.server_to_client_usd)
            raw_usd = prices.store_to_server_usd * math.fsum(problem.phases[0].store_bytes[:, 0])
        through = best(problem, machines, objective, some=True)
        ways.append(through.chosen)
        bound = min(bound, through.bound + raw_usd)
    chosen = min(ways, key=lambda one: value(passes_time(problem, one, machines)))
    reached = value(passes_time(problem, chosen, machines))
    return chosen, None, 0.0 if bound <= 0 else max(0.0, reached / bound - 1)


def _by_bytes(profile: SampleProfile, machines: Machines, prefix_ops: int) -> tuple[PolicyRow, ...]:
    """Without times, the policies that need none have bytes."""
    every, raw = profile.sizes, float(math.fsum(profile.raw_bytes))
    known = {"none": 0, "all": len(profile.ops), f"prefix:{prefix_ops}": prefix_ops}
    rows: list[PolicyRow] = []
    for name in (*known, "fastflow", "greedy", "best"):
        ops = known.get(name)
        sent = None if ops is None else raw if ops == 0 else float(math.fsum(every[:, ops]))
        rows.append(
            PolicyRow(
                name,
                machines.trainer_s,
                None if sent is None else 8 * sent / machines.bandwidth_bps,
                sent,
                None if ops is None else len(profile.keys) if ops else 0,
                None,
                None,
                None,
                "baseline" if name == "none" else "unknown",
                "the operations' times are unknown; give them with --times",
            )
        )
    return tuple(rows)


def _store_bytes(found: PassTime, raw_bytes: float) -> float:
    return found.store_bytes if isinstance(found, MeanPass) else raw_bytes


def _verdict(value: float, base: float) -> Verdict:
    if math.isclose(value, base, rel_tol=_EQUAL):
        return "no_difference"
    return "pays" if value < base else "does_not"


def _per_1m(amount: float | None, samples: int) -> float | None:
    return None if amount is None else amount * _MILLION / samples


_OFF = "the input is not I/O-bound, so nothing is offloaded for time"


def _why(found: PassTime, gap: float | None) -> str:
    if math.isinf(found.seconds):
        return f"{found.offloaded:,} samples are offloaded, and the storage has no core"
    if isinstance(found, MeanPass):
        what = (
            f"in the first pass {BOUND_WORDS[found.first.bound]} takes longest, {found.first.seconds:.4g} s, later "
            f"{BOUND_WORDS[found.later.bound]}, {found.later.seconds:.4g} s; the client caches {found.client_cached:,} samples, "
            f"the server {found.server_cached:,}"
        )
    else:
        what = f"{BOUND_WORDS[found.bound]} takes longest, {found.seconds:.4g} s"
    if not found.offloaded:
        what += "; nothing is offloaded"
    return what if gap is None else f"{what}; at most {100 * gap:.2g} % above the optimum"
