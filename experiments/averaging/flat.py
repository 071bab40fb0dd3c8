"""`averaging: flat`: all peers form one group and exchange parts with each other (butterfly all-reduce)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from fractions import Fraction
from itertools import permutations

from experiments.averaging.records import Exchange


def flat_sent(regions: Sequence[str]) -> dict[tuple[str, str], Fraction]:
    """Implement `Exchange.sent`: each peer sends 2 / n to each other, one part of its vector and one averaged part."""
    size, n = Counter(regions), len(regions)
    return {(a, b): Fraction(2 * k * (m - (a == b)), n) for a, k in size.items() for b, m in size.items()}


def _pair_shares(regions: Sequence[str]) -> dict[tuple[int, int], Fraction]:
    n = len(regions)
    return dict.fromkeys(permutations(range(n), 2), Fraction(2, n)) if n else {}


def flat_transfer_s(gradient_bytes: int, peers: int, slowest_bps: float, vm_bps: float) -> float:
    """Return the transfer seconds of a round, limited by one stream on the slowest pair or by a VM's own bandwidth."""
    pair_bits = 2 * gradient_bytes / peers * 8
    return max(pair_bits / slowest_bps, pair_bits * (peers - 1) / vm_bps) if peers > 1 else 0.0


FLAT = Exchange(
    key="averaging",
    name="flat",
    meaning="every peer exchanges gradients with every other peer",
    sent=flat_sent,
    pair_shares=_pair_shares,
    transfer_s=flat_transfer_s,
    whole_group=True,
    averager="RoundAverager",
)
