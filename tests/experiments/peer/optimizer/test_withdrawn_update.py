"""A leaving peer lets the others average without stepping itself, and no longer serves its last update."""

from __future__ import annotations

import json
import multiprocessing
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hivemind.averaging.control import AveragingStage
from hivemind.compression import NoCompression

from experiments.peer.optimizer.swarm_optimizer import SwarmOptimizer
from experiments.peer.state.encoding import Blob, unpack
from experiments.peer.state.server import StateDonor
from experiments.peer.state.snapshot_cache import SnapshotCache

EPOCH = 4


class Donor(StateDonor):
    """As in the peer's own process, without the averager's process."""

    def __init__(self) -> None:
        self._parent_pid = -1  # none: there is nothing to shut down
        self.lineage, self._before, self.local_epoch, self.rank = "e4", "e3", EPOCH, None
        self.last_factors = lambda lineage: None
        self._update_compression, self._weights_lock, self._cache = (
            NoCompression(),
            threading.RLock(),
            SnapshotCache(),
        )
        self._offer: Any = multiprocessing.get_context("fork").Array("c", 256)

    def step(self, *args: Any, **kwargs: Any) -> None:
        """Nothing is delayed."""

    def shutdown(self) -> None:
        """There is no process."""

    @property
    def offered(self) -> int:
        """The oldest update offered to others."""
        return json.loads(self._offer.value)[2]

    def gives(self) -> float | None:
        """The values in the served update to this epoch."""
        blob: Blob | None = self._blob("update", EPOCH, "")
        return None if blob is None else unpack(blob.header, blob.body)[1][0].item()


class Peer(SwarmOptimizer):
    """A peer that has stepped with 4 and whose next round is waiting for it."""

    def __init__(self) -> None:
        self._parent_pid, self.averaged = -1, [torch.tensor([4.0])]
        self.grad_averager: Any = SimpleNamespace(_averaged_tensors=self.averaged, shutdown=lambda: None)
        self.state_averager = self.donor = Donor()
        self.donor.last_update = self._last_update
        self.tracker = self.progress = SimpleNamespace(shutdown=lambda _: None)  # type: ignore[assignment]
        self.scheduled_grads, self.scheduled_state = Group(self.averaged), None  # type: ignore[assignment]
        self.averaging_timeout, self.shutdown_timeout, self.status_loglevel = 30.0, 2.0, 10
        self._lineage = "e4"
        self.round_ended(stepped=True)

    def __del__(self) -> None:
        """Ended by the test."""


class Group:
    """A prepared round; the averager overwrites the last average with that of the others."""

    stage, triggered, weight = AveragingStage.AWAITING_TRIGGER, False, 1.0

    def __init__(self, averaged: list[torch.Tensor]) -> None:
        self.averaged = averaged

    def done(self) -> bool:
        return False

    def allow_allreduce(self) -> None:
        assert self.weight == 0.0
        self.triggered = True
        self.averaged[0].fill_(5.0)

    def result(self, timeout: float) -> None:
        """At once."""


WAYS = [lambda peer: peer.leave_round(1.0), lambda peer: peer.shutdown()]


@pytest.mark.parametrize("goes", WAYS, ids=["leave_round", "shutdown"])
def test_round_without_a_step_is_not_served_as_the_last_update(goes: Callable[[Peer], None]) -> None:
    peer = Peer()
    assert (peer.donor.offered, peer.donor.gives()) == (EPOCH, 4.0)
    peer.donor._cache.clear()  # not requested yet
    goes(peer)
    assert peer.averaged[0].item() == 5.0
    assert (peer.donor.offered, peer.donor.gives()) == (0, None)


@pytest.mark.parametrize("goes", WAYS, ids=["leave_round", "shutdown"])
def test_packing_the_last_update_ends_before_that_round(goes: Callable[[Peer], None]) -> None:
    peer = Peer()
    going = threading.Thread(target=goes, args=(peer,))
    with peer.donor._weights_lock:  # as while an update is packed
        going.start()
        going.join(0.2)
        assert (going.is_alive(), peer.averaged[0].item()) == (True, 4.0)
    going.join(10.0)
    assert (going.is_alive(), peer.averaged[0].item()) == (False, 5.0)


def test_without_a_round_the_last_update_stays() -> None:
    peer = Peer()
    peer.scheduled_grads = None
    peer.leave_round(1.0)
    assert (peer.donor.offered, peer.donor.gives()) == (EPOCH, 4.0)
