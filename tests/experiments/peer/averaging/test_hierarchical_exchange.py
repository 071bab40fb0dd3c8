"""Two-level rounds of peers in one event loop: the result, also when any peer dies at any point."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
import virtual_time
from hivemind.compression import CompressionBase, CompressionInfo, Float16Compression, NoCompression

from experiments.peer.averaging.atomic_commit import State
from experiments.peer.averaging.commit_protocol import Attempt
from experiments.peer.averaging.hierarchical_exchange import Level, RoundFailedError, TwoLevelRound
from experiments.peer.averaging.hierarchical_plan import Hierarchy, cut

SIX = ("us", "us", "eu", "eu", "asia", "asia")
PART_VALUES = 40
_GONE = object()


@dataclass
class Net:
    """Streams and calls between peers; `kills`: peers to kill after a number of messages."""

    kills: dict[int, int] = field(default_factory=dict)
    silent: bool = False  # dead peers keep their connections open but send nothing
    messages: int = 0
    dead: set[int] = field(default_factory=set)
    rounds: dict[int, TwoLevelRound] = field(default_factory=dict)
    attempts: dict[int, Attempt] = field(default_factory=dict)
    tasks: dict[int, list[asyncio.Future[Any]]] = field(default_factory=dict)
    streams: list[tuple[int, int, asyncio.Queue[Any]]] = field(default_factory=list)
    kinds: list[str] = field(default_factory=list)  # of each message

    def start(self, peer: int, work: Coroutine[Any, Any, None]) -> asyncio.Future[None]:
        task = asyncio.ensure_future(work)
        self.tasks.setdefault(peer, []).append(task)
        return task

    def kill(self, peer: int) -> None:
        self.dead.add(peer)
        for one, other, queue in self.streams:
            if peer in (one, other) and not self.silent:
                queue.put_nowait(_GONE)
        for task in self.tasks.get(peer, ()):
            task.cancel()

    async def passes(self, kind: str, *ends: int) -> None:
        """Called before each message. If its sender or receiver is dead, it raises or never returns."""
        self.messages += 1
        self.kinds.append(kind)
        if (victim := self.kills.get(self.messages)) is not None:
            self.kill(victim)
        if self.dead & {*ends}:
            if self.silent:
                await asyncio.Event().wait()
            raise ConnectionError("the other end is gone")

    async def pump(self, kind: str, source: AsyncIterator[Any], sink: asyncio.Queue[Any], *ends: int) -> None:
        try:
            async for message in source:
                await self.passes(kind, *ends)
                sink.put_nowait(message)
            sink.put_nowait(None)
        except Exception:  # noqa: BLE001 - what a handler raises closes its stream
            sink.put_nowait(_GONE)

    def caller(self, me: int) -> Callable[..., Any]:
        async def call(level: Level, peer: int, messages: AsyncIterator[Any]) -> AsyncIterator[Any]:
            there: asyncio.Queue[Any] = asyncio.Queue()
            back: asyncio.Queue[Any] = asyncio.Queue()
            self.streams += [(me, peer, there), (me, peer, back)]
            self.start(me, self.pump(f"to {level.name}", messages, there, me, peer))
            served = self.rounds[peer].serve(level, me, drawn(there))
            self.start(peer, self.pump(f"from {level.name}", served, back, me, peer))
            return drawn(back)

        return call

    def asker(self, me: int) -> Callable[..., Any]:
        async def ask(peer: int, state: State) -> State:
            await self.passes("ask", me, peer)
            answer = self.attempts[peer].received(me, state)
            await asyncio.sleep(0)
            await self.passes("answer", me, peer)
            return answer

        return ask


async def drawn(queue: asyncio.Queue[Any]) -> AsyncIterator[Any]:
    while (message := await queue.get()) is not None:
        if message is _GONE:
            raise ConnectionError("the stream is broken")
        yield message


@dataclass(repr=False)
class Outcome:
    net: Net
    before: dict[int, list[torch.Tensor]]
    tensors: dict[int, list[torch.Tensor]]
    kept: dict[int, bool]  # of the survivors

    @property
    def mean(self) -> list[torch.Tensor]:
        """The weighted mean of all peers."""
        total = sum(weight_of(p) for p in self.before)
        return [
            sum((weight_of(p) / total * t[i].double() for p, t in self.before.items()), torch.zeros(()))
            for i in range(len(self.before[0]))
        ]

    def survivors_agree(self) -> bool:
        """Whether all kept the result, bitwise equal, or none did and all tensors are unchanged."""
        if len({*self.kept.values()}) != 1:
            return False
        if not any(self.kept.values()):
            return all(
                torch.equal(a, b)
                for p in self.kept
                for a, b in zip(self.tensors[p], self.before[p], strict=True)
            )
        first = self.tensors[next(iter(self.kept))]
        return all(torch.equal(a, b) for p in self.kept for a, b in zip(self.tensors[p], first, strict=True))


def weight_of(peer: int) -> float:
    return 16.0 * (1 + peer)


async def a_round(
    regions: tuple[str, ...],
    kills: dict[int, int] | None = None,
    compression: CompressionBase | None = None,
    timeout_s: float = 5.0,
    silent: bool = False,
    shapes: tuple[tuple[int, ...], ...] = ((11, 10), (), (3,), (90,)),
    weights: Callable[[int], float] = weight_of,
) -> Outcome:
    generator = torch.Generator().manual_seed(1)
    n, hierarchy = len(regions), Hierarchy.of(regions)
    before = {p: [torch.randn(shape, generator=generator) for shape in shapes] for p in range(n)}
    tensors = {p: [t.clone() for t in before[p]] for p in before}
    part_values = [PART_VALUES] * len(shapes)
    parts = cut([t.numel() for t in tensors[0]], part_values, hierarchy)
    net = Net(kills or {}, silent)
    for me in range(n):
        net.attempts[me] = Attempt([p for p in range(n) if p != me], net.asker(me), timeout_s, retry_s=0.0)
        net.rounds[me] = TwoLevelRound(
            me=me,
            hierarchy=hierarchy,
            parts=parts,
            tensors=tensors[me],
            infos=[CompressionInfo.from_tensor(t, key=i) for i, t in enumerate(tensors[me])],
            compression=compression or Float16Compression(),
            part_values=part_values,
            weight=weights(me),
            call=net.caller(me),
            timeout_s=timeout_s,
        )
    kept: dict[int, bool] = {}

    async def life(me: int) -> None:
        try:
            await net.attempts[me].run(net.rounds[me])
        except RoundFailedError:
            kept[me] = False
            return
        net.rounds[me].write()
        kept[me] = True

    lives = [net.start(me, life(me)) for me in range(n)]
    await asyncio.wait_for(asyncio.gather(*lives, return_exceptions=True), 20)
    for peer in net.dead:
        kept.pop(peer, None)
    others = [t for t in asyncio.all_tasks() if t is not asyncio.current_task()]
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
    for life_, me in zip(lives, range(n), strict=True):
        if me not in net.dead:
            life_.result()
    return Outcome(net, before, tensors, kept)


@pytest.mark.parametrize(
    "regions",
    [
        SIX,
        ("a",),
        ("a", "a", "a"),
        ("a", "b", "c"),
        ("a", "a", "a", "a", "b", "b"),
        ("a", "b", "b", "b", "b"),
    ],
)
def test_result_is_the_flat_mean_and_bitwise_equal_on_all_peers(regions: tuple[str, ...]) -> None:
    outcome = virtual_time.run(a_round(regions))
    assert [*outcome.kept.values()] == [True] * len(regions)
    assert outcome.survivors_agree()
    largest = max(float(t.abs().max()) for tensors in outcome.before.values() for t in tensors)
    ulp = 2.0**-10 * 2.0 ** torch.tensor(largest).log2().floor().item()  # float16 has 10 bits after the point
    for mean, found in zip(outcome.mean, outcome.tensors[0], strict=True):
        assert float((mean - found).abs().max()) <= 2 * ulp


def test_without_compression_it_is_the_mean() -> None:
    outcome = virtual_time.run(a_round(SIX, compression=NoCompression()))
    for mean, found in zip(outcome.mean, outcome.tensors[0], strict=True):
        torch.testing.assert_close(found.double(), mean, rtol=1e-6, atol=1e-6)


def test_a_peer_that_leaves_gives_weight_0() -> None:
    """The leaving peer's samples are not in the mean, even if it is the only peer of its region."""
    regions = ("us", "us", "eu")
    leaver = virtual_time.run(
        a_round(regions, weights=lambda p: 0.0 if p == 2 else 1.0, compression=NoCompression())
    )
    for i, found in enumerate(leaver.tensors[0]):
        torch.testing.assert_close(found, (leaver.before[0][i] + leaver.before[1][i]) / 2)
    assert leaver.survivors_agree()


