"""Slots of an experiment: one per peer, each with its places in order of preference."""

from __future__ import annotations

from dataclasses import dataclass

from cloud.places import expand
from experiments.schema.models import ExperimentSpec, Replace, Resources


@dataclass(frozen=True, slots=True)
class Slot:
    """The position of one peer. It outlives the VMs that fill it."""

    name: str  # "us-0"
    group: str
    places: tuple[Resources, ...]  # in order of preference; each has one zone (or a region without zones)
    replace: Replace


def slots(spec: ExperimentSpec) -> tuple[Slot, ...]:
    """Return all slots in the order of the file. A region without a zone becomes one place per zone of it."""
    made: list[Slot] = []
    for group in spec.peers:
        places = tuple(
            resources.model_copy(update={"infra": place.location})
            for resources in group.alternatives
            for place in expand(resources.infra)
        )
        made += [Slot(f"{group.name}-{i}", group.name, places, group.replace) for i in range(group.count)]
    return tuple(made)
