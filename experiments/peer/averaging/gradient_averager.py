"""Hivemind's GradientAverager with rounds that fail as a whole, at once and with a reason.

The code runs in the averager's process, except `schedule_step`, `step` and `give_up`. docs/hivemind.md describes what
Hivemind 1.1.12 does instead, and how that stalls or splits a swarm.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator as AsyncIterates
from collections.abc import Callable, Iterator, Sequence
from typing import Any, AsyncIterator  # noqa: UP035 - Hivemind reads handlers' types by this name

import torch
from hivemind.averaging.allreduce import AllreduceException, AllReduceRunner, AveragingMode
from hivemind.averaging.control import AveragingStage, StepControl
from hivemind.averaging.group_info import GroupInfo
from hivemind.averaging.partition import BannedException
from hivemind.compression import deserialize_torch_tensor, serialize_torch_tensor
from hivemind.p2p import P2PContext

# generated at import time, so type checkers do not know its names
from hivemind.proto.averaging_pb2 import AVERAGED_PART, BAD_GROUP_ID, AveragingData  # type: ignore[attr-defined]
from hivemind.utils import get_dht_time
from hivemind.utils.asyncio import achain, amap_in_executor, anext, as_aiter, azip

from experiments.peer.averaging.double_buffer import DoubleBufferedAverager
from experiments.peer.averaging.lineage import (
    FIRST,
    PeerVersion,
    astray,
    expected_peers,
    parse_version,
    patient,
)
from experiments.peer.averaging.rounds import TooFewError

_log = logging.getLogger(__name__)


class EqualRunner(AllReduceRunner):
    """An all-reduce that gives all peers bitwise equal results, or none to some of them.

    Hivemind's reducers send each peer the compressed delta to what it sent: each peer's average is rounded differently,
    and equal parameters drift apart. Here reducers send the average, compressed once for all peers, and use the
    decompressed values themselves. It must be iterated with `azip` over whole tensors, since it yields averages instead
    of deltas. Raises AllreduceException at once if a part will not arrive. A peer that fails is a lost sender to the
    others, so they do not wait either. If `patient`, it never raises: check `lost` after the last tensor.
    """

    def __init__(self, patient: bool = False, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.tensor_part_container.return_deltas = False  # a part without an average stays unchanged
        self._patient = patient
        self._wire: dict[int, asyncio.Task[Any]] = {}  # part -> its average as sent
        self._loss: asyncio.Future[str] = asyncio.get_running_loop().create_future()  # reason to stop at once

    @property
    def lost(self) -> float:
        """Fraction of the results that will not arrive."""
        container = self.tensor_part_container
        return container.failed_size / max(1, container.total_size)

    async def run(self) -> AsyncIterates[torch.Tensor]:
        """Yield the averages of the tensors, one after the other."""
        averages: Any = super().run()
        reading = asyncio.ensure_future(anext(averages))
        try:
            while True:
                await asyncio.wait({reading, self._loss}, return_when=asyncio.FIRST_COMPLETED)
                if self._loss.done():
                    raise AllreduceException(self._loss.result())
                try:
                    average: Any = reading.result()
                except StopAsyncIteration:
                    break
                yield average
                reading = asyncio.ensure_future(anext(averages))
        finally:
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)
            await averages.aclose()
            if self._future.done() and not self._future.cancelled():
                self._future.exception()  # already raised here; retrieved so that the event loop does not warn

    def _lose(self, peer_id: Any, why: str) -> None:
        if not self._patient and not self._loss.done():
            self._loss.set_result(f"{peer_id} {why}")

    async def _communicate_with_peer(self, peer_id: Any) -> None:
        if peer_id == self.peer_id:
            await self._average_own_parts()
            return
        try:
            await super()._communicate_with_peer(peer_id)
        except Exception as error:
            if self.lost:
                self._lose(peer_id, f"does not average its share: {error!r}")
            # a peer that does not average its share will not send its own parts either; without this it is awaited
            await self._ban_sender(peer_id)
            raise

    async def _ban_sender(self, peer_id: Any) -> None:
        """Ban a sender that is silent or dead."""
        reducer, index = self.tensor_part_reducer, self.sender_peer_ids.index(peer_id)
        if not self._patient and reducer.num_parts_received[index] < reducer.num_parts:
            self._lose(peer_id, "does not send its parts")
            return  # no peer may get an average without its parts
        await super()._ban_sender(peer_id)
        if not set(self.sender_peer_ids) - self.active_senders - self.banned_senders:
            self.all_senders_started.set()  # otherwise the end of the round waits a chunk timeout for banned senders

    async def _average_own_parts(self) -> None:
        own, kind = self.sender_peer_ids.index(self.peer_id), self.tensor_part_container.compression
        peer_index = self.ordered_peer_ids.index(self.peer_id)
        for part_index, part in enumerate(self.parts_for_local_averaging):
            average = await self.tensor_part_reducer.accumulate_part(
                own, part_index, part, weight=self.weight
            )
            wire = await self._sent(part_index, average, kind.compression_type)
            self.tensor_part_container.register_processed_part(
                peer_index, part_index, deserialize_torch_tensor(wire)
            )

    async def _sent(self, part_index: int, average: torch.Tensor, kind: Any) -> Any:
        """Return the part's average as sent to all peers, compressed on the first call."""
        if part_index not in self._wire:
            loop = asyncio.get_running_loop()
            compressing = loop.run_in_executor(None, serialize_torch_tensor, average, kind)
            self._wire[part_index] = asyncio.ensure_future(_result_of(compressing))
        return await asyncio.shield(self._wire[part_index])

    async def _accumulate_parts_streaming(
        self, stream: AsyncIterates[Any], sender_index: int
    ) -> AsyncIterates[Any]:
        part_index = 0
        try:
            async for part, weight, kind in amap_in_executor(
                lambda msg: (
                    deserialize_torch_tensor(msg.tensor_part),
                    msg.weight,
                    msg.tensor_part.compression,
                ),
                stream,
                max_prefetch=self.tensor_part_container.prefetch,
            ):
                try:
                    average = await self.tensor_part_reducer.accumulate_part(
                        sender_index, part_index, part, weight=weight
                    )
                except BannedException:
                    break
                wire = await self._sent(part_index, average, kind)
                part_index += 1
                yield AveragingData(code=AVERAGED_PART, tensor_part=wire)
        finally:
            if part_index != self.tensor_part_reducer.num_parts:
                await self._ban_sender(self.sender_peer_ids[sender_index])


