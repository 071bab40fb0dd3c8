"""Notes on network paths that the network file assumes instead of measuring. Pure."""

from __future__ import annotations

from itertools import product

from cloud.networks.network import Network, NetworkError
from experiments.schema.fields import NO_NETWORK
from experiments.schema.models import ExperimentSpec


def assumed_paths(spec: ExperimentSpec) -> list[str]:
    """Return a sentence for each path between the experiment's places that its network file only assumes."""
    if spec.emulation is None or spec.emulation.network == NO_NETWORK:
        return []
    network = Network.load(spec.emulation.network)
    places = {"/".join(place.infra.split("/")[:2]) for group in spec.peers for place in group.alternatives}
    notes: list[str] = []
    for here, there in product(sorted(places), repeat=2):
        try:
            path = network.path(here, there)
        except NetworkError:
            continue  # no traffic between two places of one peer each
        if path.assumed:
            notes.append(
                f"network {network.name}: the path from {here} to {there} is assumed, not measured: {path.source}"
            )
    return notes
