"""PowerSgdAverager's rounds with Hivemind's own all-reduce, all peers in one event loop: streams without a network."""

from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import AsyncIterator, Coroutine
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hivemind.averaging.allreduce import AllreduceException, AveragingMode
from hivemind.averaging.control import AveragingStage
from hivemind.averaging.group_info import GroupInfo
from hivemind.averaging.matchmaking import MatchmakingException
from hivemind.compression import Float16Compression, NoCompression
from hivemind.p2p import PeerID

from experiments.averaging.powersgd import sent
from experiments.peer.averaging import powersgd
from experiments.peer.averaging.lineage import FIRST, PeerVersion, after_round, parse_version
from experiments.peer.averaging.powersgd import PowerSgdAverager
from experiments.peer.averaging.powersgd_cache import LastFactors
from experiments.peer.averaging.powersgd_math import Factors, Kept, LowRankRound, Memory
from experiments.peer.state.encoding import ALIGNMENT, unpack
from experiments.peer.state.update_encoding import load_update, pack_update

SHAPES = ((40, 30), (7,), (120, 60))
RANK, SEED = 4, 3
PART_BYTES = 512


class Loose(PowerSgdAverager):
    """One peer's averager as inside its own process, but without a process."""

    def __init__(self, number: int, swarm: dict[PeerID, Loose]) -> None:
        self._parent_pid = -1  # none: there is nothing to shut down
        self._rank, self._seed, self._memory = RANK, SEED, Memory()
        self._held_lineages = SimpleNamespace(value=b"")
        self._versions, self._warm = {}, False
        self._last_factors = LastFactors(SHAPES, RANK)
        self._control: Any = SimpleNamespace(stage=AveragingStage.AWAITING_TRIGGER)
        self._aggregating, self._registered = None, asyncio.Event()
        self._pending_groups_registered, self._state_updated = asyncio.Event(), asyncio.Event()
        self._running_groups = {}
        self.prefix, self.next_chunk_timeout = "loose", 3.0
        self.lock_averaged_tensors: Any = threading.Lock()
        self._averaged_tensors = tuple(torch.zeros(shape) for shape in SHAPES)
        self.total_size = sum(tensor.numel() for tensor in self._averaged_tensors)
        self._matchmaking: Any = SimpleNamespace(request_timeout=0.6)
        self.dht: Any = SimpleNamespace(peer_id=PeerID(bytes([18, 32, *[number] * 32])))
        self._p2p: Any = SimpleNamespace(peer_id=self.dht.peer_id, swarm=swarm)
        self.sent: dict[bytes, int] = {}  # bytes to others, by the group id of the stream
        self.fails = False  # between the two halves
        swarm[self.peer_id] = self
        self.number, self.epoch, self.lineage, self.attempts = number, 0, FIRST, 0
        self.parameters = tuple(torch.nn.Parameter(torch.zeros(shape)) for shape in SHAPES)

    @classmethod
    def get_stub(cls, p2p: Any, peer: PeerID, *, namespace: str | None = None) -> Any:
        other, own = p2p.swarm[peer], p2p.swarm[p2p.peer_id]

        async def rpc_aggregate_part(stream: AsyncIterator[Any]) -> AsyncIterator[Any]:
            return other.rpc_aggregate_part(own.counted(stream), SimpleNamespace(remote_id=p2p.peer_id))

        return SimpleNamespace(rpc_aggregate_part=rpc_aggregate_part)

    async def counted(self, stream: AsyncIterator[Any]) -> AsyncIterator[Any]:
        group_id = b""
        async for message in stream:
            group_id = group_id or message.group_id
            self.sent[group_id] = self.sent.get(group_id, 0) + len(message.tensor_part.buffer)
            yield message

    async def _average(self, flat: Any, group_info: Any, group_id: bytes, kwargs: Any) -> None:
        if self.fails and group_id == group_info.group_id:
            raise AllreduceException("made to fail")
        await super()._average(flat, group_info, group_id, kwargs)

    def says(self) -> tuple[PeerVersion, bytes]:
        """The data that matchmaking would gather from this peer for a new attempt."""
        self.attempts += 1
        version = PeerVersion(
            self.epoch, self.lineage, f"{self.number}/{self.attempts}", attempt=self.attempts
        )
        holds = self.lineage in self._held_lineages.value.decode().split()
        packed = self.serializer.dumps([version.as_list(), holds])
        return version, self.serializer.dumps([None, AveragingMode.NODE.value, packed])

    async def attempt(self, group: GroupInfo) -> Any:
        with torch.no_grad():
            for tensor, gradient in zip(self._averaged_tensors, gradients(self), strict=True):
                tensor.copy_(gradient)
        with self._register_allreduce_group(group):
            return await self._aggregate_with_group(
                group, min_vector_size=0, tensor_infos=None, weight=32.0, compression=Float16Compression(),
                part_size_bytes=PART_BYTES, sender_timeout=3.0, reducer_timeout=6.0,
            )  # fmt: skip


