"""All policies for one profile: seconds, bytes and dollars of a pass, and whether offloading pays."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
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
    pass_time,
    usd,
)
from analysis.pipeline.offload.sample_profile import SampleProfile

Verdict = Literal["baseline", "pays", "does_not", "no_difference", "unknown"]
Aim = Literal["time", "usd"]
_EQUAL = 1e-3  # of a value: less is no difference
_MILLION = 1e6


@dataclass(frozen=True, slots=True)
class PolicyRow:
    """One policy. None: unknown, and `why` says why.

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

    def to_json(self) -> dict[str, Any]:
        """Plain JSON types."""
        found = self.found
        return {
            "t_g_s": self.trainer_s,
            "t_cc_s": None if found is None else found.t_cc_s,
            "t_cs_s": None if found is None or math.isinf(found.t_cs_s) else found.t_cs_s,
            "t_net_s": self.net_s,
            "epoch_s": None if found is None or math.isinf(found.seconds) else found.seconds,
            "bytes": self.sent_bytes,
            "offloaded": self.offloaded,
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
) -> tuple[PolicyRow, ...]:
    """Compare none, all, prefix:K, fastflow, greedy and best; `best` alone minimises `aim`.

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
        return _by_bytes(profile, machines, prefix_ops)
    choices = choices_of(profile, codecs, speed)
    raw_bytes = float(math.fsum(profile.raw_bytes))
    fixed: dict[str, Assignment] = {
        "none": policies.none(choices),
        "all": policies.everything(choices),
        f"prefix:{prefix_ops}": policies.prefix(choices, prefix_ops),
        "fastflow": policies.fastflow(choices, machines),
        "greedy": policies.greedy(choices, machines, profile.keys),
    }

    def usd_of(found: PassTime) -> float | None:
        return None if prices is None or math.isinf(found.seconds) else usd(found, raw_bytes, prices)

    def value(found: PassTime) -> float:
        amount = found.seconds if aim == "time" else usd_of(found)
        return math.inf if amount is None else amount

    chosen, bound_s, gap = cheapest(choices, machines, list(fixed.values()), aim, prices, value)
    found = {name: pass_time(choices, one, machines) for name, one in {**fixed, "best": chosen}.items()}
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
            "baseline" if name == "none" else _verdict(value(one), base),
            _why(one, gap if name == "best" else None),
        )
        for name, one in found.items()
    )


def cheapest(
    choices: Choices,
    machines: Machines,
    others: Sequence[Assignment],
    aim: Aim,
    prices: Prices | None,
    value: Callable[[PassTime], float],
) -> tuple[Assignment, float | None, float]:
    """The best choices, the bound of a pass in seconds (aim time), and the gap to the program's bound.

    `others`: other choices, the first of which offloads nothing. `value`: what is minimised. Raises SolverError.
    """
    if aim == "time":
        found = better_of(best(choices, machines), others, choices, machines, Objective())
        return found.chosen, found.bound, found.gap
    assert prices is not None
    nothing = value(pass_time(choices, others[0], machines))
    if not machines.storage_cores or len(choices.names) < 2:
        return others[0], None, 0.0
    # With a server all bytes go through it; without one it is not rented and they take the direct way.
    objective = Objective(prices.usd_per_s + prices.server_usd_per_s, prices.server_to_client_usd)
    through = best(choices, machines, objective, some=True)
    raw_usd = prices.store_to_server_usd * math.fsum(choices.sent_bytes[:, 0])
    bound = min(nothing, through.bound + raw_usd)
    chosen = min([*others, through.chosen], key=lambda one: value(pass_time(choices, one, machines)))
    reached = value(pass_time(choices, chosen, machines))
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


def _verdict(value: float, base: float) -> Verdict:
    if math.isclose(value, base, rel_tol=_EQUAL):
        return "no_difference"
    return "pays" if value < base else "does_not"


def _per_1m(amount: float | None, samples: int) -> float | None:
    return None if amount is None else amount * _MILLION / samples


def _why(found: PassTime, gap: float | None) -> str:
    if math.isinf(found.seconds):
        return f"{found.offloaded:,} samples are offloaded, and the storage has no core"
    what = f"{BOUND_WORDS[found.bound]} takes longest, {found.seconds:.4g} s"
    if not found.offloaded:
        what += "; nothing is offloaded"
    return what if gap is None else f"{what}; at most {100 * gap:.2g} % above the optimum"
