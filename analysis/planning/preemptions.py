"""What preemptions leave of a run's throughput, from histories of spot capacity at its places. Pure.

Windows of the histories, each as long as the run, are drawn at random. In each, a peer trains where its slot's first VM is
requested, whenever that place has room, and a restart time after the place got room again.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from itertools import islice, pairwise
from typing import Any

import numpy as np

from analysis.planning.prediction import (
    Assumption,
    Prediction,
    Value,
    nominal_sps,
    rounded,
    simulated_runs,
)
from analysis.spot.timeline import covered, segments, timeline
from cloud.networks import NetworkError
from cloud.spot.history import History, facts
from experiments.schema.models import ExperimentSpec, Resources

PREEMPTIONS = "preemptions"  # name of the assumption
_SPS = "sps"
_WINDOWS = 500  # used in turn

Rate = Callable[[tuple[int, ...]], float]
"""Samples/s of the peers with these indices, together."""


@dataclass(frozen=True, slots=True)
class SpotHistories:
    """Histories by location, whose zeros are the same moment, and the seconds from the request of a VM until its peer
    trains."""

    by_place: Mapping[str, History]
    restart_s: float


@dataclass(frozen=True, slots=True)
class Preempted:
    """Shares of the samples/s and of the VMs' dollars an hour that are left, in each simulated run: those of a window."""

    histories: SpotHistories
    window_s: float  # shorter than the run if the histories are
    run_s: float
    windows: int
    sps: np.ndarray
    billed: np.ndarray

    def as_json(self) -> dict[str, Any]:
        """Return plain JSON types."""
        return {
            "restart_s": self.histories.restart_s,
            "windows": self.windows,
            "window_s": round(self.window_s, 1),
            "run_s": round(self.run_s, 1),
            "sps_share": rounded(_share(self.sps)),
            "mean_sps_share": round(float(np.mean(self.sps)), 5),
            "billed_share": rounded(_share(self.billed)),
            "histories": [
                {
                    "place": place,
                    "source": history.source,
                    "sha256": history.sha256,
                    "days": round((history.end_s - history.times_s[0]) / 86400.0, 4),
                    "availability": round(facts(history).availability, 6),
                }
                for place, history in self.histories.by_place.items()
            ],
        }


@dataclass(frozen=True, slots=True)
class Peer:
    """A peer and what its VM costs. `place`: index in the timeline; None: on demand, so never preempted."""

    place: int | None
    usd_per_h: float


def preempted(
    spec: ExperimentSpec,
    prediction: Prediction,
    histories: SpotHistories,
    places: Sequence[Resources],
    usd_per_h: Sequence[Decimal | None],
    run_s: float,
    seed: int = 0,
) -> Preempted | None:
    """Simulate preemptions. None if nothing is predicted without them, or the samples/s of a smaller swarm are unknown.

    `places`: of the slots' first VMs; `usd_per_h`: of these VMs, equally weighted where one is unknown. `run_s`: the run's
    duration without preemptions. Raises ValueError if the histories have no time in common.
    """
    if prediction.sps is None or prediction.simulated is None:
        return None
    from_s, until_s = covered(histories.by_place)
    line = timeline(histories.by_place, from_s, until_s)
    at = {place: index for index, place in enumerate(histories.by_place)}
    known = [None if usd is None else float(usd) for usd in usd_per_h]
    equal = None in known or not sum(usd or 0.0 for usd in known)
    peers = [
        Peer(at[place.infra] if place.use_spot else None, 1.0 if equal else usd or 0.0)
        for place, usd in zip(places, known, strict=True)
    ]
    rates: dict[tuple[tuple[str, str], ...], float] = {}

    def rate(training: tuple[int, ...]) -> float:
        kinds = tuple(sorted((places[i].infra, places[i].accelerators) for i in training))
        if kinds not in rates:
            few = len(training) < max(1, spec.min_peers)
            rates[kinds] = 0.0 if few else nominal_sps(spec, [places[i] for i in training])
        return rates[kinds]

    window_s = min(run_s, line.duration_s)
    stretches, left_s = segments(line), line.duration_s - window_s
    begins = line.times_s[0] + left_s * np.random.default_rng((seed, 2)).random(_WINDOWS if left_s else 1)
    try:
        found = [
            left_of(stretches, float(begin), window_s, peers, histories.restart_s, rate) for begin in begins
        ]
    except (ValueError, NetworkError):
        return None
    sps, billed = (np.resize(np.array(column), simulated_runs()) for column in zip(*found, strict=True))
    return Preempted(histories, window_s, run_s, len(begins), sps, billed)


