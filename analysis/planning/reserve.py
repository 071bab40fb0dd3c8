"""What an experiment must keep back of its budget: how late money is known, how long ending takes, what is in flight.

Pure. All dollars at the study's scale, as the budget is.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from decimal import Decimal
from itertools import product

from cloud.prices.book import PriceBook
from experiments.averaging.records import region_of
from experiments.catalog import models
from experiments.emulation.scales import EmulationPlan
from experiments.schema.models import ExperimentSpec
from experiments.schema.slots import slots
from metrics.cost.budget import reserve_usd

_STATE_BYTES_PER_VALUE = 12  # weights and Adam's two moments, 32 bits each: what one that joins downloads
_OVERHEAD = Decimal("1.25")  # frames, repeated rounds, the DHT


@dataclass(frozen=True, slots=True)
class Pace:
    """Worst seconds of a provider: until spending is known, until the first VM is told to end, until all have."""

    metering_period_s: float
    decision_s: float
    teardown_s: float

    @property
    def all_s(self) -> float:
        """From a dollar spent to the last VM's end."""
        return self.metering_period_s + self.decision_s + self.teardown_s

    def reserve_usd(self, burn_usd_per_h: Decimal, egress_usd_per_h: Decimal) -> Decimal:
        """`metrics.cost.budget.reserve_usd` at this pace."""
        return reserve_usd(
            burn_usd_per_h,
            egress_usd_per_h,
            metering_period_s=self.metering_period_s,
            decision_s=self.decision_s,
            teardown_s=self.teardown_s,
        )


# Spending is looked at each 5 s, a tick takes 1 s, a local VM ends in a second (its call's deadline is 60 s).
LOCAL_PACE = Pace(metering_period_s=10.0, decision_s=5.0, teardown_s=60.0)
# SkyPilot's `down` was measured at 6 to 28 s; eight VMs at a time, and a call that is repeated once. But should the
# controller be lost just then, the VMs live until their lease is over and SkyPilot's autodown has ended them: see `pace_of`.
RENTED_PACE = Pace(metering_period_s=60.0, decision_s=30.0, teardown_s=300.0)
_AUTODOWN_S = 420.0  # five idle minutes, then it looks once a minute and took 51 s


def pace_of(emulation: EmulationPlan | None, rented: bool, lease_s: float) -> Pace:
    """The provider's pace in the study's seconds, in which dollars are counted.

    Rented VMs: their teardown is the longer of an orderly one and one that nobody is there to ask for.

    An emulated epoch is shorter than the study's: while it lasts its VMs are billed by the clock, and at its end
    as long as the study's would have taken. So up to one such epoch is not known yet.
    """
    if rented:
        return replace(RENTED_PACE, teardown_s=max(RENTED_PACE.teardown_s, lease_s + _AUTODOWN_S))
    if emulation is None or emulation.study_epoch_s is None or emulation.epoch_s is None:
        return LOCAL_PACE
    stretch = max(1.0, emulation.study_epoch_s / emulation.epoch_s)
    late_s = emulation.study_epoch_s if stretch > 1.0 else 0.0
    local = LOCAL_PACE
    return Pace(
        local.metering_period_s * stretch + late_s, local.decision_s * stretch, local.teardown_s * stretch
    )


def epoch_egress_usd(spec: ExperimentSpec, book: PriceBook, *, rented: bool = False) -> Decimal | None:
    """The most that one epoch's traffic may cost; None: unknown, for the reasons of `unpriced_traffic`.

    `rented`: peers reach each other at public addresses, which clouds bill inside a zone too.

    Each two peers exchange gradients and means, each slot in whichever of its places is dearest for it (its region,
    for hierarchical averaging, is that of the first); one peer joins and downloads the whole state; every sample of
    the batch comes from the store.
    """
    groups = _groups(spec)
    model = models()[spec.model]
    if model.bytes_per_sample is None:
        return None
    regions = [region_of(places[0]) for places, count in groups.items() for _ in range(count)]
    method = spec.swarm.method
    vectors = method.exchange.sent(regions)
    gradient_bytes = method.compression.gradient_bytes(spec.model, model.parameters)
    state_bytes = model.parameters * _STATE_BYTES_PER_VALUE
    usd = state_usd = Decimal(0)
    for pairs, links in _ways(groups):
        a, b = (region_of(place) for place in links[0])
        share = vectors[a, b] / (regions.count(a) * (regions.count(b) - (a == b)))
        pair_bytes = int(share * gradient_bytes)
        sent = [book.egress(src, dst, pair_bytes, public=rented) for src, dst in links]
        state = [book.egress(src, dst, state_bytes, public=rented) for src, dst in links]
        if None in sent or None in state:
            return None
        usd += pairs * max(s for s in sent if s is not None)
        state_usd = max(state_usd, *(s for s in state if s is not None))
    read = spec.swarm.target_batch_size * model.bytes_per_sample
    data = [book.store_egress(spec.data.location, place, read) for places in groups for place in places]
    if None in data:
        return None
    usd += max(d for d in data if d is not None)
    return (usd + state_usd) * _OVERHEAD


def unpriced_traffic(spec: ExperimentSpec, book: PriceBook, *, rented: bool = False) -> list[str]:
    """Why nobody knows what the traffic costs: each way that the book has no price of; empty: `epoch_egress_usd`."""
    groups = _groups(spec)
    unknown = [
        f"{src} to {dst}"
        for _, links in _ways(groups)
        for src, dst in links
        if book.ladder(src, dst, public=rented) is None
    ]
    store = spec.data.location
    places = (place for group in groups for place in group)
    unknown += [f"the store in {store} to {dst}" for dst in places if book.store_ladder(store, dst) is None]
    if models()[spec.model].bytes_per_sample is None:
        unknown.append(f"the samples of {spec.model}, whose size is unknown")
    return list(dict.fromkeys(unknown))


def _groups(spec: ExperimentSpec) -> dict[tuple[str, ...], int]:
    """How many slots have each list of places."""
    groups: dict[tuple[str, ...], int] = {}
    for slot in slots(spec):
        places = tuple(p.infra for p in slot.places)
        groups[places] = groups.get(places, 0) + 1
    return groups


def _ways(groups: dict[tuple[str, ...], int]) -> Iterator[tuple[int, list[tuple[str, str]]]]:
    """From each group to each: how many pairs of slots, and the ways that one of them may take."""
    for (here, n), (there, m) in product(groups.items(), repeat=2):
        pairs = n * m - (n if here == there else 0)
        if pairs:
            yield pairs, list(product(here, there))


def egress_ceiling_usd_per_h(epoch_usd: Decimal, epoch_s: float, pace: Pace) -> Decimal:
    """Dollars an hour which, over all of the pace's seconds, make what traffic may cost until the run has ended.

    Traffic is metered when its epoch ends, so one whole epoch counts as in flight beside what is sent meanwhile.
    """
    epochs = Decimal(1) + Decimal(str(pace.all_s)) / Decimal(str(max(epoch_s, 1.0)))
    return epoch_usd * epochs * Decimal(3600) / Decimal(str(pace.all_s))
