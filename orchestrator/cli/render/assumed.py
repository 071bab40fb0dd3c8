"""What of an emulated network nobody measured, told with the plan. Pure."""

from __future__ import annotations

from itertools import product

from cloud.networks.network import Network, NetworkError
from experiments.schema.fields import NO_NETWORK
from experiments.schema.models import ExperimentSpec


def assumed_paths(spec: ExperimentSpec) -> list[str]:
    """One sentence for each path between the experiment's places that its network file only assumes."""
    if spec.emulation is None or spec.emulation.network == NO_NETWORK:
        return []
    network = Network.load(spec.emulation.network)
    places = {"/".join(wished.infra.split("/")[:2]) for group in spec.peers for wished in group.alternatives}
    told: list[str] = []
    for here, there in product(sorted(places), repeat=2):
        try:
            path = network.path(here, there)
        except NetworkError:
            continue  # between two places of one peer each: nothing travels there
        if path.assumed:
            told.append(f"from {here} to {there} the network {network.name} only assumes: {path.source}")
    return told
