"""A round behind the calculation that failed: who tries again, and who takes over what the others made of it."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest
from overlap_rig import OverlappedPeer

from experiments.peer.averaging.lineage import FIRST, PeerVersion
from experiments.peer.optimizer.overlap import OverlappedOptimizer
from experiments.peer.optimizer.swarm_optimizer import SwarmOptimizer


def failing(swarm: Any, monkeypatch: pytest.MonkeyPatch) -> OverlappedPeer:
    """A peer whose first attempt failed, and whose second would succeed; `swarm` has an `epoch`."""
    made, ends = OverlappedPeer(), [OSError("a reducer died"), None]
    swarm.asked_s = []

    def result(_: float) -> dict[str, Any]:
        error = ends.pop(0)
        swarm.ended_s = time.monotonic()
        if error is not None:
            raise error
        return {"b": made._version.as_list(), "c": PeerVersion(0, FIRST, "c").as_list()}

    def ask(_: float = 10.0) -> Any:
        swarm.asked_s.append(time.monotonic())
        return swarm

    control = SimpleNamespace(result=result, done=lambda: True)
    made._average = lambda control: OverlappedOptimizer._average(made, control)  # type: ignore[method-assign]
    made._attempt = lambda control, left_s: made_control  # type: ignore[method-assign, return-value]
    made_control = control
    made.tracker.ask = ask  # type: ignore[attr-defined]
    made.load_state_from_peers = lambda joining=False, **_: made.load_state()  # type: ignore[method-assign]
    monkeypatch.setattr("experiments.peer.optimizer.swarm_optimizer._LEAST_S", 0.0)
    made.news_s = 0.0
    return made


def test_no_retry_without_the_peers_for_which_the_round_succeeded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else the others would have two lineages; nobody would know of them in the last epoch."""
    peer = OverlappedPeer()
    failed = failing(peer.tracker, monkeypatch)
    peer.tracker.__class__.epoch = property(lambda self: [0, *self.told][-1])  # type: ignore[attr-defined]
    peer.calculate(1, 1, 1, 1)
    peer.come_to("averaged")  # in the middle of a step
    failed.calculate(1, 1, 1, 1)
    failed.come_to("")
    failed.calculate(1)
    assert peer.local_epoch == 0
    assert (failed.loads, failed.weight, failed._lineage) == (1, 0.0, FIRST)


def test_round_that_failed_for_all_is_retried_after_a_delay(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    swarm = SimpleNamespace(epoch=0)
    peer = failing(swarm, monkeypatch)
    assert OverlappedOptimizer.news_s >= 1.0
    assert SwarmOptimizer.news_s == 0.0
    peer.news_s = 0.3
    monkeypatch.setattr(peer, "_on_retry", lambda _: swarm.retried.append(swarm.asked_s[0] - swarm.ended_s))
    swarm.retried = []
    peer.calculate(1, 1, 1, 1)
    peer.come_to("")
    peer.calculate(1)
    assert (peer.loads, peer.weight, peer.local_epoch) == (0, -1.0, 1)
    assert [waited_s >= 0.3 for waited_s in swarm.retried] == [True]


@pytest.mark.parametrize("news_s", [0.01, 0.0])
def test_epoch_reported_by_a_dead_peer_does_not_count(monkeypatch: pytest.MonkeyPatch, news_s: float) -> None:
    """It reported the next epoch and was killed: the survivor of the pair would wait for a state that no peer has.

    With overlap, where epochs are reported before the weights are available, all peers are checked.
    """
    asked: list[str] = []
    swarm = SimpleNamespace(epoch=1)
    peer = failing(swarm, monkeypatch)

    def found_dead(_: int, until: str = "enough answered") -> int:
        asked.append(until)
        swarm.epoch = 0  # the tracker excludes dead peers
        return 0

    monkeypatch.setattr(peer._others, "others_expected", found_dead)
    peer.news_s = news_s
    peer.calculate(1, 1, 1, 1)
    peer.come_to("")
    peer.calculate(1)
    assert (peer.weight, peer.loads, peer.local_epoch) == (-1.0, 0, 1)
    assert asked == ["known" if news_s else "enough answered"]