async def _result_of(future: asyncio.Future[Any]) -> Any:
    return await future


class RoundAverager(DoubleBufferedAverager):
    """An averager whose rounds have all results or none. Accumulated gradients are kept until they are used.

    `version` (in the peer's process) returns the `PeerVersion` of the next attempt.
    """

    _rpc_handlers = None  # otherwise Hivemind uses a parent class's if that has served or called before

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.version: Callable[[], PeerVersion] = lambda: PeerVersion(0, FIRST, "")
        self._control: StepControl | None = None  # of the running attempt
        self._aggregating: asyncio.Task[Any] | None = None
        self._patient = False  # whether the group's round is patient
        self._registered = asyncio.Event()  # replaced at each registration
        super().__init__(*args, **kwargs)

    # in the peer's process

    def schedule_step(self, scheduled_time: float | None = None, **kwargs: Any) -> StepControl:
        """Like Hivemind's, but without retries, which would use tensors that the failed attempt may have changed."""
        kwargs.setdefault("gather", self.version().as_list())
        return super().schedule_step(scheduled_time, **{**kwargs, "allow_retries": False})

    def step(
        self,
        weight: float | None = None,
        reset_accumulators: bool = True,
        control: StepControl | None = None,
        timeout: float | None = None,
        wait: bool = True,
        **kwargs: Any,
    ) -> Any:
        """Like Hivemind's, but the accumulated gradients are kept, in case this attempt fails."""
        return super().step(weight, False, control, timeout, wait, **kwargs)

    def give_up(self) -> None:
        """Make a running all-reduce fail. Returns at once."""
        self._outer_pipe.send(("_give_up", [], {}))

    # in the averager's process

    async def _give_up(self) -> None:
        if self._aggregating is not None:
            self._aggregating.cancel()

    async def _step(self, *, step: StepControl, future_for_init: Any) -> None:
        self._control = step
        await super()._step(step=step, future_for_init=future_for_init)

    @contextlib.contextmanager
    def _register_allreduce_group(self, group_info: GroupInfo) -> Iterator[None]:
        with super()._register_allreduce_group(group_info):
            runner = self._running_groups[group_info.group_id]
            registered, self._registered = self._registered, asyncio.Event()
            registered.set()
            try:
                yield
            finally:
                if not runner.done():
                    runner.cancel()  # so that calls waiting for it get a response

    async def _aggregate_with_group(self, group_info: GroupInfo, *args: Any, **kwargs: Any) -> Any:
        load: Any = self.serializer.loads
        versions = [parse_version(load(load(raw)[2])) for raw in group_info.gathered]
        group = dict(zip(group_info.peer_ids, versions, strict=True))
        if (expected := expected_peers(group)) is not None:
            raise TooFewError(f"group of {len(group)} of {expected}")
        self._patient = patient(group)
        own = group[self.peer_id]
        if own is not None and astray(group, own):
            # gradients of other parameters, but the group still needs this peer as a reducer
            kwargs["weight"] = 0.0
        _log.info("Averaging begins with %d peers", len(group) - 1)
        self._aggregating = asyncio.current_task()
        try:
            return await super()._aggregate_with_group(group_info, *args, **kwargs)
        finally:
            self._aggregating = None

    async def _run_allreduce_inplace_(
        self,
        tensors: Sequence[torch.Tensor],
        group_info: GroupInfo,
        group_id: bytes | None = None,
        **kwargs: Any,
    ) -> None:
        group_id = group_info.group_id if group_id is None else group_id
        runner = EqualRunner(
            p2p=self._p2p,
            servicer_type=type(self),
            prefix=self.prefix,
            tensors=tensors,
            group_id=group_id,
            ordered_peer_ids=group_info.peer_ids,
            patient=self._patient,
            **kwargs,
        )
        self._running_groups[group_id].set_result(runner)
        if runner.modes[group_info.peer_ids.index(self.peer_id)] == AveragingMode.AUX:
            raise AllreduceException("an auxiliary peer has no gradients to average")
        async for tensor, average in azip(as_aiter(*tensors), runner):
            tensor.copy_(average)
            self.last_updated = get_dht_time()
            self._state_updated.set()
        # checked here and not in the runner: azip ends with the last tensor, so an error there would go unnoticed
        if runner.lost:
            raise AllreduceException(f"received {100.0 * (1.0 - runner.lost):.1f} % of the results")

    async def rpc_aggregate_part(
        self, stream: AsyncIterator[AveragingData], context: P2PContext
    ) -> AsyncIterator[AveragingData]:
        """Process a groupmate's parts; responds BAD_GROUP_ID if this peer is not in its group."""
        request: Any = await anext(stream)
        runner = await self._runner_of(request.group_id)
        if runner is None:
            yield AveragingData(code=BAD_GROUP_ID)
            return
        async for message in runner.rpc_aggregate_part(achain(as_aiter(request), stream), context):
            yield message

    async def _runner_of(self, group_id: bytes) -> Any:
        """Wait for the group's all-reduce and return it; None if this peer has none with that group.

        Groupmates' first parts may arrive before this peer's all-reduce begins: before the leader's message, which may be
        queued behind the parts that the leader sends (3.1 s seen with 8 peers), or while this peer finishes its last step.
        The wait for the message is limited to half a chunk timeout, so that groupmates get a response within their own.
        """
        loop = asyncio.get_running_loop()
        give_up_at = loop.time() + max(self.request_timeout, (self.next_chunk_timeout or 0.0) / 2)
        while (future := self._running_groups.get(group_id)) is None:
            stage = AveragingStage.FINISHED if self._control is None else self._control.stage
            if stage in (AveragingStage.FINISHED, AveragingStage.RUNNING_ALLREDUCE):
                return None
            if stage != AveragingStage.AWAITING_TRIGGER and loop.time() >= give_up_at:
                return None
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._registered.wait(), 0.25)
        # `wait` instead of awaiting the future: cancelling one groupmate's call would cancel it for all
        await asyncio.wait({future})
        return None if future.cancelled() else future.result()