def targets() -> list[torch.Tensor]:
    """The optimum of the weights: matrices of rank 2."""
    generator = torch.Generator().manual_seed(0)
    made: list[torch.Tensor] = []
    for shape in SHAPES:
        sides = [torch.randn((side, 2), generator=generator) for side in shape]
        made.append(sides[0] @ sides[1].T if len(shape) == 2 else sides[0][:, 0])
    return made


def gradients(peer: Any) -> list[torch.Tensor]:
    """Gradients towards the targets, with noise specific to this peer."""
    generator = torch.Generator().manual_seed(100 * peer.epoch + peer.number)
    return [
        parameter.detach() - target + 0.05 * torch.randn(parameter.shape, generator=generator)
        for parameter, target in zip(peer.parameters, targets(), strict=True)
    ]


async def attempt(peers: list[Loose]) -> list[Any]:
    """One attempt of all peers. Those that received the group's average advance an epoch with new weights, if all did."""
    gathered = [peer.says() for peer in peers]
    group = GroupInfo(
        bytes([len(peers), peers[0].attempts]), tuple(p.peer_id for p in peers), tuple(s[1] for s in gathered)
    )
    results = await asyncio.gather(*(peer.attempt(group) for peer in peers), return_exceptions=True)
    if all(isinstance(result, dict) for result in results):
        for peer, (version, _), result in zip(peers, gathered, results, strict=True):
            peer.lineage = after_round({p: parse_version(v) for p, v in result.items()}, version)
            peer.epoch += 1
            with torch.no_grad():
                for parameter, gradient in zip(peer.parameters, peer._averaged_tensors, strict=True):
                    parameter -= 0.5 * gradient
    return results


def made(number: int) -> list[Loose]:
    swarm: dict[PeerID, Loose] = {}
    return [Loose(n, swarm) for n in range(number)]


def equal(peers: list[Loose]) -> bool:
    return all(
        torch.equal(a, b) for peer in peers for a, b in zip(peer.parameters, peers[0].parameters, strict=True)
    )


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(work, 30))


class Reckoned:
    """The expected result, without a network and failures."""

    def __init__(self, number: int) -> None:
        self.number, self.epoch = number, 0
        self.parameters = [torch.zeros(shape) for shape in SHAPES]
        self.kept: Kept | None = None


def reckoned(peers: int, rounds: int) -> list[torch.Tensor]:
    found = [Reckoned(number) for number in range(peers)]
    for epoch in range(rounds):
        tensors = [gradients(peer) for peer in found]
        halves = [
            LowRankRound(own, RANK, peer.kept, weight=1, warm=epoch > 0, seed=SEED, epoch=epoch)
            for own, peer in zip(tensors, found, strict=True)
        ]
        left = torch.stack([half.left() for half in halves]).mean(0)
        right = torch.stack([half.right(left) for half in halves]).mean(0)
        for peer, half, own in zip(found, halves, tensors, strict=True):
            peer.kept, peer.epoch = half.finish(right, ""), epoch + 1
            for parameter, gradient in zip(peer.parameters, own, strict=True):
                parameter -= 0.5 * gradient
    return found[0].parameters