def left_of(
    stretches: Sequence[tuple[float, float, tuple[int, ...]]],
    begins_s: float,
    window_s: float,
    peers: Sequence[Peer],
    restart_s: float,
    rate: Rate,
) -> tuple[float, float]:
    """Return the shares of the samples/s and of the VMs' dollars that are left in one window.

    `stretches`: of a timeline, which covers the window.

    VMs that have room at its begin train at once. A place that loses room loses the youngest VMs. A VM is billed from its
    request.
    """
    ends_s = begins_s + window_s
    everybody = tuple(range(len(peers)))
    full_sps, full_usd = rate(everybody), sum(peer.usd_per_h for peer in peers)
    of_place: dict[int, list[int]] = {}  # peers in the order in which they got their VMs
    for index, peer in enumerate(peers):
        if peer.place is not None:
            of_place.setdefault(peer.place, []).append(index)
    up: dict[int, list[int]] = {place: [] for place in of_place}
    trains_at = {index: begins_s for index, peer in enumerate(peers) if peer.place is None}
    samples = usd_s = 0.0
    first = bisect_right(stretches, begins_s, key=lambda stretch: stretch[0]) - 1
    for number, (from_s, until_s, capacity) in enumerate(islice(stretches, first, None)):
        now_s, end_s = max(from_s, begins_s), min(until_s, ends_s)
        if now_s >= end_s:
            break
        for place, members in of_place.items():
            there, room = up[place], capacity[place]
            while len(there) > room:
                del trains_at[there.pop()]
            for index in members:
                if len(there) < room and index not in trains_at:
                    there.append(index)
                    trains_at[index] = now_s + (restart_s if number else 0.0)
        billed = sum(peers[index].usd_per_h for index in trains_at)
        usd_s += billed * (end_s - now_s)
        edges = sorted({now_s, end_s, *(at_s for at_s in trains_at.values() if now_s < at_s < end_s)})
        for a, b in pairwise(edges):
            training = tuple(index for index in everybody if trains_at.get(index, b) <= a)
            samples += rate(training) * (b - a)
    return samples / (full_sps * window_s), usd_s / (full_usd * window_s) if full_usd else 1.0


def with_preemptions(prediction: Prediction, found: Preempted) -> dict[str, Any]:
    """Return the fields of the prediction that preemptions change: `sps` and `assumptions`.

    Figures of one epoch are those while all peers train.
    """
    assert prediction.sps is not None
    assert prediction.simulated is not None
    assert prediction.epoch_s is not None
    nominal = prediction.sps.value
    without = nominal * prediction.epoch_s.value / prediction.simulated.epoch_s
    draws = without * found.sps
    share = _share(found.sps)
    low, high = np.quantile(draws, [0.05, 0.95])
    within = np.clip(found.sps, share.low, share.high)  # rare windows beyond do not widen the interval
    others, own = float(np.var(without)), float(np.var(nominal * within))
    assumptions: list[Assumption] = []
    for one in prediction.assumptions:
        if one.name == PREEMPTIONS:
            continue
        if one.share is not None and one.share_of == _SPS:
            scale = others / (others + own) if others + own else 0.0
            one = Assumption(one.name, one.value, one.source, one.share * scale, one.share_of)
        assumptions.append(one)
    sources = Counter(history.source for history in found.histories.by_place.values())
    assumptions.append(
        Assumption(
            PREEMPTIONS,
            f"{share.value:.1%} of the samples/s are left, {share.low:.1%} to {share.high:.1%}",
            ", ".join(sources),
            own / (others + own) if others + own else None,
        )
    )
    return {"sps": Value(nominal * share.value, float(low), float(high)), "assumptions": tuple(assumptions)}


def _share(draws: np.ndarray) -> Value:
    low, high = np.quantile(draws, [0.05, 0.95])
    return Value(float(np.median(draws)), float(low), float(high))
