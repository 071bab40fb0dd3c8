"""The averager selected by a peer's config."""

from __future__ import annotations

import pytest
from peer_rig import config_of

from experiments.peer.averaging.hierarchical import HierarchicalAverager
from experiments.peer.config import PeerConfigError
from experiments.peer.optimizer.build import _averager_of


def test_hierarchical_averager_gets_the_region() -> None:
    made = _averager_of(config_of("a", "", (), averaging="hierarchical", averaging_region="gcp/us-central1"))
    assert made.func is HierarchicalAverager
    assert made.keywords == {"region": "gcp/us-central1"}


def test_flat_averager_is_the_default() -> None:
    made = _averager_of(config_of("a", "", ()))
    assert isinstance(made, type)
    assert not issubclass(made, HierarchicalAverager)


def test_unknown_averaging_is_refused() -> None:
    with pytest.raises(PeerConfigError, match="'tree' is neither flat nor hierarchical"):
        _averager_of(config_of("a", "", (), averaging="tree"))