@pytest.mark.slow  # failed attempts end with their time-outs
def test_rounds_match_the_arithmetic_despite_failed_attempts(monkeypatch: pytest.MonkeyPatch) -> None:
    made_rounds: list[LowRankRound] = []

    class Watched(LowRankRound):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            made_rounds.append(self)

    monkeypatch.setattr(powersgd, "LowRankRound", Watched)

    async def work() -> None:
        peers = made(3)
        for number in range(4):
            if number in (1, 2):
                before = [gradients(peer) for peer in peers]
                peers[number].fails = True
                failed = await attempt(peers)
                assert all(isinstance(error, MatchmakingException) for error in failed)
                assert any("made to fail" in str(error) for error in failed)
                for peer, own in zip(peers, before, strict=True):  # nothing was changed
                    assert all(torch.equal(a, b) for a, b in zip(peer._averaged_tensors, own, strict=True))
                assert len(made_rounds) > 0
                assert not any(one._wanted or one._lefts or one._rights for one in made_rounds)
                peers[number].fails = False
            results = await attempt(peers)
            assert all(len(result) == 3 for result in results), results
            assert peers[0]._warm == (number > 0)
            assert equal(peers)
        for got, wanted in zip(peers[0].parameters, reckoned(3, 4), strict=True):
            assert torch.allclose(got, wanted, atol=0.02)
        ends = [parameter.detach() for parameter in peers[0].parameters]
        errors = [float((a - b).norm() / b.norm()) for a, b in zip(ends, targets(), strict=True)]
        assert max(errors) < 0.1

    run(work())


def test_joiner_makes_all_begin_with_new_factors_and_stay_equal() -> None:
    async def work() -> None:
        peers = made(4)
        first, joiner = peers[:3], peers[3]
        for _ in range(2):
            await attempt(first)
        joiner.epoch, joiner.lineage = first[0].epoch, first[0].lineage
        for parameter, other in zip(joiner.parameters, first[0].parameters, strict=True):
            parameter.data.copy_(other)
        for warm in (False, True):
            results = await attempt(peers)
            assert all(isinstance(result, dict) for result in results), results
            assert [peer._warm for peer in peers] == [warm] * 4
            assert equal(peers)

    run(work())


def test_an_averager_has_room_for_the_factors_of_its_parameters() -> None:
    dht: Any = SimpleNamespace(client_mode=False, peer_id=PeerID(bytes([18, 32, *[1] * 32])))
    parameters = (torch.nn.Parameter(torch.zeros(shape)) for shape in SHAPES)
    averager = PowerSgdAverager(
        parameters, rank=RANK, seed=SEED, dht=dht, prefix="room", start=False, reuse_grad_buffers=True
    )
    assert averager.total_size == sum(math.prod(shape) for shape in SHAPES)
    wire = sent([(shape, 1) for shape in SHAPES], RANK).wire
    averager._last_factors.put(
        Factors(RANK, torch.ones(RANK * (40 + 120)), torch.ones(wire - RANK * (40 + 120))), "a"
    )
    found = averager.factors("a")
    assert found is not None
    assert len(found.left) + len(found.right) == wire
    assert averager.factors("b") is None


def test_peer_that_missed_a_round_rebuilds_the_same_bits() -> None:
    async def work() -> None:
        peers = made(3)
        late = [torch.nn.Parameter(torch.zeros(shape)) for shape in SHAPES]
        for _ in range(3):
            before = peers[0].lineage
            await attempt(peers)
            assert peers[0].factors(before) is None
            blobs = [
                pack_update({}, p._averaged_tensors, p.factors(p.lineage), NoCompression()) for p in peers
            ]
            assert len({blob.key for blob in blobs}) == 1  # a cut download goes on at another donor
            assert all(torch.equal(blob.body, blobs[0].body) for blob in blobs)
            wire_bytes = 2 * sent([(shape, 1) for shape in SHAPES], RANK).wire
            assert wire_bytes <= blobs[0].body.numel() < wire_bytes + 2 * ALIGNMENT
            load_update(late, *unpack(blobs[0].header, blobs[0].body), RANK)
            for parameter, gradient in zip(late, peers[0]._averaged_tensors, strict=True):
                assert parameter.grad is not None
                assert torch.equal(parameter.grad, gradient)
                parameter.data -= 0.5 * parameter.grad
        for parameter, other in zip(late, peers[0].parameters, strict=True):
            assert torch.equal(parameter, other)

    run(work())


def test_each_peer_sends_only_its_share_of_the_factors() -> None:
    async def work() -> None:
        peers = made(3)
        results = await attempt(peers)
        assert all(isinstance(result, dict) for result in results), results
        halves = {b".left": RANK * (40 + 120), b"": RANK * (30 + 60) + 7}
        for peer in peers:
            for group_id, sent_bytes in peer.sent.items():
                values = halves[group_id[2:]]
                assert sent_bytes == pytest.approx(2 * values * 2 / 3, rel=0.02)
            assert len(peer.sent) == 2

    run(work())
