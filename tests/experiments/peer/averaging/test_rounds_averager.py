"""An all-reduce that fails at once and as a whole, compared with Hivemind's, without a network."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any, cast
from unittest import mock

import pytest
import torch
import virtual_time
from hivemind.averaging import DecentralizedAverager
from hivemind.averaging.allreduce import AllReduceRunner
from hivemind.averaging.control import AveragingStage
from hivemind.averaging.partition import AllreduceException
from hivemind.proto.averaging_pb2 import BAD_GROUP_ID, AveragingData
from hivemind.utils import get_dht_time
from hivemind.utils.asyncio import as_aiter

from experiments.peer.averaging.gradient_averager import EqualRunner, RoundAverager
from experiments.peer.optimizer.build import compression_of
from experiments.wire.hivemind.patches import apply

PEERS = ("a", "b", "c", "d")
VALUES = 4000
CHUNK_S = 1.0


class Id(str):
    """A peer id that equals its name."""

    def to_bytes(self) -> bytes:
        return self.encode()


class Network:
    """All-reduces of one group that call each other directly.

    `outside` peers were left out by matchmaking, `stopped` ones accept messages and do nothing, `apart` ones cannot reach
    each other.
    """

    def __init__(
        self,
        kind: type[AllReduceRunner],
        outside: tuple[str, ...] = (),
        stopped: tuple[str, ...] = (),
        apart: frozenset[str] = frozenset(),
        patient: bool = False,
        compression: str = "float16",
    ) -> None:
        self.kind, self.outside, self.stopped, self.apart = kind, outside, stopped, apart
        self.settings: dict[str, Any] = {"patient": True} if patient else {}
        self.compression = compression_of(compression)
        self.runners: dict[str, AllReduceRunner] = {}
        self.tensors = {
            peer: [torch.randn(VALUES, generator=torch.Generator().manual_seed(i))]
            for i, peer in enumerate(PEERS)
        }

    def stub(self, caller: str, peer: str) -> Any:
        async def rpc_aggregate_part(stream: AsyncIterator[Any]) -> AsyncIterator[Any]:
            if peer in self.outside:
                return as_aiter(AveragingData(code=BAD_GROUP_ID))
            if peer in self.stopped or {caller, peer} == self.apart:
                return never()
            context = cast(Any, SimpleNamespace(remote_id=Id(caller)))
            return served(self.runners[peer].rpc_aggregate_part(stream, context))

        return SimpleNamespace(rpc_aggregate_part=rpc_aggregate_part)

    async def average(self, peer: str) -> torch.Tensor:
        if self.kind is AllReduceRunner:  # yields what to add
            results = [result async for result in self.runners[peer]]
            return self.tensors[peer][0] + results[0]
        averager: Any = object.__new__(RoundAverager)
        averager._parent_pid = 0  # not ours to shut down
        averager.dht = averager._p2p = SimpleNamespace(peer_id=Id(peer))
        averager.prefix, averager._patient = None, False
        averager._running_groups = {b"group": asyncio.get_running_loop().create_future()}
        averager._state_updated = asyncio.Event()
        tensors = [tensor.clone() for tensor in self.tensors[peer]]
        group = cast(Any, SimpleNamespace(group_id=b"group", peer_ids=[Id(p) for p in PEERS]))
        await RoundAverager._run_allreduce_inplace_(averager, tensors, group)
        return tensors[0]

    async def run(self) -> dict[str, Any]:
        """Run the all-reduce; returns each peer's average or error."""
        inside = [peer for peer in PEERS if peer not in (*self.outside, *self.stopped)]
        for peer in inside:
            runner = self.kind(
                p2p=cast(Any, SimpleNamespace(peer_id=Id(peer))),
                servicer_type=AllReduceRunner,
                prefix=None,
                group_id=b"group",
                tensors=self.tensors[peer],
                ordered_peer_ids=[cast(Any, Id(p)) for p in PEERS],
                peer_fractions=(0.25,) * len(PEERS),
                sender_timeout=CHUNK_S,
                reducer_timeout=2 * CHUNK_S,
                part_size_bytes=512,
                compression=self.compression,
                **self.settings,
            )
            runner._get_peer_stub = lambda other, own=peer: self.stub(own, other)  # type: ignore[method-assign]
            self.runners[peer] = runner
        made = "experiments.peer.averaging.gradient_averager.EqualRunner"
        with mock.patch(made, lambda **kwargs: self.runners[kwargs["p2p"].peer_id]):
            averages = await asyncio.gather(*(self.average(peer) for peer in inside), return_exceptions=True)
        return dict(zip(inside, averages, strict=True))


async def served(answers: AsyncIterator[Any]) -> AsyncIterator[Any]:
    """Ends when the other peer's handler was cancelled, like a connection."""
    caller = asyncio.current_task()
    try:
        async for answer in answers:
            yield answer
    except asyncio.CancelledError:
        if caller is None or caller.cancelling():
            raise


async def never() -> AsyncIterator[Any]:
    await asyncio.Event().wait()
    yield None


