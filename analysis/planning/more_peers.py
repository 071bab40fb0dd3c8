"""The predictor's figures of an experiment with more peers in the same places. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from decimal import Decimal

from analysis.planning.peer_space import Kind, PeerSpace
from analysis.planning.predicted_cost import cost_of
from analysis.planning.prediction import Prediction, inputs_of, predict
from cloud.prices.book import PriceBook
from experiments.schema.fields import MAX_PEERS
from experiments.schema.models import ExperimentSpec, Resources
from metrics.more_peers import MorePeers, Rate, by_figures


def more_peers(
    spec: ExperimentSpec,
    p: Prediction,
    book: PriceBook,
    *,
    rented: bool,
    places: Sequence[Resources],
    vm_usd_per_h: Decimal | None,
) -> MorePeers | None:
    """Double the peers of a predicted experiment until a doubling gives too little. None: nothing was predicted.

    `places`: of the slots' VMs, by slot; `vm_usd_per_h`: all of them together, None: unknown. Machines of one's own are
    doubled as well.
    """
    if p.granularity is None:
        return None
    tbs = spec.swarm.target_batch_size
    fast = _search_figures(spec, p, book, rented=rented, places=places, vm_usd_per_h=vm_usd_per_h)

    def figures(times: int) -> Rate | None:
        found = p
        if times > 1:
            where = [place for place in places for _ in range(times)]
            found = predict(grown(spec, times), book, rented=rented, places=where, epochs=1)
        if found.sps is None:
            return None
        usd = cost_of(found, tbs, tbs, None if vm_usd_per_h is None else vm_usd_per_h * times)
        per_1m = usd.usd_per_1m_samples
        return Rate(found.sps.value, None if per_1m is None else per_1m.value)

    overlaps = spec.swarm.method.schedule.overlaps_rounds
    return by_figures(
        p.granularity.value, spec.peer_count, most_peers(spec), fast or figures, overlaps=overlaps
    )


def _search_figures(
    spec: ExperimentSpec,
    p: Prediction,
    book: PriceBook,
    *,
    rented: bool,
    places: Sequence[Resources],
    vm_usd_per_h: Decimal | None,
) -> Callable[[int], Rate] | None:
    """The figures of the search (`analysis.planning.peer_space`), which take a hundredth of the time of a prediction.

    None: they are not those of the predictor, or not known: averaging that the search does not have, a route without a
    price, a place where two peers were not measured.
    """
    inputs, steps = inputs_of(spec, places)
    index: dict[tuple[str, str], int] = {}
    kinds: list[Kind] = []
    counts: list[int] = []
    for place, rate, step in zip(places, inputs.rates_sps, steps, strict=True):
        key = (place.infra, place.accelerators)
        if key not in index:
            index[key] = len(kinds)
            # The VMs' dollars are added below: their prices may be others than the book's.
            kinds.append(Kind(*key, place.use_spot, rate, step.sync_work_s, Decimal(0), step_s=step.step_s))
            counts.append(0)
        counts[index[key]] += 1
    space = PeerSpace(kinds, inputs, book, rented=rented)
    if space.unfit:
        return None

    def figures(times: int) -> Rate:
        found = space.figures(tuple(count * times for count in counts))
        if vm_usd_per_h is None:
            return Rate(found.sps, None)
        return Rate(found.sps, found.usd_per_1m + float(vm_usd_per_h) * times / 3600 / found.sps * 1e6)

    equal = p.sps is not None and abs(figures(1).sps / p.sps.value - 1) < 1e-9
    return figures if equal else None


def grown(spec: ExperimentSpec, times: int) -> ExperimentSpec:
    """Return the experiment with `times` as many peers in each group. It is not validated."""
    groups = tuple(group.model_copy(update={"count": group.count * times}) for group in spec.peers)
    return spec.model_copy(update={"peers": groups})


def most_peers(spec: ExperimentSpec) -> int:
    """Return how many peers the experiment can have: each needs a batch of the target batch size."""
    return min(MAX_PEERS, spec.swarm.target_batch_size // spec.swarm.batch_size)