def test_round_without_samples_fails() -> None:
    outcome = virtual_time.run(a_round(SIX, weights=lambda _: 0.0))
    assert not any(outcome.kept.values())
    assert outcome.survivors_agree()


def test_closed_stream_of_a_groupmate_ends_the_round_at_once() -> None:
    """Hivemind signals it by cancelling the handler of the stream."""

    async def hung_up() -> None:
        hierarchy, tensor = Hierarchy.of(("us", "us")), torch.zeros(100)

        async def nothing(*_: Any) -> AsyncIterator[Any]:
            await asyncio.Event().wait()
            yield

        async def call(*_: Any) -> AsyncIterator[Any]:
            return nothing()

        one = TwoLevelRound(
            me=0,
            hierarchy=hierarchy,
            parts=cut([100], [10], hierarchy),
            tensors=[tensor],
            infos=[CompressionInfo.from_tensor(tensor)],
            compression=NoCompression(),
            part_values=[10],
            weight=1.0,
            call=call,
            timeout_s=60.0,
        )
        running = asyncio.ensure_future(one.run())
        handler = asyncio.ensure_future(anext(one.serve(Level.REGION, 1, nothing())))
        await asyncio.sleep(0.01)
        handler.cancel()
        with pytest.raises(RoundFailedError, match="peer 1 left"):
            await asyncio.wait_for(running, 1.0)

    virtual_time.run(hung_up())


