"""The slots an experiment wishes for: one a peer, each with its places in order of preference."""

from __future__ import annotations

from dataclasses import dataclass

from cloud.places import expand
from experiments.schema.models import ExperimentSpec, Replace, Resources


@dataclass(frozen=True, slots=True)
class Slot:
    """The wish for one peer; outlives its VMs."""

    name: str  # "us-0"
    group: str
    places: tuple[Resources, ...]  # in order of preference; each names one zone (or a region without zones)
    replace: Replace


def slots(spec: ExperimentSpec) -> tuple[Slot, ...]:
    """All slots in the file's order. A region without a zone becomes one place for each of its zones."""
    made: list[Slot] = []
    for group in spec.peers:
        places = tuple(
            resources.model_copy(update={"infra": place.location})
            for resources in group.alternatives
            for place in expand(resources.infra)
        )
        made += [Slot(f"{group.name}-{i}", group.name, places, group.replace) for i in range(group.count)]
    return tuple(made)
