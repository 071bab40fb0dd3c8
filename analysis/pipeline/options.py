"""A profile's strategies at work in an experiment: how many samples/s its peers train on, and what limits them. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Literal

from analysis.pipeline.profile_records import Measurement, Profile
from cloud.prices.book import PriceBook

Bound = Literal["trainer", "link", "input"]
"""What limits a peer: its accelerator, the path to the store, or T4, which its own input delivers."""
BOUNDS: tuple[Bound, ...] = ("trainer", "link", "input")  # of equal limits, the first one is named


@dataclass(frozen=True, slots=True)
class PlanPeer:
    """A peer of the experiment, at its slot's first place."""

    slot: str
    location: str
    instance: str
    accelerator: str
    use_spot: bool
    usd_per_h: Decimal | None  # None: unknown, and `price_source` says why
    price_source: str
    trainer_sps: float  # when it never waits for data
    stream_bps: float | None  # bits/s of one stream from the store; None: unknown, so the path limits nothing
    rtt_s: float | None = None  # round trip to the store; None: unknown, and counted as none


@dataclass(frozen=True, slots=True)
class Setting:
    """What a strategy's rate and dollars depend on besides the strategy.

    Each peer reads an equal share of the data set in each pass. `offline`: the peer on whose kind of VM the first
    operations run; None: this machine, which is not billed.
    """

    peers: tuple[PlanPeer, ...]
    store: str  # its location
    samples: int  # in the data set
    book: PriceBook
    offline: PlanPeer | None
    public: bool = False  # rented VMs have public addresses
    memory_bytes: int | None = None  # of a peer, for a cache; None: unknown, so none is refused


@dataclass(frozen=True, slots=True)
class Option:
    """A strategy with what it needs of others of its profile."""

    measured: Measurement
    source_wire_bytes: float  # a sample, of the shards that the first operations read
    source_stored_bytes: float  # a sample, of those shards
    first_pass: Measurement  # the same strategy without a cache if it was measured; it fills the cache
    shard_samples: float | None = (
        None  # of a shard, in the mean; None: so many that its round trip does not count
    )


@dataclass(frozen=True, slots=True)
class Link:
    """What a path takes for a sample, of all streams together."""

    transfer_s: float
    round_trip_s: float = 0.0  # a request per shard

    @property
    def sps(self) -> float:
        """Samples per second that the path carries at most."""
        total_s = self.transfer_s + self.round_trip_s
        return 1 / total_s if total_s > 0 else math.inf


NO_LINK = Link(0.0)


@dataclass(frozen=True, slots=True)
class Phase:
    """A peer's rate over the samples of one kind of pass."""

    samples: float  # inf: all that follow
    sps: float
    bound: Bound


@dataclass(frozen=True, slots=True)
class Training:
    """A number of passes over the data set by all peers. `peer_samples` by slot; each peer trains for `seconds`."""

    seconds: float
    sps: float
    bound: Bound  # for most of the peers' time
    peer_samples: Mapping[str, float]


def options_of(profile: Profile) -> tuple[Option, ...]:
    """Return the profile's strategies.

    Raises ValueError if it has none without a stored prefix, codec and cache, or if one delivered nothing.
    """
    for m in profile.measurements:
        if not 0 < m.delivered_sps.value < math.inf:
            raise ValueError(f"{m.strategy.label} delivered {m.delivered_sps.value:g} samples/s")
    source = baseline_of(profile)
    uncached = {m.strategy: m for m in profile.measurements if m.strategy.cache == "none"}
    return tuple(
        Option(
            m,
            source.wire_bytes,
            source.stored_bytes,
            uncached.get(replace(m.strategy, cache="none"), m),
            # shards that were generated for the profile are smaller than those of a data set
            shard_samples=None if profile.generated or not m.shards else m.samples / m.shards,
        )
        for m in profile.measurements
    )