@pytest.mark.slow
def test_a_peer_that_dies_at_any_message_leaves_the_others_in_agreement() -> None:
    """A member or a representative, while parts are collected, exchanged between regions or returned, or during agreement."""

    async def all_deaths() -> dict[str, set[bool]]:
        kinds = (await a_round(SIX)).net.kinds
        kept: dict[str, set[bool]] = {kind: set() for kind in kinds}
        for at in range(1, len(kinds) + 1):
            for victim in (at % 6, (at + 3) % 6):
                outcome = await a_round(SIX, {at: victim})
                assert {*range(6)} - {*outcome.kept} == {victim}, (at, victim)
                assert outcome.survivors_agree(), (at, kinds[at - 1], victim)
                kept[outcome.net.kinds[at - 1]] |= {*outcome.kept.values()}
        return kept

    kept = virtual_time.run(all_deaths())
    assert {"to REGION", "to BETWEEN", "from BETWEEN", "from REGION", "ask", "answer"} == {*kept}
    # while parts are missing no peer keeps a result; during agreement the last messages decide
    assert kept["to REGION"] == kept["to BETWEEN"] == {False}
    assert True in kept["ask"] | kept["answer"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "share", [0.0, 0.1, 0.3, 0.5, 0.7, 0.95], ids=lambda share: f"after {share:.0%} of the messages"
)
def test_silent_peer_is_awaited_only_briefly(share: float) -> None:
    """A VM that is taken away closes no connection: the others rely on their timeouts, 0.3 s here."""

    async def timed() -> tuple[Outcome, float]:
        at = 1 + int(share * len((await a_round(SIX)).net.kinds))
        began = asyncio.get_running_loop().time()
        outcome = await a_round(SIX, {at: 3}, timeout_s=0.3, silent=True)
        return outcome, asyncio.get_running_loop().time() - began

    outcome, seconds = virtual_time.run(timed())
    assert len(outcome.kept) == 5
    assert outcome.survivors_agree()
    assert seconds < 5 * 0.3


@pytest.mark.slow
def test_two_consecutive_deaths_leave_the_others_in_agreement() -> None:
    async def deaths() -> None:
        for first in range(1, len((await a_round(SIX)).net.kinds), 5):
            for gap in (1, 4, 9):
                outcome = await a_round(SIX, {first: 2, first + gap: 4})
                assert 2 not in outcome.kept
                assert outcome.survivors_agree(), (first, gap)

    virtual_time.run(deaths())