def differing(results: dict[str, torch.Tensor]) -> int:
    """Number of values in which the peers' results are not bitwise equal."""
    first, *others = results.values()
    return int(sum((first != other) for other in others).count_nonzero())


@pytest.mark.parametrize(
    ("compression", "error"), [("float16", 1e-3), ("uniform8bit", 0.05), ("blockwise8bit", 0.05)]
)
def test_all_peers_hold_the_same_bits(compression: str, error: float) -> None:
    apply("peer")
    network = Network(EqualRunner, compression=compression)
    results = virtual_time.run(network.run())
    mean = torch.stack([tensors[0] for tensors in network.tensors.values()]).mean(0)
    assert differing(results) == 0
    assert float((results["a"] - mean).norm()) < error * float(mean.norm())
    assert not torch.equal(results["a"], mean)  # it was compressed


def test_hivemind_rounds_each_peers_average_differently() -> None:
    """If this fails, Hivemind keeps peers equal and `EqualRunner` may send deltas again."""
    apply("peer")
    assert differing(virtual_time.run(Network(AllReduceRunner).run())) > VALUES / 10


def timed(kind: type[AllReduceRunner], **how: Any) -> tuple[float, dict[str, Any]]:
    """Duration of the all-reduce in chunk timeouts, and the result of each peer."""
    apply("peer")

    async def measured() -> tuple[float, dict[str, Any]]:
        results = await Network(kind, **how).run()
        return asyncio.get_running_loop().time() / CHUNK_S, results

    return virtual_time.run(measured())


@pytest.mark.parametrize(
    ("lost", "chunks", "why"),
    [("outside", 0.0, "does not average its share"), ("stopped", 1.0, "does not send")],
)
def test_round_ends_for_all_when_one_is_lost(lost: str, chunks: float, why: str) -> None:
    took, results = timed(EqualRunner, **{lost: ("d",)})
    assert took == pytest.approx(chunks, abs=0.1)
    assert len(results) == 3
    for error in results.values():
        assert isinstance(error, AllreduceException)
        assert str(error).startswith(f"d {why}")


@pytest.mark.parametrize(("lost", "chunks"), [("outside", 0.0), ("stopped", 2.0)])
def test_patient_round_without_one_peer_fails_for_all(lost: str, chunks: float) -> None:
    took, results = timed(EqualRunner, **{lost: ("d",)}, patient=True)
    assert took == pytest.approx(chunks, abs=0.1)
    assert len(results) == 3
    assert all("% of the results" in str(error) for error in results.values())


def test_two_that_cannot_reach_each_other_do_not_stop_the_others() -> None:
    """The first lost part ends the round for all peers, so the group's next round is patient."""
    took, results = timed(EqualRunner, apart=frozenset("ad"))
    assert took == pytest.approx(1.0, abs=0.1)
    assert all(isinstance(result, AllreduceException) for result in results.values())
    took, results = timed(EqualRunner, apart=frozenset("ad"), patient=True)
    assert took < 2.1
    assert [peer for peer, result in results.items() if isinstance(result, AllreduceException)] == ["a", "d"]
    assert torch.equal(results["b"], results["c"])


def test_average_never_excludes_a_lost_peer() -> None:
    """A peer that averaged its share but did not send all its parts: others would get an average without it."""
    apply("peer")
    network = Network(EqualRunner, outside=("d",))

    async def lose_one() -> Any:
        await network.run()
        runner: Any = network.runners["a"]
        return runner.tensor_part_reducer.sender_failed_after

    assert virtual_time.run(lose_one()) == [float("inf")] * len(PEERS)


@pytest.mark.parametrize(("lost", "chunks"), [("outside", 1.0), ("stopped", 2.0)])
def test_hivemind_waits_for_lost_peers(lost: str, chunks: float) -> None:
    """If this fails, Hivemind no longer waits for refusing or silent peers, and `EqualRunner.run` can be removed."""
    took, results = timed(AllReduceRunner, **{lost: ("d",)})
    assert took > 0.9 * chunks
    assert differing(results) > VALUES / 10  # and calls that averaged: each has its own values of the share


# an averager without its process


REQUEST_S = 0.1
CHUNK_S = 1.0


class Parts:
    """The parts of both averagers needed for a round, without processes, p2pd and DHT."""

    def make(self, kind: type[DecentralizedAverager]) -> Any:
        averager: Any = object.__new__(kind)
        averager._parent_pid = 0  # not ours to shut down
        averager._running_groups = {}
        averager._pending_groups_registered = asyncio.Event()
        averager._registered, averager._control = asyncio.Event(), None
        averager.next_chunk_timeout = CHUNK_S
        averager._matchmaking = SimpleNamespace(request_timeout=REQUEST_S, look_for_group=self.look_for_group)
        self.left_behind = asyncio.Event()
        return averager

    async def look_for_group(self, _: object) -> None:
        await self.left_behind.wait()


@pytest.fixture(autouse=True)
def one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hivemind.averaging.averager.MPFuture", SimpleNamespace)


