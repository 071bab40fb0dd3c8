"""The predictor's figures of an experiment with more peers in the same places. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal

from analysis.planning.predicted_cost import cost_of
from analysis.planning.prediction import Prediction, predict
from cloud.prices.book import PriceBook
from experiments.averaging.overlap import BLOCKING
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

    overlaps = spec.swarm.method.schedule is not BLOCKING
    return by_figures(p.granularity.value, spec.peer_count, most_peers(spec), figures, overlaps=overlaps)


def grown(spec: ExperimentSpec, times: int) -> ExperimentSpec:
    """Return the experiment with `times` as many peers in each group. It is not validated."""
    groups = tuple(group.model_copy(update={"count": group.count * times}) for group in spec.peers)
    return spec.model_copy(update={"peers": groups})


def most_peers(spec: ExperimentSpec) -> int:
    """Return how many peers the experiment can have: each needs a batch of the target batch size."""
    return min(MAX_PEERS, spec.swarm.target_batch_size // spec.swarm.batch_size)
