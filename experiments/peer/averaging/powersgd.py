"""A gradient averager that sends large matrices as PowerSGD factors, in two all-reduces that succeed or fail together.

Groups, retries and timeouts are RoundAverager's. Hivemind's PowerSGDGradientAverager draws its first right factors from
the process's random numbers, updates the remainder before the round (so that a retried attempt adds twice), and computes
in the event loop. The code runs in the averager's process, except `schedule_step` and `factors`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import multiprocessing
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

import torch
from hivemind.averaging.allreduce import AllreduceException
from hivemind.averaging.control import StepControl
from hivemind.averaging.group_info import GroupInfo
from hivemind.compression import CompressionInfo

from experiments.peer.averaging.gradient_averager import RoundAverager
from experiments.peer.averaging.lineage import PeerVersion, after_round, parse_version, reference
from experiments.peer.averaging.powersgd_cache import LastFactors
from experiments.peer.averaging.powersgd_math import Factors, LowRankRound, Memory

_log = logging.getLogger(__name__)
_FORK = multiprocessing.get_context("fork")
_HELD_BYTES = 64  # two lineages
_LEFT = b".left"  # suffix of the group id in the first all-reduce

Found = TypeVar("Found")


class PowerSgdAverager(RoundAverager):
    """A `RoundAverager` with `rank` and `seed`, which must be the same on all peers of the swarm."""

    _rpc_handlers = None  # not inherited from a parent class

    def __init__(
        self, parameters: Iterable[torch.nn.Parameter], *args: Any, rank: int, seed: int, **kwargs: Any
    ) -> None:
        self._rank, self._seed = rank, seed
        self._memory = Memory()
        self._held_lineages: Any = _FORK.Array("c", _HELD_BYTES)  # lineages for which `_memory` holds data
        self._versions: dict[Any, PeerVersion | None] = {}  # of the current group
        self._warm = False
        parameters = list(parameters)
        self._last_factors = LastFactors([tuple(parameter.shape) for parameter in parameters], rank)
        super().__init__(parameters, *args, **kwargs)

    def schedule_step(self, scheduled_time: float | None = None, **kwargs: Any) -> StepControl:
        """Like RoundAverager's; also tells the group whether this peer holds the last round's factors."""
        version = self.version()
        holds = version.lineage in self._held_lineages.value.decode().split()
        kwargs.setdefault("gather", [version.as_list(), holds])
        return super().schedule_step(scheduled_time, **kwargs)

    def factors(self, lineage: str) -> Factors | None:
        """Return the factors of the last round, if it led to weights of that lineage."""
        return self._last_factors.get(lineage)

    @contextlib.contextmanager
    def _register_allreduce_group(self, group_info: GroupInfo) -> Iterator[None]:
        with super()._register_allreduce_group(group_info):
            left = group_info.group_id + _LEFT
            self._running_groups[left] = future = asyncio.get_running_loop().create_future()
            try:
                yield
            finally:
                self._running_groups.pop(left, None)
                future.cancel()

    async def _aggregate_with_group(self, group_info: GroupInfo, *args: Any, **kwargs: Any) -> Any:
        load: Any = self.serializer.loads
        reported: list[tuple[PeerVersion | None, bool]] = []
        packed: list[bytes] = []
        for raw in group_info.gathered:
            *settings, inner = load(raw)
            match load(inner):
                case [sent, bool() as holds]:
                    pass
                case sent:
                    holds = False
            reported.append((parse_version(sent), holds))
            packed.append(self.serializer.dumps([*settings, self.serializer.dumps(sent)]))
        self._versions = {
            peer: version for peer, (version, _) in zip(group_info.peer_ids, reported, strict=True)
        }
        self._warm = all_hold(reported)
        group_info = GroupInfo(group_info.group_id, group_info.peer_ids, tuple(packed))
        return await super()._aggregate_with_group(group_info, *args, **kwargs)

    async def _run_allreduce_inplace_(
        self,
        tensors: Sequence[torch.Tensor],
        group_info: GroupInfo,
        group_id: bytes | None = None,
        **kwargs: Any,
    ) -> None:
        own, newest = self._versions[self.peer_id], reference(self._versions)
        if own is None or newest is None:
            raise AllreduceException("this peer's own version is not in its group")
        kept = self._memory.begin(own.lineage)
        self._publish_lineages()
        if self._warm and kept is None:
            raise AllreduceException("the last round's factors are no longer available")
        round_ = LowRankRound(
            tensors,
            self._rank,
            kept,
            weight=kwargs["weight"],
            warm=self._warm,
            seed=self._seed,
            epoch=newest[0],
        )
        try:
            left = await _in_thread(round_.left)
            if len(left):
                await self._average(left, group_info, group_info.group_id + _LEFT, kwargs)
            right = await _in_thread(lambda: round_.right(left))
            await self._average(right, group_info, group_info.group_id, kwargs)
            lineage = after_round(self._versions, own)
            self._memory.keep(await _in_thread(lambda: round_.finish(right, lineage)))
            self._last_factors.put(Factors(self._rank, left, right), lineage)
        finally:
            round_.forget()  # the error of a failed attempt is kept, and with it everything its frames refer to
        self._publish_lineages()
        _log.info(
            "averaged %d values for %d, %s", len(left) + len(right), self.total_size,
            "from the last round's factors" if self._warm else "from new factors",
        )  # fmt: skip

    async def _average(
        self, flat: torch.Tensor, group_info: GroupInfo, group_id: bytes, kwargs: dict[str, Any]
    ) -> None:
        """Average in place, in equal parts: with the usual part size, a small tensor would have few and uneven parts."""
        info = CompressionInfo.from_tensor(flat, key=0)
        value_bytes = flat.element_size() * kwargs["compression"].estimate_compression_ratio(info)
        share = math.ceil(len(flat) / len(group_info.peer_ids))
        parts = max(1, math.ceil(share * value_bytes / kwargs["part_size_bytes"]))
        changed = {"tensor_infos": (info,), "part_size_bytes": math.ceil(share / parts) * value_bytes}
        await super()._run_allreduce_inplace_([flat], group_info, group_id, **{**kwargs, **changed})

    def _publish_lineages(self) -> None:
        """Make the held lineages readable in the peer's process."""
        self._held_lineages.value = " ".join(self._memory.lineages).encode()


def all_hold(reported: Iterable[tuple[PeerVersion | None, bool]]) -> bool:
    """Whether all members of a group, given as (version, holds factors for it), hold the factors of the same round.

    If one has joined, missed a round or has another lineage, they do not, and all begin with new factors.
    """
    members = list(reported)
    lineages = {version.lineage for version, _ in members if version is not None}
    return len(lineages) == 1 and all(version is not None and holds for version, holds in members)


async def _in_thread(work: Callable[[], Found]) -> Found:
    """Run `work` in a thread. If cancelled, wait for its end first: it may write to memory that the next round reads."""
    running = asyncio.get_running_loop().run_in_executor(None, work)
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        while not running.done():  # also if cancelled again
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait({running})
        raise