def baseline_of(profile: Profile) -> Measurement:
    """Return the strategy to compare with: nothing stored, nothing cached, the fewest streams and workers.

    Raises ValueError if the profile has none.
    """
    found = [
        m
        for m in profile.measurements
        if (m.strategy.split, m.strategy.codec, m.strategy.cache) == (0, "none", "none")
    ]
    if not found:
        raise ValueError("the profile has no strategy with split 0, no codec and no cache to compare with")
    return min(found, key=lambda m: (m.strategy.streams, m.strategy.workers, m.strategy.worker_kind))


def at_t4(option: Option, bound: Literal["low", "high"]) -> Option | None:
    """Return the option with T4 at one end of its interval. None: there is no interval, or it reaches 0."""

    def ended(measured: Measurement) -> Measurement | None:
        t4 = measured.delivered_sps
        if t4.low is None or t4.high is None or t4.low <= 0:
            return None
        value = t4.low if bound == "low" else t4.high
        return replace(measured, delivered_sps=replace(t4, value=value))

    measured, first = ended(option.measured), ended(option.first_pass)
    return None if measured is None or first is None else replace(option, measured=measured, first_pass=first)


def link_of(option: Option, peer: PlanPeer, wire_bytes: float) -> Link:
    """Return what the path to the store takes for a sample of `wire_bytes`. Each stream waits for its own round trips."""
    if wire_bytes <= 0:
        return NO_LINK
    streams = option.measured.strategy.streams
    transfer_s = 0.0 if peer.stream_bps is None else 8 * wire_bytes / peer.stream_bps / streams
    rtt_s = peer.rtt_s or 0.0
    round_trip_s = rtt_s / option.shard_samples / streams if option.shard_samples else 0.0
    return Link(transfer_s, round_trip_s)


def rate(t4_sps: float, trainer_sps: float, link: Link) -> tuple[float, Bound]:
    """Return min(T4, trainer's rate, link's rate), and which of them it is: each goes on while the others work."""
    rates: dict[Bound, float] = {"trainer": trainer_sps, "link": link.sps, "input": t4_sps}
    bound = min(BOUNDS, key=lambda name: rates[name])
    return rates[bound], bound


def phases(option: Option, peer: PlanPeer, share_samples: float) -> tuple[Phase, Phase]:
    """Return a peer's first pass over its share, and its later passes."""
    measured, first_t4, later_t4 = (
        option.measured,
        option.first_pass.delivered_sps,
        option.measured.delivered_sps,
    )
    first, first_bound = rate(first_t4.value, peer.trainer_sps, link_of(option, peer, measured.wire_bytes))
    later, later_bound = rate(
        later_t4.value, peer.trainer_sps, link_of(option, peer, measured.later_wire_bytes)
    )
    return Phase(share_samples, first, first_bound), Phase(math.inf, later, later_bound)


def train(option: Option, setting: Setting, passes: int) -> Training:
    """Return the training of `passes` passes. All peers begin and end together, as a swarm does."""
    share = setting.samples / len(setting.peers)
    by_peer = {peer.slot: phases(option, peer, share) for peer in setting.peers}
    total = float(passes * setting.samples)
    seconds = _seconds(total, list(by_peer.values()))
    busy: dict[Bound, float] = dict.fromkeys(BOUNDS, 0.0)
    samples: dict[str, float] = {}
    for slot, (first, later) in by_peer.items():
        first_s = min(seconds, first.samples / first.sps)
        busy[first.bound] += first_s
        busy[later.bound] += seconds - first_s
        samples[slot] = first_s * first.sps + (seconds - first_s) * later.sps
    longest = max(
        BOUNDS[::-1], key=lambda name: busy[name]
    )  # of equals the trainer last: something else limits, too
    return Training(seconds, total / seconds, longest, samples)


def _seconds(total: float, peers: Sequence[tuple[Phase, Phase]]) -> float:
    """Return the time after which peers that each go through their phases have processed `total` samples together."""
    changes = sorted((first.samples / first.sps, later.sps - first.sps) for first, later in peers)
    at_s, done, sps = 0.0, 0.0, math.fsum(first.sps for first, _ in peers)
    for change_s, more_sps in changes:
        if done + (change_s - at_s) * sps >= total:
            break
        done += (change_s - at_s) * sps
        at_s, sps = change_s, sps + more_sps
    return at_s + (total - done) / sps
