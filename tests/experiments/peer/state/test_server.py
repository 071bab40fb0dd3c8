"""Real averagers exchange states and updates: complete, once, and with resumed downloads."""

from __future__ import annotations

import asyncio
import threading
import time
from pathlib import Path
from typing import Any

import hivemind
import pytest
import torch
from hivemind.compression import Float16Compression
from hivemind_here import apart
from peer_rig import config_of

from experiments.learning_rate import RateSchedule
from experiments.peer.optimizer.build import state_compression
from experiments.peer.optimizer.update_rule import UpdateRule
from experiments.peer.state.catch_up import Get, Limits, Offer, catch_up
from experiments.peer.state.client import Chunk
from experiments.peer.state.server import StateDonor
from experiments.peer.swarm.dht_node import start_dht

pytestmark = [pytest.mark.processes, pytest.mark.timeout(90)]

SIZE = 60_000
LIMITS = Limits(without_state_s=20.0, round_s=5.0)


class Cuts(StateDonor):
    """Its first two streams break after three chunks."""

    cuts = 2

    async def _open(self, donor: str, wanted: Any) -> Any:
        return self._broken(await super()._open(donor, wanted))

    async def _broken(self, stream: Any) -> Any:
        count = 0
        async for chunk in stream:
            if count > 3 and self.cuts > 0:
                self.cuts -= 1
                await stream.aclose()
                raise ConnectionResetError("cut")
            count += isinstance(chunk, Chunk)
            yield chunk


class Peer:
    """One averager on loopback that steps with the gradients it is given."""

    def __init__(self, folder: Path, name: str, first: str = "", kind: type[StateDonor] = StateDonor) -> None:
        config = config_of(name, "", (), initial_peers=(first,) if first else ())
        self.dht, self.maddr = start_dht(config, folder / f"{name}.key")
        torch.manual_seed(1)
        self.weights = torch.nn.Parameter(torch.randn(SIZE) / 100)
        self.averaged = torch.zeros(SIZE)
        self.donor = kind(
            dht=self.dht,
            prefix="test_state_averager",
            optimizer=lambda params: torch.optim.Adam(params, lr=0.01),
            params=[self.weights],
            state_compression=state_compression(),
            update_compression=Float16Compression(),
            next_chunk_timeout=5.0,
            min_matchmaking_time=1.0,
            request_timeout=0.5,
            client_mode=False,
            start=True,
        )
        self.donor.last_update = lambda: [self.averaged]
        # each step has another rate, and a gradient of length 3.8 is clipped
        self.donor.before_step = UpdateRule(self.donor.optimizer, RateSchedule("cosine", 8, 3), 0.5).apply

    def step(self, seed: int) -> None:
        torch.manual_seed(seed)
        self.averaged.copy_((torch.randn(SIZE) / 64).half())  # what float16 averaging brings
        self.weights.grad = self.averaged.clone()
        self.donor.next_lineage = lambda: f"round {seed}"
        self.donor.step(increment_epoch=True, optimizer_step=True)
        self.donor.round_ended()

    def catch_up(self) -> dict[str, Any]:
        caught = vars(catch_up(self.donor, LIMITS, time.monotonic, time.sleep))
        assert (caught.pop("seconds") > 0.0) == (caught["received"] > 0)
        return caught

    def apart_from(self, other: Peer) -> float:
        return float((self.weights - other.weights).detach().abs().max())


def whole_and_then_updates(folder: Path) -> dict[str, Any]:
    """A steps to epoch 2; B comes, then A steps on twice and B follows."""
    a = Peer(folder, "a")
    for seed in (1, 2):
        a.step(seed)
    b = Peer(folder, "b", a.maddr, Cuts)
    found: dict[str, Any] = {"a": str(a.dht.peer_id), "state": b.catch_up(), "after state": b.apart_from(a)}
    for seed in (3, 4):
        a.step(seed)
    found["updates"] = b.catch_up()
    found["apart"] = b.apart_from(a)
    found["at"] = [(p.donor.epoch, p.donor.lineage) for p in (a, b)]
    found["again"] = b.catch_up()
    found["rest"] = [float((x - y).abs().max()) for x, y in zip(moments(a), moments(b), strict=True)]
    found["moved"] = float(a.weights.detach().abs().max())
    b.step(55)  # alone, while A's epoch 5 is the swarm's
    for seed in (5, 6):
        a.step(seed)
    found["astray"] = b.catch_up()
    found["astray apart"] = b.apart_from(a)
    found["astray at"] = [(p.donor.epoch, p.donor.lineage) for p in (a, b)]
    return found