async def first_answer(averager: Any, sender: str = "b") -> Any:
    """The response to a groupmate's first part."""
    stream = as_aiter(AveragingData(group_id=b"group"))
    context = cast(Any, SimpleNamespace(remote_id=Id(sender)))
    async for message in averager.rpc_aggregate_part(stream, context):
        return message
    return None


class Attempt:
    """The part of a StepControl that `_step` needs, within one process."""

    stage, allow_retries, weight, triggered = AveragingStage.IDLE, False, 1.0, True

    def __init__(self) -> None:
        self.deadline, self.error = get_dht_time() + 60.0, None

    def attach(self, trigger: object, cancel: object) -> None:
        pass

    def done(self) -> bool:
        return self.error is not None

    def cancelled(self) -> bool:
        return False

    async def wait_for_cancel(self) -> None:
        await asyncio.Event().wait()

    def set_exception(self, error: Any) -> None:
        self.error = error


async def left_behind(kind: type[DecentralizedAverager], looks_on: bool) -> Any:
    """The response to a part of a group without this peer; None if there is none within a chunk timeout."""
    parts = Parts()
    averager = parts.make(kind)
    future = SimpleNamespace(set_result=lambda _: None)
    stepping = asyncio.ensure_future(averager._step(step=Attempt(), future_for_init=future))
    await asyncio.sleep(0.01)
    asking = asyncio.ensure_future(first_answer(averager))
    await asyncio.sleep(0.01)
    if not looks_on:
        parts.left_behind.set()
    done, _ = await asyncio.wait({asking}, timeout=CHUNK_S)
    for task in (asking, stepping):
        task.cancel()
    await asyncio.gather(asking, stepping, return_exceptions=True)
    return asking.result() if done else None


@pytest.mark.parametrize("looks_on", [True, False])
def test_part_of_another_group_gets_a_response(looks_on: bool) -> None:
    answer = virtual_time.run(left_behind(RoundAverager, looks_on))
    assert answer is not None
    assert answer.code == BAD_GROUP_ID


@pytest.mark.parametrize("looks_on", [True, False])
def test_hivemind_never_responds_to_it(looks_on: bool) -> None:
    """The first message of a new stream is lost: its sender waits for two chunk timeouts."""
    assert virtual_time.run(left_behind(DecentralizedAverager, looks_on)) is None


async def a_sender_dies_before_the_runner_is_there(kind: type[DecentralizedAverager]) -> str:
    """The first parts of two groupmates wait for this peer's all-reduce; one groupmate is killed meanwhile."""
    averager = Parts().make(kind)
    group = SimpleNamespace(group_id=b"group")
    with averager._register_allreduce_group(group):
        calls = [asyncio.ensure_future(first_answer(averager, sender)) for sender in ("b", "c")]
        await asyncio.sleep(0.01)
        calls[0].cancel()
        await asyncio.sleep(0.01)

        async def parts(stream: object, context: Any) -> AsyncIterator[str]:
            yield f"averages for {context.remote_id}"

        try:
            averager._running_groups[b"group"].set_result(SimpleNamespace(rpc_aggregate_part=parts))
        except asyncio.InvalidStateError:
            return "this peer's all-reduce broke"
        finally:
            outcome = (await asyncio.gather(*calls, return_exceptions=True))[1]
    return str(outcome)


def test_sender_that_dies_early_does_not_break_the_round() -> None:
    assert virtual_time.run(a_sender_dies_before_the_runner_is_there(RoundAverager)) == "averages for c"


def test_with_hivemind_it_breaks_all_rounds() -> None:
    """If this fails, Hivemind no longer awaits the runner's future in every call."""
    outcome = virtual_time.run(a_sender_dies_before_the_runner_is_there(DecentralizedAverager))
    assert outcome == "this peer's all-reduce broke"


@pytest.mark.parametrize("when", ["while it waits for its step's end", "before its leader's word"])
def test_first_part_waits_for_the_all_reduce(when: str) -> None:
    async def run() -> Any:
        averager = Parts().make(RoundAverager)
        stage = "AWAITING_TRIGGER" if "step" in when else "LOOKING_FOR_GROUP"
        averager._control = SimpleNamespace(stage=AveragingStage[stage])
        asking = asyncio.ensure_future(first_answer(averager))
        await asyncio.sleep(REQUEST_S * (10.0 if "step" in when else 3.0))
        with averager._register_allreduce_group(SimpleNamespace(group_id=b"group")):

            async def parts(stream: object, context: Any) -> AsyncIterator[str]:
                yield "averages"

            averager._running_groups[b"group"].set_result(SimpleNamespace(rpc_aggregate_part=parts))
            return await asking

    assert virtual_time.run(run()) == "averages"


def test_waiting_call_is_answered_if_the_all_reduce_never_begins() -> None:
    async def run() -> Any:
        averager = Parts().make(RoundAverager)
        with averager._register_allreduce_group(SimpleNamespace(group_id=b"group")):
            asking = asyncio.ensure_future(first_answer(averager))
            await asyncio.sleep(0.01)
        return await asking

    assert virtual_time.run(run()).code == BAD_GROUP_ID
