"""Decisions of catching up: one state from the nearest of the newest peers, and termination for any link."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments.peer.state.catch_up import (
    CatchUpError,
    Get,
    Limits,
    NoStateError,
    Offer,
    Wait,
    catch_up,
    decide,
)
from experiments.peer.state.client import DownloadError, ReceivedBlob
from experiments.peer.state.snapshot_cache import KEPT_UPDATES, SnapshotCache

LIMITS = Limits(without_state_s=60.0, round_s=30.0)


def offer(donor: str, rtt_ms: float, epoch: int, **more: object) -> Offer:
    return replace(Offer(donor, rtt_ms / 1000.0, epoch, False, 0, f"at {epoch}"), **more)  # type: ignore[arg-type]


def test_state_comes_from_the_nearest_of_the_newest_peers() -> None:
    offers = [offer("far", 100, 5), offer("near", 1, 5), offer("nearer, older", 0.5, 4)]
    assert decide(0, "", offers) == Get("state", 5, ("near", "far"))


def test_peer_lacking_one_update_downloads_only_the_update() -> None:
    offers = [offer("near", 1, 5), offer("far", 100, 5, oldest_update=4)]
    assert decide(4, "at 4", offers) == Get("update", 5, ("far",))
    assert decide(3, "at 3", offers) == Get("update", 4, ("far",))
    assert decide(2, "at 2", offers) == Get("state", 5, ("near", "far"))
    assert decide(4, "at 4", offers, updates=False) == Get("state", 5, ("near", "far"))


def test_a_joiner_waits_for_the_end_of_a_round() -> None:
    assert decide(5, "at 5", [offer("a", 1, 5, averaging=True)]) == Wait()
    assert decide(5, "at 5", [offer("a", 1, 5), offer("late", 1, 4, averaging=True)]) is None
    assert decide(0, "", [offer("a", 1, 0, lineage="", averaging=True)]) == Wait()


def test_majority_of_weights_wins_on_all_peers() -> None:
    peers = [("a", "x"), ("b", "y"), ("c", "y"), ("d", "z")]
    ends = []
    for own, lineage in peers:
        offers = [offer(name, 1, 3, lineage=its) for name, its in peers if name != own]
        ends.append(decide(3, lineage, offers))
    assert ends == [Get("state", 3, ("b", "c")), None, None, Get("state", 3, ("b", "c"))]
    pair = [decide(3, "x", [offer("b", 1, 3, lineage="y")]), decide(3, "y", [offer("a", 1, 3, lineage="x")])]
    assert pair == [Get("state", 3, ("b",)), None]


def test_at_the_start_there_is_nothing_to_download() -> None:
    assert decide(0, "", [offer("a", 1, 0, lineage="")]) is None
    assert decide(0, "", []) is None
    assert decide(7, "mine", [offer("a", 1, 5)]) is None


@dataclass
class Swarm:
    """One donor that ends an epoch every `epoch_s`, averaging in the last `round_s`; the receiver has one link."""

    epoch_s: float
    round_s: float
    state_s: float
    update_s: float
    at: float = 0.0
    epoch: int = 0
    lineage: str = ""
    kept_from: int | None = None
    took: list[str] = field(default_factory=list)

    @property
    def its(self) -> int:
        return 10 + int(self.at // self.epoch_s)

    def offers(self) -> list[Offer]:
        self.at += 0.01
        oldest = self.its if self.kept_from is None else max(self.kept_from + 1, self.its - KEPT_UPDATES + 1)
        averaging = self.at % self.epoch_s > self.epoch_s - self.round_s
        return [Offer("donor", 0.01, self.its, averaging, oldest, f"at {self.its}")]

    def fetch(self, get: Get) -> ReceivedBlob:
        self.took.append(get.kind)
        if get.kind == "state":
            got = self.kept_from = self.its
            self.at += self.state_s
        else:
            assert self.its - KEPT_UPDATES < get.epoch <= self.its
            got = get.epoch
            self.at += self.update_s
        return ReceivedBlob(header=str(got).encode(), donor="donor", received=1, whole=True)

    def use(self, get: Get, taken: ReceivedBlob) -> None:
        if get.kind == "update" and self.lineage != f"at {self.epoch}":
            raise DownloadError("other weights")
        self.epoch = int(taken.header)
        self.lineage = f"at {self.epoch}"

    def sleep(self, seconds: float) -> None:
        self.at += seconds


@given(
    st.floats(2.0, 100.0),
    st.floats(0.0, 0.6),
    st.floats(0.01, 4.5),
    st.floats(0.0, 0.7),
    st.floats(0.0, 99.0),
)
def test_one_state_is_enough_where_an_update_takes_less_than_an_epoch(
    epoch_s: float, round_share: float, state_epochs: float, update_share: float, began_s: float
) -> None:
    """As long as the state download takes no more epochs than there are kept updates."""
    swarm = Swarm(epoch_s, round_share * epoch_s, state_epochs * epoch_s, update_share * epoch_s, began_s)
    caught = catch_up(swarm, replace(LIMITS, round_s=200.0), lambda: swarm.at, swarm.sleep)
    assert swarm.took.count("state") == caught.states == 1
    assert swarm.its - swarm.epoch <= 1  # the swarm may have moved on in the very moment
    assert caught.donor == "donor"


def test_wait_for_rounds_is_limited_when_each_update_ends_in_one() -> None:
    """An update takes 0.7 of an epoch, the last 0.6 of which is averaging, so each download ends during a round."""
    swarm = Swarm(20.0, 12.0, 10.0, 14.0)
    caught = catch_up(swarm, LIMITS, lambda: swarm.at, swarm.sleep)
    assert caught.states == 1
    assert caught.updates > 1
    assert swarm.its - swarm.epoch <= 1


def test_too_slow_link_is_an_error() -> None:
    swarm = Swarm(10.0, 1.0, 100.0, 20.0)
    with pytest.raises(CatchUpError, match="too slow"):
        catch_up(swarm, LIMITS, lambda: swarm.at, swarm.sleep)
    assert swarm.took.count("state") == 3


def test_state_is_downloaded_when_an_update_does_not_fit() -> None:
    swarm = Swarm(50.0, 1.0, 5.0, 1.0, epoch=9, lineage="stepped alone")
    catch_up(swarm, LIMITS, lambda: swarm.at, swarm.sleep)
    assert swarm.took == ["update", "state"]
    assert swarm.lineage == "at 10"


@dataclass
class Silent(Swarm):
    """No peer responds."""

    def offers(self) -> list[Offer]:
        self.at += 10.0
        return []


def test_without_responses_a_joiner_gives_up_and_an_old_peer_continues() -> None:
    newcomer = Silent(10.0, 1.0, 1.0, 1.0)
    with pytest.raises(NoStateError, match="within 60 s"):
        catch_up(newcomer, LIMITS, lambda: newcomer.at, newcomer.sleep)
    assert newcomer.at < 80.0
    old = Silent(10.0, 1.0, 1.0, 1.0, epoch=4)
    assert catch_up(old, LIMITS, lambda: old.at, old.sleep).states == 0


@dataclass
class Broken(Swarm):
    """Nothing arrives."""

    def fetch(self, get: Get) -> ReceivedBlob:
        self.at += 1.0
        raise DownloadError(f"no {get.kind}")


def test_failing_downloads_end_with_a_reason() -> None:
    swarm = Broken(1000.0, 1.0, 1.0, 1.0)
    with pytest.raises(NoStateError, match="no state"):
        catch_up(swarm, LIMITS, lambda: swarm.at, swarm.sleep)


def test_endless_round_is_not_awaited() -> None:
    swarm = Swarm(10_000.0, 10_000.0, 1.0, 1.0)
    catch_up(swarm, LIMITS, lambda: swarm.at, swarm.sleep)
    assert 30.0 <= swarm.at < 40.0


def test_cache_keeps_a_limited_number_of_updates_after_a_snapshot() -> None:
    from experiments.peer.state.encoding import Blob

    blob = Blob("key", b"", None)  # type: ignore[arg-type] # nobody looks into it
    cache = SnapshotCache()
    cache.epoch_ended(3, lambda: blob)
    assert (cache.oldest_update(3, False), cache.oldest_update(3, True)) == (0, 3)
    assert cache.snapshot(3, lambda: blob) is cache.with_key("key") is blob
    for epoch in range(4, 4 + KEPT_UPDATES):
        cache.epoch_ended(epoch, lambda: blob)
        assert cache.oldest_update(epoch, False) == 4
    assert cache.update(2, lambda: None) is None
    cache.epoch_ended(4 + KEPT_UPDATES, lambda: blob)
    assert (cache.oldest_update(4 + KEPT_UPDATES, False), cache.with_key("key")) == (0, None)
    cache.snapshot(9, lambda: blob)
    cache.epoch_ended(10, lambda: None)  # an epoch without a step
    assert cache.with_key("key") is None