def moments(peer: Peer) -> list[torch.Tensor]:
    state = peer.donor.optimizer.state[peer.weights]
    return [state["exp_avg"], state["exp_avg_sq"], state["step"]]


def test_state_download_resumes_and_later_only_updates_follow() -> None:
    found = apart(whole_and_then_updates)
    state, updates = found["state"], found["updates"]
    size = SIZE * 10 + 8  # weights 2, two moments 4 bytes each, and the count of steps
    assert state == {"donor": found["a"], "states": 1, "updates": 0, "resumed": 2, "received": size}
    assert updates == {"donor": found["a"], "states": 0, "updates": 2, "resumed": 0, "received": 2 * 2 * SIZE}
    assert found["again"]["received"] == 0
    assert found["at"] == [(4, "round 4"), (4, "round 4")]
    assert (
        found["apart"] <= 2.0**-11 * found["moved"] + 1e-6
    )  # what float16 rounded of the weights, nothing added
    assert found["rest"] == [0.0, 0.0, 0.0]
    assert (found["astray"]["states"], found["astray"]["updates"]) == (
        1,
        0,
    )  # an update of other weights is of no use
    assert found["astray at"] == [(6, "round 6"), (6, "round 6")]
    assert found["astray apart"] <= 2.0**-10 * found["moved"] + 1e-6


class Slow(StateDonor):
    """Takes a while for each chunk."""

    async def _open(self, donor: str, wanted: Any) -> Any:
        return self._slowly(await super()._open(donor, wanted))

    async def _slowly(self, stream: Any) -> Any:
        async for chunk in stream:
            await asyncio.sleep(0.12)
            yield chunk


Cuts.__name__ = Slow.__name__ = StateDonor.__name__  # Hivemind calls by the class's name


def steps_while_it_downloads(folder: Path) -> dict[str, Any]:
    """A keeps stepping: two epochs per download."""
    a = Peer(folder, "a")
    for seed in (1, 2):
        a.step(seed)
    b = Peer(folder, "b", a.maddr, Slow)
    over = threading.Event()

    def train() -> None:
        seed = 2
        while not over.wait(0.6):
            seed += 1
            a.step(seed)

    thread = threading.Thread(target=train)
    thread.start()
    caught = b.catch_up()
    over.set()
    thread.join()
    behind = a.donor.epoch - b.donor.epoch
    b.catch_up()
    return {
        **caught,
        "behind": behind,
        "apart": b.apart_from(a),
        "most": float(a.weights.detach().abs().max()),
    }


def test_joiner_is_in_sync_after_a_download_of_several_epochs() -> None:
    found = apart(steps_while_it_downloads)
    assert found["states"] == 1
    assert found["updates"] >= 2
    assert found["behind"] <= 1
    assert found["apart"] <= 2.0**-11 * found["most"] + 1e-6


def nearest(folder: Path) -> list[Any]:
    a = Peer(folder, "a")
    a.step(1)
    b = Peer(folder, "b", a.maddr)
    offers: list[Offer] = b.donor.offers()
    with pytest.raises(Exception, match="no update 7 here"):
        b.donor.fetch(Get("update", 7, (offers[0].donor,)))
    return [offers, str(a.dht.peer_id)]


def test_offer_has_epoch_lineage_and_response_time() -> None:
    offers, donor = apart(nearest)
    assert [(o.donor, o.epoch, o.averaging, o.oldest_update, o.lineage) for o in offers] == [
        (donor, 1, False, 1, "round 1")
    ]
    assert 0.0 < offers[0].rtt_s < 0.5
    assert hivemind.__version__ == "1.1.12"
