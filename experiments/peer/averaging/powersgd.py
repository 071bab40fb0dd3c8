"""A gradient averager that sends large matrices as PowerSGD's factors, in two all-reduces that count together or not at all.

The group, its retries and its time-outs are RoundAverager's. Hivemind's own PowerSGDGradientAverager takes its first right
factors from the process's random numbers, adds to the remainder before the round (an attempt that is made again adds
twice), and computes in the event loop. What is below runs in the averager's own process, except `schedule_step` and
`factors`.
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
_SAID_BYTES = 64  # two lineages
_LEFT = b".left"  # what follows the group's id in the first all-reduce

Found = TypeVar("Found")


class PowerSgdAverager(RoundAverager):
    """A `RoundAverager` with `rank` and `seed`: the same at each peer of the swarm."""

    _rpc_handlers = None  # not those of a class above

    def __init__(
        self, parameters: Iterable[torch.nn.Parameter], *args: Any, rank: int, seed: int, **kwargs: Any
    ) -> None:
        self._rank, self._seed = rank, seed
        self._memory = Memory()
        self._said: Any = _FORK.Array("c", _SAID_BYTES)  # the lineages that `_memory` has something for
        self._versions: dict[Any, PeerVersion | None] = {}  # of the group under way
        self._warm = False
        parameters = list(parameters)
        self._last_factors = LastFactors([tuple(parameter.shape) for parameter in parameters], rank)
        super().__init__(parameters, *args, **kwargs)

    def schedule_step(self, scheduled_time: float | None = None, **kwargs: Any) -> StepControl:
        """As RoundAverager's; the group learns whether this peer holds the last round's factors."""
        version = self.version()
        holds = version.lineage in self._said.value.decode().split()
        kwargs.setdefault("gather", [version.as_list(), holds])
        return super().schedule_step(scheduled_time, **kwargs)

    def factors(self, lineage: str) -> Factors | None:
        """What the last round averaged, if that led to weights of that lineage."""
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
        self._say()
        if self._warm and kept is None:
            raise AllreduceException("the last round's factors are not here any more")
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
            left = await _aside(round_.left)
            if len(left):
                await self._average(left, group_info, group_info.group_id + _LEFT, kwargs)
            right = await _aside(lambda: round_.right(left))
            await self._average(right, group_info, group_info.group_id, kwargs)
            lineage = after_round(self._versions, own)
            self._memory.keep(await _aside(lambda: round_.finish(right, lineage)))
            self._last_factors.put(Factors(self._rank, left, right), lineage)
        finally:
            round_.forget()  # a failed attempt's error is kept, and with it all that its frames hold
        self._say()
        _log.info(
            "averaged %d values for %d, %s", len(left) + len(right), self.total_size,
            "from the last round's factors" if self._warm else "from new factors",
        )  # fmt: skip

    async def _average(
        self, flat: torch.Tensor, group_info: GroupInfo, group_id: bytes, kwargs: dict[str, Any]
    ) -> None:
        """In place; in equal parts, since those of a tensor much smaller than the model would be few and uneven."""
        info = CompressionInfo.from_tensor(flat, key=0)
        value_bytes = flat.element_size() * kwargs["compression"].estimate_compression_ratio(info)
        share = math.ceil(len(flat) / len(group_info.peer_ids))
        parts = max(1, math.ceil(share * value_bytes / kwargs["part_size_bytes"]))
        changed = {"tensor_infos": (info,), "part_size_bytes": math.ceil(share / parts) * value_bytes}
        await super()._run_allreduce_inplace_([flat], group_info, group_id, **{**kwargs, **changed})

    def _say(self) -> None:
        self._said.value = " ".join(self._memory.lineages).encode()


def all_hold(reported: Iterable[tuple[PeerVersion | None, bool]]) -> bool:
    """Whether all of a group, each with its version and whether it holds factors for it, hold those of one round.

    They do not where one has joined, missed a round or came another way: then all begin anew.
    """
    members = list(reported)
    lineages = {version.lineage for version, _ in members if version is not None}
    return len(lineages) == 1 and all(version is not None and holds for version, holds in members)


async def _aside(work: Callable[[], Found]) -> Found:
    """In a thread. A round that is given up meanwhile ends after it: it may write where the next one would read."""
    doing = asyncio.get_running_loop().run_in_executor(None, work)
    try:
        return await asyncio.shield(doing)
    except asyncio.CancelledError:
        while not doing.done():  # cancelled once more: all the same
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait({doing})
        raise
