"""The join record of a peer's initial download."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from experiments.peer.optimizer.join import Download, take_over
from experiments.peer.state.catch_up import CatchUpResult
from experiments.peer.swarm.membership import Member

MEMBERS = [Member("run-a-0", "a", "training", 7, "/ip4/10.0.0.2/tcp/1/p2p/QmA")]


class Optimizer:
    """An optimizer that returns a given catch-up result."""

    def __init__(self, caught: CatchUpResult) -> None:
        self.local_epoch, self.caught, self.did = 7, caught, list[str]()

    def load_state_from_peers(self, joining: bool) -> CatchUpResult:
        assert joining
        self.did.append("load")
        return self.caught

    def take_round(self) -> SimpleNamespace:
        self.did.append("take round")  # its cost is not part of the first epoch
        return SimpleNamespace()


def joined(caught: CatchUpResult) -> Download:
    optimizer = Optimizer(caught)
    download = take_over(cast(Any, optimizer), lambda: MEMBERS)
    assert optimizer.did == ["load", "take round"]
    return download


def test_donor_is_reported_by_vm_name() -> None:
    caught = CatchUpResult(donor="QmA", states=1, updates=2, resumed=1, received=3_000_000, seconds=4.5)
    assert joined(caught) == Download(4.5, 3_000_000, "run-a-0", 1)
    unknown = CatchUpResult(donor="QmGone", states=1, received=8, seconds=1.0)
    assert joined(unknown).donor == "QmGone"


def test_no_download_is_reported_as_zero() -> None:
    assert joined(CatchUpResult()) == Download(0.0, 0, "", 0)
