"""`averaging: flat`: all peers in one group, each exchanging parts with each other (butterfly all-reduce)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from fractions import Fraction

from experiments.averaging.records import Exchange


def flat_sent(regions: Sequence[str]) -> dict[tuple[str, str], Fraction]:
    """See `Exchange.sent`: each peer sends each other 2 / n, its share of the other's vector and the mean of its own."""
    size, n = Counter(regions), len(regions)
    return {(a, b): Fraction(2 * k * (m - (a == b)), n) for a, k in size.items() for b, m in size.items()}


def flat_transfer_s(gradient_bytes: int, peers: int, slowest_bps: float, vm_bps: float) -> float:
    """Seconds of a round's bytes: one stream on the slowest pair, or a VM's own limit."""
    pair_bits = 2 * gradient_bytes / peers * 8
    return max(pair_bits / slowest_bps, pair_bits * (peers - 1) / vm_bps) if peers > 1 else 0.0


FLAT = Exchange(
    key="averaging",
    name="flat",
    meaning="each peer with each other",
    sent=flat_sent,
    transfer_s=flat_transfer_s,
    whole_group=True,
    averager="RoundAverager",
)
