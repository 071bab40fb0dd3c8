"""What twice the peers would give, and at how many peers a further doubling gives too little. Pure.

The paper's rule: with twice the peers calculation takes half as long and a round as long as before, so samples/s grow by
(g + 1) / (g / 2 + 1), g being the granularity, which then is g / 2. The predictor knows the round of more peers too; where it
has figures, they decide, otherwise the rule.

Dollars alone name no number of peers: a doubling doubles the VMs' dollars and gives less than twice the samples/s, so each one
makes a sample dearer. By the VMs' dollars, samples added by a doubling that gives a tenth more cost ten times the others.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal, NamedTuple, cast

from metrics.cost.ledger import CONTROLLER
from metrics.epochs.granularity import granularity_of_means, overlapped
from metrics.run import RunNumbers

LEAST_GAIN = 0.1
"""A doubling that adds less than this fraction of the samples/s does not pay."""
_DIGITS = 5  # of numbers in JSON


class Rate(NamedTuple):
    """Samples/s and dollars per sample, in any unit, of some number of peers. Dollars None: unknown."""

    sps: float
    usd: float | None


class Twice(NamedTuple):
    """Twice the peers by prediction: factors on samples/s and on dollars per sample (None: unknown)."""

    factor: float
    usd_factor: float | None


@dataclass(frozen=True, slots=True)
class MorePeers:
    """What more peers in the same proportions would give a swarm of `peers` peers with this granularity."""

    peers: int
    granularity: float
    by: Literal["prediction", "rule", "unknown"]  # unknown: the rule does not hold, and nothing was predicted
    stops_at: (
        int | None
    )  # so many peers, doubled, give less than LEAST_GAIN more. None: none up to `most` / 2
    most: int | None  # peers that the experiment can have; None: not limited, or unknown
    twice: Twice | None = None  # None: not predicted
    overlaps: bool = False  # rounds go on behind calculation, where the rule does not hold

    @property
    def factor(self) -> float | None:
        """Samples/s of twice the peers / now, by the paper's rule; None: it does not hold."""
        return None if self.overlaps else doubled(self.granularity)

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON types, with the line in words as `text`."""
        return {
            "peers": self.peers,
            "factor": None if self.factor is None else _digits(self.factor),
            "by": self.by,
            "stops_at": self.stops_at,
            "most": self.most,
            "predicted_factor": None if self.twice is None else _digits(self.twice.factor),
            "predicted_usd_factor": None
            if self.twice is None or self.twice.usd_factor is None
            else _digits(self.twice.usd_factor),
            "text": words(self),
        }


def doubled(granularity: float) -> float:
    """Return the factor on samples/s of twice the peers, by the paper's rule: from 1 (granularity 0) to below 2."""
    return (granularity + 1) / (granularity / 2 + 1)


def by_rule(granularity: float, peers: int, most: int | None = None) -> MorePeers:
    """Apply the paper's rule: with m times the peers granularity is g / m. `most`: peers that the experiment can have."""
    # (g + 1) / (g / 2 + 1) is 1 + gain at g = 2 gain / (1 - gain).
    times = max(1, math.floor(granularity * (1 - LEAST_GAIN) / (2 * LEAST_GAIN)))
    while doubled(granularity / times) >= 1 + LEAST_GAIN:  # once or twice, as floats round
        times += 1
    possible = most is None or 2 * times * peers <= most
    return MorePeers(peers, granularity, "rule", times * peers if possible else None, most)


