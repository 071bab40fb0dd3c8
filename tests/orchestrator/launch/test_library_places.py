"""Every experiment of the library has a network with a place for each peer and the store."""

from __future__ import annotations

import pytest

from cloud.local.network.shaper import Node, Shaper
from cloud.networks import Network, vm_limit
from experiments.parse import library, load
from orchestrator.launch.local_store import store_place


@pytest.mark.parametrize("name", [entry.name for entry in library()])
def test_the_switch_can_place_all_nodes(name: str):
    spec = load(name)
    assert spec.emulation is not None
    shaper = Shaper(Network.load(spec.emulation.network), 100.0, 1.0, vm_limit())
    store = store_place(spec.data.location, spec.emulation.network)
    shaper.add(1, Node("store", "store", store))
    shaper.add(2, Node("monitor", "monitor", None))
    places = [group.alternatives[0].infra for group in spec.peers for _ in range(group.count)]
    for index, place in enumerate(places, start=3):
        shaper.add(index, Node(f"peer-{index}", "vm", place))
