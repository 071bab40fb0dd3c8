"""An experiment as the plan of its input sees it: peers with prices and rates, the store, the data set's size."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from analysis.pipeline.options import PlanPeer, Setting
from analysis.pipeline.profile_records import Profile
from analysis.planning.places import first_places
from analysis.planning.plan import Quote, Quoter, book_quoter
from analysis.planning.prediction import DEFAULT_NETWORK, inputs_of
from cloud.networks import Network, NetworkError
from cloud.prices.book import load_for
from experiments.emulation.accelerators import HOST, resolved
from experiments.schema.models import DIGITS, ExperimentSpec, Resources
from experiments.schema.slots import slots
from orchestrator.errors import UsageError
from orchestrator.launch.local_store import store_place
from orchestrator.quotes import sky_quoter

PREDICTED, GIVEN = "predicted", "given"
OF_PROFILE, OF_NETWORK, NO_LINK = "profile", "network", "unknown"


@dataclass(frozen=True, slots=True)
class PlanSetting:
    """The setting, and where its figures are from."""

    setting: Setting
    trainer_from: str  # PREDICTED or GIVEN
    link_from: Mapping[str, str]  # by slot: OF_PROFILE, OF_NETWORK or NO_LINK
    samples_from: str  # given, extrapolation or measured


def plan_setting(
    spec: ExperimentSpec,
    profile: Profile,
    *,
    prices: str = "",
    rented: bool = False,
    sps_per_peer: float | None = None,
    samples: int | None = None,
    offline_here: bool = False,
) -> PlanSetting:
    """Return the setting of an experiment. `prices`: in place of the experiment's; `samples`: in the data set.

    The first operations run on the kind of VM of the first slot, or on this machine. Raises UsageError, PriceBookError.
    """
    book = load_for(prices or spec.prices, rented=rented)
    quote = sky_quoter(book, os.environ) if rented else book_quoter(book)
    places = first_places(spec, lambda place: _quoted(quote, place).usd_per_h)
    rates = _rates(spec, places, rented, sps_per_peer)
    network = spec.emulation.network if spec.emulation is not None else DEFAULT_NETWORK
    peers: list[PlanPeer] = []
    link_from: dict[str, str] = {}
    for slot, place, rate in zip(slots(spec), places, rates, strict=True):
        priced = _quoted(quote, place)
        bps, rtt_s, source = _stream(profile, network, spec.data.location, place.infra)
        link_from[slot.name] = source
        peers.append(
            PlanPeer(
                slot.name,
                place.infra,
                priced.instance,
                place.accelerators,
                place.use_spot,
                priced.usd_per_h,
                priced.source,
                rate,
                bps,
                rtt_s,
            )
        )
    count, counted = _samples(profile, samples)
    if count < 1:
        raise UsageError(f"the profile of {profile.target} has no samples; profile again, or give --samples")
    return PlanSetting(
        Setting(
            tuple(peers),
            spec.data.location,
            count,
            book,
            None if offline_here else peers[0],
            public=rented,
            memory_bytes=profile.memory_bytes,
        ),
        PREDICTED if sps_per_peer is None else GIVEN,
        link_from,
        counted,
    )


def _quoted(quote: Quoter, place: Resources) -> Quote:
    return quote(place.infra, place.accelerators, place.use_spot)


def _rates(
    spec: ExperimentSpec, places: Sequence[Resources], rented: bool, sps_per_peer: float | None
) -> Sequence[float]:
    """Samples/s of each peer when it never waits for data."""
    if sps_per_peer is not None:
        return [sps_per_peer] * len(places)
    try:
        if not rented and spec.emulation is not None and resolved(spec.emulation, spec.task) == HOST:
            raise ValueError("its steps take as long as this machine needs for them")
        inputs, _ = inputs_of(spec, places)
    except (ValueError, NetworkError) as error:
        raise UsageError(
            f"{spec.name}: the trainer's rate cannot be predicted ({error}); give the samples/s of a peer that never waits for "
            "data with --sps-per-peer"
        ) from error
    return inputs.rates_sps


def _stream(profile: Profile, network: str, store: str, peer: str) -> tuple[float | None, float | None, str]:
    """Return bits/s of one stream from the store to a peer, the round trip in s, and where the figures are from."""
    if profile.link_mbps is not None:
        rtt_s = None if profile.link_rtt_ms is None else profile.link_rtt_ms / 1e3
        return profile.link_mbps * 1e6, rtt_s, OF_PROFILE
    try:
        path = Network.load(network).path(store_place(store, network), peer)
    except (NetworkError, UsageError):
        return None, None, NO_LINK
    return path.stream_bps, path.rtt_s, OF_NETWORK


def _samples(profile: Profile, given: int | None) -> tuple[int, str]:
    if given is not None:
        return given, GIVEN
    totals = [found.total_samples for _, found in profile.extrapolations]
    if totals:
        return max(totals), "extrapolation"
    return max(m.samples for m in profile.measurements), "measured"


def check_pipeline(
    profile: Profile, spec: ExperimentSpec, pipeline: str, also: str = ", or add --any-profile"
) -> None:
    """Refuse a profile of another pipeline. `pipeline`: that it must be of; "": the experiment's own. `also`: more advice.

    The fingerprint of an experiment's own pipeline is compared where nothing has to be built for it. Raises UsageError.
    """
    of = f"the profile of {profile.target} is of pipeline {profile.pipeline} ({', '.join(profile.ops)})"
    advice = f"profile that with `orch pipeline profile`{also}"
    if pipeline:
        if pipeline not in (profile.pipeline, profile.target):
            raise UsageError(f"{of}, not of {pipeline}; {advice}")
        return
    own = own_pipeline(spec)
    if own is not None:
        name, fingerprint = own
        if fingerprint != profile.fingerprint:
            what = (
                f"not of {name}, with which {spec.name} reads"
                if name != profile.pipeline
                else f"and its fingerprint {profile.fingerprint[:12]} differs from that of {spec.name}, {fingerprint[:12]}"
            )
            raise UsageError(
                f"{of}, {what}; {advice}, or name the profiled pipeline with --pipeline {profile.target}"
            )
    elif profile.target != spec.name:
        raise UsageError(
            f"{of}, not of the experiment {spec.name}; {advice}, or name the profiled pipeline with --pipeline "
            f"{profile.target}"
        )


def own_pipeline(spec: ExperimentSpec) -> tuple[str, str] | None:
    """Return name and fingerprint of the experiment's pipeline. None: its task would have to be built."""
    if spec.task is not None or spec.data.pipeline is not None or spec.data.dataset != DIGITS:
        return None
    from experiments.pipeline.load import load_pipeline

    return DIGITS, load_pipeline(DIGITS).fingerprint()