def by_figures(
    granularity: float,
    peers: int,
    most: int,
    figures: Callable[[int], Rate | None],
    *,
    overlaps: bool = False,
) -> MorePeers:
    """Compare each doubling by `figures`: those of m times the peers; None: unknown.

    If one that is needed is unknown, the rule decides. `overlaps`: the rule does not hold. Doublings are tried from 1, 2, 4,
    ... times the peers, and between the last one that pays and the first one that does not by halving the range.
    """
    known = cache(figures)
    last = most // (2 * peers)  # so many times the peers can be doubled
    if last < 1:
        return MorePeers(peers, granularity, "prediction", None, most, overlaps=overlaps)

    def twice(times: int) -> Twice | None:
        now, then = known(times), known(2 * times)
        if now is None or then is None:
            return None
        dearer = None if then.usd is None or not now.usd else then.usd / now.usd
        return Twice(then.sps / now.sps, dearer)

    pays, stops, times = 0, None, 1
    while stops is None or stops - pays > 1:
        found = twice(times)
        if found is None:
            return _overlapped(granularity, peers) if overlaps else by_rule(granularity, peers, most)
        if found.factor < 1 + LEAST_GAIN:
            stops = times
        elif times == last:
            break
        else:
            pays = times
        times = min(2 * times, last) if stops is None else (pays + stops) // 2
    stops_at = None if stops is None else stops * peers
    return MorePeers(peers, granularity, "prediction", stops_at, most, twice(1), overlaps)


def of_run(run: RunNumbers) -> MorePeers | None:
    """Return that of a run: its measured granularity, and where more peers stop paying.

    That is by the prediction that its plan stored, otherwise by the rule. None: no granularity was measured.
    """
    measured = granularity_of_means(run.study)
    peers = len({row.slot for row in run.vms if row.slot != CONTROLLER})
    if measured is None or not peers:
        return None
    overlaps = overlapped(run.study) is not None
    stored = _stored(run, measured.value, peers, overlaps=overlaps)
    if stored is not None:
        return stored
    if overlaps:
        return _overlapped(measured.value, peers)
    return by_rule(measured.value, peers)


def words(found: MorePeers) -> str:
    """Say in one line what the granularity means for more peers. Plans, reports and comparisons use it."""
    text = f"granularity {found.granularity:.3g}: "
    if found.factor is None:
        text += "rounds go on behind calculation, where the paper's rule of doubling does not hold"
    else:
        text += f"twice the peers would give {found.factor:.2f} times the samples/s by the paper's rule"
    if found.twice is not None:
        usd = found.twice.usd_factor
        dearer = "" if usd is None else f", at {usd:.2f} times the dollars a sample"
        text += f"; by prediction {found.twice.factor:.2f} times{dearer}"
    return f"{text}{_stop(found)}"


def _stop(found: MorePeers) -> str:
    least = f"{100 * LEAST_GAIN:.0f} %"
    how = {"prediction": "by prediction", "rule": "by the rule, if a round takes no longer", "unknown": ""}[
        found.by
    ]
    if found.stops_at is not None:
        return (
            f"; more stop paying at {found.stops_at} peers, where a doubling gives less than {least} ({how})"
        )
    if found.most is None:
        return ""
    if 2 * found.peers > found.most:
        return f"; the experiment can have at most {found.most} peers"
    largest = found.most // (2 * found.peers) * 2 * found.peers
    return f"; a doubling gives {least} or more up to {largest} peers, the experiment can have at most {found.most} ({how})"


def _overlapped(granularity: float, peers: int) -> MorePeers:
    return MorePeers(peers, granularity, "unknown", None, None, overlaps=True)


def _stored(run: RunNumbers, granularity: float, peers: int, *, overlaps: bool) -> MorePeers | None:
    """Where more peers stop paying by the plan's prediction; None if it has none, or one of another number of peers."""
    plan: Any = run.meta.plan or {}
    prediction: Any = plan.get("prediction")
    found: Any = (
        cast(Mapping[str, Any], prediction).get("more_peers") if isinstance(prediction, Mapping) else None
    )
    if not isinstance(found, Mapping):
        return None
    stored = cast(Mapping[str, Any], found)
    stops_at, most = stored.get("stops_at"), stored.get("most")
    if stored.get("by") != "prediction" or stored.get("peers") != peers or not isinstance(most, int):
        return None
    if stops_at is not None and not isinstance(stops_at, int):
        return None
    return MorePeers(peers, granularity, "prediction", stops_at, most, overlaps=overlaps)


def _digits(number: float) -> float:
    return float(f"{number:.{_DIGITS}g}")
