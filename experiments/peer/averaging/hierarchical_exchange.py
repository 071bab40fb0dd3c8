"""One peer's side of a two-level averaging round (planned in `hierarchical_plan`).

Each part is sent by a region's peers to its representative there, by the representatives to the part's home, and back
the same way. The next part follows before the first one is back, so all links are busy at once. The results are the
same bytes for all peers. The tensors do not change until `write`, so a failed round leaves them as they were.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from enum import Enum
from typing import Any

import torch
from hivemind.compression import CompressionBase, CompressionInfo, deserialize_torch_tensor
from hivemind.utils.asyncio import aiter_with_timeout, amap_in_executor

from experiments.peer.averaging.hierarchical_plan import Hierarchy, Part

_BETWEEN_PATIENCE = 1.5  # times the timeout: a region's mean is delayed by waiting for that region's peers
_RESULT_PATIENCE = 2.0

Messages = AsyncIterator[tuple[Any, float]]  # (serialized part, weight of the mean it holds)


class Level(Enum):
    """The level of a stream: its sender and receiver."""

    REGION = "region"  # a peer to its region's representative
    BETWEEN = "between"  # a representative to the part's home


# Opens a stream to a peer of the group: (level, peer, messages to send) -> received messages.
Call = Callable[[Level, int, Messages], Awaitable[Messages]]


class RoundFailedError(Exception):
    """Parts of the round are missing and will not arrive."""


class _Sum:
    """Weighted sum of a part from the other senders; `full` is done when all of them have sent it."""

    def __init__(self, senders: int) -> None:
        self._missing = senders
        self._sum: torch.Tensor | None = None
        self._weight = 0.0
        self.full: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if senders == 0:
            self.full.set_result(None)

    def add(self, part: torch.Tensor, weight: float) -> None:
        self._sum = part * weight if self._sum is None else self._sum.add_(part, alpha=weight)
        self._weight += weight
        self._missing -= 1
        if self._missing == 0 and not self.full.done():
            self.full.set_result(None)

    def mean_with(self, own: torch.Tensor, weight: float) -> tuple[torch.Tensor, float]:
        """Return the mean over all senders and this peer, and its weight. If the weight is 0, the mean is meaningless."""
        total = self._weight + weight
        if self._sum is None or total == 0.0:
            return own, total
        return self._sum.add_(own, alpha=weight).div_(total), total


class TwoLevelRound:
    """The streams, sums and results of one peer. Create it and call `run` in the same event loop."""

    def __init__(
        self,
        *,
        me: int,
        hierarchy: Hierarchy,
        parts: Sequence[Part],
        tensors: Sequence[torch.Tensor],
        infos: Sequence[CompressionInfo],
        compression: CompressionBase,
        part_values: Sequence[int],
        weight: float,
        call: Call,
        timeout_s: float,
    ) -> None:
        """`me`: this peer's number; `weight`: its samples; `timeout_s`: silence after which a peer is lost."""
        self._parts, self._call = parts, call
        self._flat = [tensor.detach().view(-1) for tensor in tensors]
        self._infos, self._compression, self._part_values = infos, compression, part_values
        self._weight, self._timeout_s = weight, timeout_s
        region = hierarchy.region_of(me)
        self._outgoing: dict[tuple[Level, int], list[int]] = {}  # parts by receiver
        self._incoming: dict[tuple[Level, int], list[int]] = {}  # parts by sender
        self._sums: dict[tuple[Level, int], _Sum] = {}
        new = asyncio.get_running_loop().create_future
        self._region_means: dict[int, asyncio.Future[tuple[torch.Tensor, float]]] = {}
        self._results: list[asyncio.Future[Any]] = [new() for _ in parts]  # serialized, as sent to all peers
        self._broken: asyncio.Future[None] = new()
        self._begun: set[tuple[Level, int]] = set()
        for i, part in enumerate(parts):
            mine = hierarchy.representative(region, part.shard)
            home = hierarchy.home(part)
            if mine != me:
                self._outgoing.setdefault((Level.REGION, mine), []).append(i)
                continue
            self._region_means[i] = new()
            self._expect(Level.REGION, i, [p for p in hierarchy.regions[region] if p != me])
            if home != me:
                self._outgoing.setdefault((Level.BETWEEN, home), []).append(i)
                continue
            representatives = (hierarchy.representative(r, part.shard) for r in range(len(hierarchy.regions)))
            self._expect(Level.BETWEEN, i, [p for p in representatives if p != me])

    def _expect(self, level: Level, part: int, senders: Sequence[int]) -> None:
        self._sums[level, part] = _Sum(len(senders))
        for sender in senders:
            self._incoming.setdefault((level, sender), []).append(part)

    async def run(self) -> None:
        """Run until the results of all parts have arrived. Raises RoundFailedError; this peer sends nothing afterwards."""
        work = [
            self._average_in_region(),
            self._average_between(),
            *(self._exchange(level, peer, parts) for (level, peer), parts in self._outgoing.items()),
        ]
        pending: set[asyncio.Future[Any]] = {asyncio.ensure_future(w) for w in work}
        tasks = [*pending, asyncio.ensure_future(self._miss_senders())]
        try:
            while pending:
                done, pending = await asyncio.wait(
                    {*pending, self._broken}, return_when=asyncio.FIRST_COMPLETED
                )
                for task in done:
                    task.result()
                pending.discard(self._broken)
        except Exception as error:
            self.give_up(f"{type(error).__name__}: {error}")
            raise RoundFailedError(str(self._broken.exception())) from error
        except asyncio.CancelledError:
            self.give_up("cancelled")
            raise
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def give_up(self, why: str) -> None:
        """Abort the round: everything waiting for it fails, here and at the other ends of the streams."""
        for future in (
            self._broken,
            *self._results,
            *self._region_means.values(),
            *(s.full for s in self._sums.values()),
        ):
            if not future.done():
                future.set_exception(RoundFailedError(why))
                future.exception()  # marks it as retrieved; awaiting the future still raises it

    async def serve(self, level: Level, sender: int, stream: Messages) -> Messages:
        """Serve a stream opened by `sender`: receive its parts, yield the results."""
        expected = self._incoming.get((level, sender))
        if expected is None or (level, sender) in self._begun:
            raise RoundFailedError(f"peer {sender} has no parts to send at level {level.name}")
        self._begun.add((level, sender))
        taking = asyncio.ensure_future(self._take(level, sender, expected, stream))
        given = 0
        try:
            for i in expected:
                result = await asyncio.shield(self._results[i])
                given += 1
                yield result, 0.0
            await taking
        finally:
            taking.cancel()
            if given < len(expected):
                self.give_up(f"peer {sender} left")

    async def _take(self, level: Level, sender: int, expected: Sequence[int], stream: Messages) -> None:
        patience_s = self._timeout_s * (_BETWEEN_PATIENCE if level is Level.BETWEEN else 1.0)
        taken = 0
        try:
            async for packed, weight in aiter_with_timeout(stream, patience_s):
                if taken == len(expected):
                    raise RoundFailedError("more parts than expected")
                self._check(expected[taken], packed)
                part = await asyncio.get_running_loop().run_in_executor(
                    None, deserialize_torch_tensor, packed
                )
                self._sums[level, expected[taken]].add(part, weight)
                taken += 1
            if taken < len(expected):
                raise RoundFailedError(f"received {taken} of {len(expected)} parts")
        except Exception as error:  # noqa: BLE001 - whatever the error is, the part will not arrive: the round reports it
            self.give_up(f"peer {sender}: {type(error).__name__} {error}")

    async def _miss_senders(self) -> None:
        """Give up if a peer does not begin to send its parts in time."""
        await asyncio.sleep(self._timeout_s)
        late = [key for key in self._incoming if key not in self._begun]
        if all(level is Level.BETWEEN for level, _ in late):
            await asyncio.sleep(self._timeout_s * (_BETWEEN_PATIENCE - 1.0))
            late = [key for key in self._incoming if key not in self._begun]
        if late:
            self.give_up(f"peer {late[0][1]} did not begin")

    async def _average_in_region(self) -> None:
        for i, mean in self._region_means.items():
            sums = self._sums[Level.REGION, i]
            await asyncio.shield(sums.full)
            mean.set_result(sums.mean_with(self._values(i), self._weight))

    async def _average_between(self) -> None:
        for (level, i), sums in self._sums.items():
            if level is not Level.BETWEEN:
                continue
            await asyncio.shield(sums.full)
            own, weight = await asyncio.shield(self._region_means[i])
            mean, total = sums.mean_with(own, weight)
            if total <= 0.0:
                raise RoundFailedError("no peer has samples")
            loop = asyncio.get_running_loop()
            self._results[i].set_result(await loop.run_in_executor(None, self._packed, i, mean))

    async def _exchange(self, level: Level, peer: int, parts: Sequence[int]) -> None:
        """Send parts to `peer` and receive their results."""
        taken = 0
        stream = await self._call(level, peer, self._messages(level, parts))
        async for packed, _ in aiter_with_timeout(stream, self._timeout_s * _RESULT_PATIENCE):
            if taken == len(parts):
                raise RoundFailedError(f"peer {peer} sent more results than parts")
            self._check(parts[taken], packed)
            self._results[parts[taken]].set_result(packed)
            taken += 1
        if taken < len(parts):
            raise RoundFailedError(f"peer {peer} sent {taken} of {len(parts)} results")

    async def _messages(self, level: Level, parts: Sequence[int]) -> Messages:
        try:
            packed = amap_in_executor(
                lambda known: (self._packed(known[0], known[1]), known[2]), self._known(level, parts)
            )
            async for message in packed:
                yield message
        except Exception as error:  # noqa: BLE001 - it would be lost in a Hivemind task that is never awaited
            self.give_up(f"{type(error).__name__}: {error}")

    async def _known(
        self, level: Level, parts: Sequence[int]
    ) -> AsyncIterator[tuple[int, torch.Tensor, float]]:
        for i in parts:
            if level is Level.REGION:
                yield i, self._values(i), self._weight
            else:
                mean, weight = await asyncio.shield(self._region_means[i])
                yield i, mean, weight

    def write(self) -> None:
        """Write the results to the tensors. Call it after `run`."""
        for i, result in enumerate(self._results):
            self._values(i).copy_(deserialize_torch_tensor(result.result()).view(-1))

    def _values(self, i: int) -> torch.Tensor:
        part = self._parts[i]
        return self._flat[part.tensor][part.start : part.stop]

    def _packed(self, i: int, values: torch.Tensor) -> Any:
        part = self._parts[i]
        info = self._infos[part.tensor].get_part(part.number, self._part_values[part.tensor])
        return self._compression.compress(values, info)

    def _check(self, i: int, packed: Any) -> None:
        if list(packed.size) != [self._parts[i].values]:
            raise RoundFailedError(
                f"received a part of {list(packed.size)} values, expected {self._parts[i].values}"
            )
