"""Epoch rates logged by a swarm monitor: the paper's mean of them, and the ones that our `sps` leaves out. Pure.

The authors' monitor logs a rate whenever the swarm's epoch number changes, even if it decreases (a peer is behind, or
the swarm started over), and logs the rate 0 if it had seen no samples. Their throughput (`get_hivemind_runs` of
`03-throughput-analysis.ipynb` in github.com/cirquit/hivemind-multi-cloud; PAPER.md, "What the authors' columns mean") is
the mean of all these rates except the first.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from metrics.stats import Estimate, mean_interval


@dataclass(frozen=True, slots=True)
class LoggedRate:
    """One row of the monitor's log that ended an epoch."""

    epoch: int | None  # None: the row has no epoch number
    sps: float | None  # None: the row has no rate, and none can be computed from it


def paper_throughput(rates: Sequence[LoggedRate]) -> Estimate | None:
    """Return the mean of all rates except the first row's.

    Rates of 0 and repeated epochs count. None if no rate is above 0.
    """
    counted = [r.sps for r in rates[1:] if r.sps is not None]
    return mean_interval(counted) if any(counted) else None


def left_out(rates: Sequence[LoggedRate], measured: Collection[int]) -> str:
    """List the rows that the paper counts and `sps` does not, with the reason. Empty if there are none.

    `measured`: the epochs that `sps` counts. If an epoch has several rows, or the number decreases, `sps` uses only the
    first row that reached the number.
    """
    rows = Counter(r.epoch for r in rates)
    named: dict[str, list[int]] = {}
    unnumbered = 0
    for k, row in enumerate(rates):
        if k == 0 or row.sps is None:
            continue
        if row.epoch is None:
            unnumbered += 1
            continue
        before = [r.epoch for r in rates[:k] if r.epoch is not None]
        if row.epoch in before:
            times = "twice" if rows[row.epoch] == 2 else f"{rows[row.epoch]} times"
            why = f"recorded {times}, only the first record is used"
            zeros = sum(1 for r in rates if r.epoch == row.epoch and r.sps == 0)
            if zeros:
                why += f" ({zeros} of them with rate 0)"
        elif row.sps == 0:
            why = "rate 0"
        elif before and row.epoch < max(before):
            why = f"recorded after epoch {max(before)}"
        elif row.epoch in measured:
            continue
        else:
            why = (
                "no wall time, or not reported by every peer"
                if before
                else "the first epoch with a number, so the warm-up"
            )
        if row.epoch not in named.setdefault(why, []):
            named[why].append(row.epoch)
    parts = [f"{_epochs(numbers)}: {why}" for why, numbers in named.items()]
    if unnumbered:
        parts.append(f"{unnumbered} {'record' if unnumbered == 1 else 'records'} without an epoch number")
    return "; ".join(parts)


def _epochs(numbers: Sequence[int]) -> str:
    if len(numbers) == 1:
        return f"epoch {numbers[0]}"
    return f"epochs {', '.join(map(str, numbers[:-1]))} and {numbers[-1]}"
