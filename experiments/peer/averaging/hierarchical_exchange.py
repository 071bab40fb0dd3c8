"""One averaging round in two levels, as one peer of the group lives it (the plan: `hierarchy`).

A part flows from a region's peers to its representative there, from the representatives to the part's home, and back
the same way; the next part follows before the first is back, so all links are busy at once. What comes back are the
same bytes for everybody, so all peers end with equal results. Nothing is changed until `write`: a round that failed
leaves the tensors as they were.
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

_BETWEEN_PATIENCE = 1.5  # of the time-out: what a region sends on waited for its own peers first
_RESULT_PATIENCE = 2.0

Messages = AsyncIterator[tuple[Any, float]]  # a serialized part, and the weight of what it is the mean of


class Level(Enum):
    """To whom a stream brings parts."""

    REGION = "region"  # a peer to its region's representative
    BETWEEN = "between"  # a representative to the part's home


# Opens a stream to a peer of the group: (level, peer, what is sent) -> what comes back.
Call = Callable[[Level, int, Messages], Awaitable[Messages]]


class RoundFailedError(Exception):
    """Parts of the round are missing, and will not come."""


class _Sum:
    """What a part's other senders gave so far, weighted; `full` when all of them did."""

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
        """Of all senders and this peer. Nobody's samples: the weight is 0 and the mean nothing to go by."""
        total = self._weight + weight
        if self._sum is None or total == 0.0:
            return own, total
        return self._sum.add_(own, alpha=weight).div_(total), total


class TwoLevelRound:
    """The streams, sums and results of one peer. Make it and call `run` in one event loop."""

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
        """`me`: this peer's number; `weight`: its samples; `timeout_s`: a peer silent for so long is lost."""
        self._me, self._hierarchy, self._parts, self._call = me, hierarchy, parts, call
        self._flat = [tensor.detach().view(-1) for tensor in tensors]
        self._infos, self._compression, self._part_values = infos, compression, part_values
        self._weight, self._timeout_s = weight, timeout_s
        region = hierarchy.region_of(me)
        self._outgoing: dict[tuple[Level, int], list[int]] = {}  # parts, by whom they are brought to
        self._incoming: dict[tuple[Level, int], list[int]] = {}  # by whom they come from
        self._sums: dict[tuple[Level, int], _Sum] = {}
        new = asyncio.get_running_loop().create_future
        self._region_means: dict[int, asyncio.Future[tuple[torch.Tensor, float]]] = {}
        self._results: list[asyncio.Future[Any]] = [
            new() for _ in parts
        ]  # serialized, as everybody gets them
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
        """Until every part's result is here. Raises RoundFailedError; then nobody gets more from this peer."""
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
        """Nothing comes of this round: all that wait for it fail, here and at the others' ends of the streams."""
        for future in (
            self._broken,
            *self._results,
            *self._region_means.values(),
            *(s.full for s in self._sums.values()),
        ):
            if not future.done():
                future.set_exception(RoundFailedError(why))
                future.exception()  # looked at: whoever awaits it still gets it

    async def serve(self, level: Level, sender: int, stream: Messages) -> Messages:
        """Answer a stream that `sender` opened: takes its parts, gives the results."""
        expected = self._incoming.get((level, sender))
        if expected is None or (level, sender) in self._begun:
            raise RoundFailedError(f"peer {sender} has nothing to bring for {level.name}")
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
                raise RoundFailedError(f"{taken} of {len(expected)} parts")
        except Exception as error:  # noqa: BLE001 - whatever it is, this part will not come: the round says why
            self.give_up(f"peer {sender}: {type(error).__name__} {error}")

    async def _miss_senders(self) -> None:
        """Give up when somebody who should bring parts does not begin in time."""
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
                raise RoundFailedError("nobody has samples")
            loop = asyncio.get_running_loop()
            self._results[i].set_result(await loop.run_in_executor(None, self._packed, i, mean))

    async def _exchange(self, level: Level, peer: int, parts: Sequence[int]) -> None:
        """Bring parts to `peer` and take their results."""
        taken = 0
        stream = await self._call(level, peer, self._messages(level, parts))
        async for packed, _ in aiter_with_timeout(stream, self._timeout_s * _RESULT_PATIENCE):
            if taken == len(parts):
                raise RoundFailedError(f"peer {peer} gave more results than parts")
            self._check(parts[taken], packed)
            self._results[parts[taken]].set_result(packed)
            taken += 1
        if taken < len(parts):
            raise RoundFailedError(f"peer {peer} gave {taken} of {len(parts)} results")

    async def _messages(self, level: Level, parts: Sequence[int]) -> Messages:
        try:
            packed = amap_in_executor(
                lambda known: (self._packed(known[0], known[1]), known[2]), self._known(level, parts)
            )
            async for message in packed:
                yield message
        except Exception as error:  # noqa: BLE001 - it ends in a task of Hivemind's that nobody asks
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
        """Put the results into the tensors; `run` has returned."""
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
                f"a part of {list(packed.size)} values where {self._parts[i].values} belong"
            )
