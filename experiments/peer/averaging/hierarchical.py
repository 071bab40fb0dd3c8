"""Hivemind's gradient averager with hierarchical averaging: within each region, then between the regions, and back.

Matchmaking is unchanged and forms one group. Each peer sends its region in the gathered data, so all of them make the
same plan (`hierarchical_plan`). The exchange (`hierarchical_exchange`) and the agreement on its outcome
(`commit_protocol`) replace the all-reduce. A failed attempt leaves the gradients unchanged and is retried like any
other. The code runs in the averager's process, except `schedule_step`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any

import torch
from hivemind.averaging.allreduce import AllreduceException
from hivemind.averaging.control import StepControl
from hivemind.averaging.group_info import GroupInfo
from hivemind.compression import CompressionInfo
from hivemind.p2p import P2PContext

# generated at import time, so type checkers do not know its names
from hivemind.proto.averaging_pb2 import AveragingData, MessageCode  # type: ignore[attr-defined]
from hivemind.utils import get_dht_time

from experiments.peer.averaging.atomic_commit import State
from experiments.peer.averaging.commit_protocol import Attempt
from experiments.peer.averaging.gradient_averager import RoundAverager
from experiments.peer.averaging.hierarchical_exchange import Level, Messages, RoundFailedError, TwoLevelRound
from experiments.peer.averaging.hierarchical_plan import Hierarchy, cut

_REMEMBERED = 4  # attempts whose outcome others may still request
_PATIENCE_S = 60.0  # if no chunk timeout is set
_PART, _AVERAGE = MessageCode.Value("PART_FOR_AVERAGING"), MessageCode.Value("AVERAGED_PART")
_REFUSED = MessageCode.Value("PROTOCOL_VIOLATION")
# suffix of the group id in a stream's first message
_GROUP_IDS = {Level.REGION: b"", Level.BETWEEN: b".between"}


class HierarchicalAverager(RoundAverager):
    """A `RoundAverager` with `region`: peers of the same region average among themselves first."""

    _rpc_handlers = None  # otherwise Hivemind uses a parent class's if that has served or called before

    def __init__(self, *args: Any, region: str, **kwargs: Any) -> None:
        self._region = region
        self._regions: list[str] = []  # of the current group, in its order
        self._attempts: dict[bytes, tuple[Sequence[Any], Attempt]] = {}
        super().__init__(*args, **kwargs)

    def schedule_step(self, scheduled_time: float | None = None, **kwargs: Any) -> StepControl:
        """Like RoundAverager's; also sends this peer's region to the group."""
        kwargs.setdefault("gather", [self.version().as_list(), self._region])
        return super().schedule_step(scheduled_time, **kwargs)

    @contextlib.contextmanager
    def _register_allreduce_group(self, group_info: GroupInfo) -> Iterator[None]:
        with super()._register_allreduce_group(group_info):
            between = group_info.group_id + _GROUP_IDS[Level.BETWEEN]
            self._running_groups[between] = future = asyncio.get_running_loop().create_future()
            try:
                yield
            finally:
                self._running_groups.pop(between, None)
                future.cancel()

    async def _aggregate_with_group(self, group_info: GroupInfo, *args: Any, **kwargs: Any) -> Any:
        self._regions, reported = self._unwrapped(group_info)
        group_info = GroupInfo(group_info.group_id, group_info.peer_ids, reported)
        return await super()._aggregate_with_group(group_info, *args, **kwargs)

    def _unwrapped(self, group_info: GroupInfo) -> tuple[list[str], tuple[bytes, ...]]:
        """Split the gathered data into regions and the data that RoundAverager expects.

        A peer that sent no region gets one of its own.
        """
        load: Any = self.serializer.loads
        regions: list[str] = []
        reported: list[bytes] = []
        for peer, raw in zip(group_info.peer_ids, group_info.gathered, strict=True):
            *settings, packed = load(raw)
            match load(packed):
                case [version, str() as region]:
                    packed = self.serializer.dumps(version)
                case _:
                    region = str(peer)
            regions.append(region)
            reported.append(self.serializer.dumps([*settings, packed]))
        return regions, tuple(reported)

    async def _run_allreduce_inplace_(
        self,
        tensors: Sequence[torch.Tensor],
        group_info: GroupInfo,
        group_id: bytes | None = None,
        **kwargs: Any,
    ) -> None:
        loop = asyncio.get_running_loop()
        peers = [*group_info.peer_ids]
        me = peers.index(self.peer_id)
        timeout_s = kwargs["sender_timeout"] or _PATIENCE_S
        hierarchy = Hierarchy.of(self._regions)
        infos = kwargs["tensor_infos"] or [
            CompressionInfo.from_tensor(t, key=i) for i, t in enumerate(tensors)
        ]
        compression = kwargs["compression"]
        part_values = [
            int(kwargs["part_size_bytes"] / (t.element_size() * compression.estimate_compression_ratio(info)))
            for t, info in zip(tensors, infos, strict=True)
        ]
        round_ = TwoLevelRound(
            me=me,
            hierarchy=hierarchy,
            parts=cut([t.numel() for t in tensors], part_values, hierarchy),
            tensors=tensors,
            infos=infos,
            compression=compression,
            part_values=part_values,
            weight=kwargs["weight"],
            call=_Calls(self, group_info.group_id, peers).open,
            timeout_s=timeout_s,
        )
        others = [peer for peer in range(len(peers)) if peer != me]
        attempt = Attempt(others, _Calls(self, group_info.group_id, peers).ask, timeout_s)
        self._remember(group_info.group_id, peers, attempt)
        for level in Level:
            served: Any = _Served(round_, level, peers)
            self._running_groups[group_info.group_id + _GROUP_IDS[level]].set_result(served)
        try:
            await attempt.run(round_)
        except RoundFailedError as error:
            raise AllreduceException(str(error)) from error
        await loop.run_in_executor(None, round_.write)
        self.last_updated = get_dht_time()
        self._state_updated.set()

    def _remember(self, group_id: bytes, peers: Sequence[Any], attempt: Attempt) -> None:
        self._attempts[group_id] = (peers, attempt)
        while len(self._attempts) > _REMEMBERED:
            del self._attempts[next(iter(self._attempts))]

    async def rpc_agree(self, request: AveragingData, context: P2PContext) -> AveragingData:
        """Exchange the states of a round (in the messages' weight) with a groupmate."""
        peers, attempt = self._attempts.get(request.group_id, ((), None))
        if attempt is None or context.remote_id not in peers:
            return AveragingData(weight=float(State.WORKING))
        state = attempt.received(peers.index(context.remote_id), State(int(request.weight)))
        return AveragingData(weight=float(state))


class _Calls:
    """Requests to groupmates, as Hivemind RPCs."""

    def __init__(self, averager: HierarchicalAverager, group_id: bytes, peers: Sequence[Any]) -> None:
        self._averager, self._group_id, self._peers = averager, group_id, peers

    def _stub(self, peer: int) -> Any:
        averager = self._averager
        return type(averager).get_stub(averager._p2p, self._peers[peer], namespace=averager.prefix)

    async def open(self, level: Level, peer: int, messages: Messages) -> Messages:
        """Open a stream to `peer`."""
        stream = await self._stub(peer).rpc_aggregate_part(self._wrapped(level, messages))
        return _results(stream)

    async def ask(self, peer: int, state: State) -> State:
        """Send this peer's state to `peer` and return that peer's state."""
        request = AveragingData(group_id=self._group_id, weight=float(state))
        return State(int((await self._stub(peer).rpc_agree(request)).weight))

    async def _wrapped(self, level: Level, messages: Messages) -> AsyncIterator[Any]:
        group_id = self._group_id + _GROUP_IDS[level]
        async for part, weight in messages:
            yield AveragingData(code=_PART, group_id=group_id, tensor_part=part, weight=weight)
            group_id = b""  # only the first message has it


async def _results(stream: AsyncIterator[Any]) -> Messages:
    async for message in stream:
        if message.code != _AVERAGE:
            raise RoundFailedError(f"the peer responded {MessageCode.Name(message.code)}")
        yield message.tensor_part, 0.0


class _Served:
    """One level of a round, with the interface that Hivemind's averager expects for incoming streams."""

    def __init__(self, round_: TwoLevelRound, level: Level, peers: Sequence[Any]) -> None:
        self._round, self._level, self._peers = round_, level, peers

    async def rpc_aggregate_part(self, stream: AsyncIterator[Any], context: P2PContext) -> AsyncIterator[Any]:
        """Receive a groupmate's parts and send the results."""
        if context.remote_id not in self._peers:
            yield AveragingData(code=_REFUSED)
            return
        sender = self._peers.index(context.remote_id)
        async for part, _ in self._round.serve(self._level, sender, _parts(stream)):
            yield AveragingData(code=_AVERAGE, tensor_part=part)


async def _parts(stream: AsyncIterator[Any]) -> Messages:
    async for message in stream:
        yield message.tensor_part, message.weight
