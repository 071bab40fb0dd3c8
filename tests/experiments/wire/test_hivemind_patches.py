"""The patches of Hivemind 1.1.12: hangs, and calls that are never answered, each with the patch and without it."""

from __future__ import annotations

import asyncio
import gc
import socket
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from hivemind.averaging import averager
from hivemind.averaging.key_manager import GroupKeyManager
from hivemind.averaging.matchmaking import PotentialLeaders
from hivemind.averaging.partition import TensorPartReducer
from hivemind.dht import dht
from hivemind.p2p import P2P, PeerID
from hivemind.p2p.p2p_daemon_bindings.control import ControlClient
from hivemind.p2p.p2p_daemon_bindings.utils import write_pbmsg
from hivemind.proto import p2pd_pb2
from hivemind.proto.averaging_pb2 import AveragingData
from hivemind.utils.asyncio import _AsyncContextWrapper, enter_asynchronously

from experiments.wire.hivemind import patches
from experiments.wire.hivemind.patches import PATCHES, apply

ROOT = Path(__file__).parents[3]
PARTS, SENDERS = 2, 3


async def three_senders_one_dies() -> list[object]:
    """Senders 0 and 1 wait for part 0, sender 1 is cancelled, sender 2 comes last."""
    reducer = TensorPartReducer(tuple(torch.Size([4]) for _ in range(PARTS)), SENDERS)

    async def send(sender: int) -> torch.Tensor:
        for part in range(PARTS):
            average = await reducer.accumulate_part(sender, part, torch.full((4,), float(sender)))
        return average

    first, dying = asyncio.ensure_future(send(0)), asyncio.ensure_future(send(1))
    await asyncio.sleep(0)  # both have given their part 0 and wait for sender 2's
    await asyncio.sleep(0)
    dying.cancel()
    await asyncio.wait({dying})
    reducer.on_sender_failed(1)
    last = asyncio.ensure_future(send(2))
    _, waiting = await asyncio.wait({first, last}, timeout=2.0)
    for task in waiting:
        task.cancel()
    results: list[object] = await asyncio.gather(first, last, return_exceptions=True)
    reducer.finalize()
    return results


PATCHED = [
    (TensorPartReducer, "accumulate_part"),
    (_AsyncContextWrapper, "__aenter__"),
    (dht, "switch_to_uvloop"),
    (averager, "switch_to_uvloop"),
    (P2P, "_add_protobuf_stream_handler"),
    (ControlClient, "__init__"),
    (GroupKeyManager, "get_averagers"),
]


@pytest.fixture
def unpatched(monkeypatch: pytest.MonkeyPatch) -> None:
    for owner, name in PATCHED:
        now = getattr(owner, name)
        monkeypatch.setattr(owner, name, getattr(now, "unpatched", now))


def test_each_patch_is_described_and_tested() -> None:
    page = (ROOT / "docs" / "hivemind.md").read_text()
    assert [p.name for p in PATCHES if f".py: {p.apply.__name__}`" not in page] == []
    assert [p.tests for p in PATCHES if not (ROOT / "tests" / "experiments" / p.tests).is_file()] == []
    assert len({p.name for p in PATCHES}) == len(PATCHES)


def test_each_program_gets_its_patches(monkeypatch: pytest.MonkeyPatch) -> None:
    applied: list[str] = []
    rows = tuple(replace(p, apply=lambda name=p.name: applied.append(name)) for p in PATCHES)
    monkeypatch.setattr(patches, "PATCHES", rows)
    apply("monitor")
    assert applied == ["sockets", "late answers", "values"]
    applied.clear()
    apply("peer")
    assert applied == [p.name for p in PATCHES]


def test_with_the_shield_the_others_get_their_parts(unpatched) -> None:
    apply("peer")
    results = asyncio.run(three_senders_one_dies())
    # part 1 is the average of senders 0 and 2 alone
    assert all(isinstance(r, torch.Tensor) and torch.equal(r, torch.ones(4)) for r in results), results


def test_without_the_shield_hivemind_still_breaks(unpatched) -> None:
    """If this fails, Hivemind has corrected itself and the patch can go."""
    results = asyncio.run(three_senders_one_dies())
    assert any(isinstance(r, BaseException) for r in results)


def test_patching_twice_shields_once(unpatched) -> None:
    apply("peer")
    once = TensorPartReducer.accumulate_part
    apply("peer")
    assert TensorPartReducer.accumulate_part is once


async def free_after_a_task_that_waited_for_it_was_cancelled(lock: threading.Lock) -> bool:
    """Whether anybody can have the lock then."""

    async def wait() -> None:
        async with enter_asynchronously(lock):
            raise AssertionError("it was cancelled before")

    lock.acquire()
    task = asyncio.ensure_future(wait())
    await asyncio.sleep(0.1)  # its thread waits for the lock
    task.cancel()
    await asyncio.wait({task})
    lock.release()
    for _ in range(20):
        await asyncio.sleep(0.05)
        if lock.acquire(blocking=False):
            lock.release()
            await asyncio.sleep(0.05)  # the thread may have been slower than this one
            return not lock.locked()
    return False


def test_lock_is_released_if_its_task_is_cancelled_while_waiting(unpatched) -> None:
    apply("peer")
    assert asyncio.run(free_after_a_task_that_waited_for_it_was_cancelled(threading.Lock()))


def test_unpatched_hivemind_still_keeps_it(unpatched) -> None:
    """If this fails, the patch can go."""
    assert not asyncio.run(free_after_a_task_that_waited_for_it_was_cancelled(threading.Lock()))


async def entered_and_left(lock: threading.Lock) -> tuple[bool, bool]:
    async with enter_asynchronously(lock):
        inside = lock.locked()
    return inside, lock.locked()


def test_uncancelled_task_acquires_and_releases_the_lock(unpatched) -> None:
    apply("peer")
    assert asyncio.run(entered_and_left(threading.Lock())) == (True, False)


@pytest.fixture
def own_policy() -> Iterator[None]:
    policy = asyncio.get_event_loop_policy()
    yield
    asyncio.set_event_loop_policy(policy)


def a_task_that_nobody_holds_reads(switch: Callable[[], asyncio.AbstractEventLoop]) -> bool:
    """Whether it is there still when what it waits for comes."""
    ours, theirs = socket.socketpair()
    loop, got = switch(), list[bytes]()

    async def read() -> None:
        reader, writer = await asyncio.open_connection(sock=theirs)
        got.append(await reader.readexactly(1))
        writer.close()

    async def begin() -> None:
        asyncio.create_task(read())  # noqa: RUF006 - as Hivemind does

    try:
        loop.run_until_complete(begin())
        loop.run_until_complete(asyncio.sleep(0.05))
        gc.collect()
        ours.send(b"x")
        loop.run_until_complete(asyncio.sleep(0.05))
        return got == [b"x"]
    finally:
        loop.close()
        asyncio.set_event_loop(None)
        ours.close()


@pytest.mark.parametrize("module", [dht, averager], ids=lambda module: module.__name__)
def test_a_task_is_kept_until_it_is_done(module: Any, unpatched, own_policy) -> None:
    apply("peer")
    assert a_task_that_nobody_holds_reads(module.switch_to_uvloop)


@pytest.mark.filterwarnings("ignore")
def test_unpatched_the_garbage_collector_ends_it(unpatched, own_policy) -> None:
    """If this fails, Hivemind keeps its tasks, or Python does, and the patch can go."""
    assert not a_task_that_nobody_holds_reads(dht.switch_to_uvloop)


async def the_next_call_is_answered(answer: dict[str, Any]) -> bool:
    """One call is given up while its answer is on the table; another one's answer comes after it."""
    control = ControlClient(cast(Any, None), _initialized_with_create=True)
    answers = asyncio.StreamReader()

    class ToPeer:
        write = staticmethod(answers.feed_data)

        async def drain(self) -> None:
            pass

    given_up, patient = (
        asyncio.ensure_future(control.call_unary_handler(PeerID(b"peer"), "ping", b"")) for _ in range(2)
    )
    reading = asyncio.ensure_future(control._read_from_persistent_conn(answers))
    await asyncio.sleep(0)
    for call_id, told in zip(
        list(control._pending_calls), (answer, {"callUnaryResponse": RESPONSE}), strict=True
    ):
        message = p2pd_pb2.PersistentConnectionResponse(callId=call_id.bytes, **told)
        await write_pbmsg(cast(Any, ToPeer()), message)
    answers.feed_eof()
    given_up.cancel()
    await asyncio.wait({reading, patient}, timeout=1.0, return_when=asyncio.ALL_COMPLETED)
    answered = patient.done() and patient.result() == b"pong"
    for task in (reading, patient):
        task.cancel()
    await asyncio.gather(reading, patient, given_up, return_exceptions=True)
    return answered


RESPONSE = p2pd_pb2.CallUnaryResponse(response=b"pong")
LATE = [
    {"callUnaryResponse": RESPONSE},
    {"callUnaryResponse": p2pd_pb2.CallUnaryResponse(error=b"no")},
    {"daemonError": p2pd_pb2.DaemonError(message="no")},
    {},
]


@pytest.mark.parametrize("answer", LATE, ids=["response", "error", "daemon's error", "done"])
def test_a_late_answer_leaves_later_calls_answered(answer: dict[str, Any], unpatched) -> None:
    apply("peer")
    assert asyncio.run(the_next_call_is_answered(answer))


@pytest.mark.parametrize("answer", LATE, ids=["response", "error", "daemon's error", "done"])
def test_unpatched_late_answer_breaks_later_calls(answer: dict[str, Any], unpatched) -> None:
    """If this fails, Hivemind looks whether a call was given up, and the patch can go."""
    assert not asyncio.run(the_next_call_is_answered(answer))


class Writer:
    """What is written to it can be read, until it is closed."""

    def __init__(self) -> None:
        self.reader, self.closed = asyncio.StreamReader(), False

    def write(self, data: bytes) -> None:
        self.reader.feed_data(data)

    async def drain(self) -> None:
        pass

    def close(self) -> None:
        self.closed = True


async def a_stream_is_closed_whose_handler_has_ended(ends: str) -> bool:
    """Twenty messages came, of which the handler took one."""
    found: list[Any] = []

    class Streams(P2P):
        def __init__(self) -> None:
            self.peer_id = PeerID(b"own")

        async def add_binary_stream_handler(self, name: str, handler: Any, balanced: bool = False) -> None:
            found.append(handler)

        def __del__(self) -> None:
            pass  # it has no p2pd to end

    async def handler(requests: AsyncIterator[Any], context: Any) -> AsyncIterator[Any]:
        yield await requests.__anext__()
        await asyncio.sleep(0.05)  # the queue is full meanwhile
        if ends == "with an error":
            raise RuntimeError("the round is over")

    await Streams()._add_protobuf_stream_handler("averaging", handler, AveragingData)
    coming, answers = Writer(), Writer()
    for _ in range(20):
        await P2P.send_protobuf(AveragingData(), cast(Any, coming))
    info = cast(Any, SimpleNamespace(peer_id=PeerID(b"other")))
    serving = asyncio.ensure_future(found[0](info, coming.reader, answers))
    await asyncio.wait(
        {serving}, timeout=5.0 if hasattr(P2P._add_protobuf_stream_handler, "unpatched") else 0.5
    )
    serving.cancel()
    closed = answers.closed
    await asyncio.gather(serving, return_exceptions=True)
    return closed


@pytest.mark.parametrize("ends", ["by itself", "with an error"])
def test_a_stream_ends_with_its_handler(ends: str, unpatched) -> None:
    apply("peer")
    assert asyncio.run(a_stream_is_closed_whose_handler_has_ended(ends))


@pytest.mark.parametrize("ends", ["by itself", "with an error"])
def test_unpatched_stream_waits_forever(ends: str, unpatched) -> None:
    """If this fails, Hivemind looks whether the handler has ended, and the patch can go."""
    assert not asyncio.run(a_stream_is_closed_whose_handler_has_ended(ends))


class VirtualTime(asyncio.SelectorEventLoop):
    """A loop whose clock jumps to the next timer as soon as nothing else is left to do."""

    at_s = 0.0

    def time(self) -> float:
        return self.at_s

    def _run_once(self) -> None:
        private: Any = self
        if not private._ready and private._scheduled:
            self.at_s = max(self.at_s, private._scheduled[0]._when)
        private.__class__.__mro__[1]._run_once(self)


async def queries_for_a_group(seconds: float, query_s: float) -> int:
    """Queries of a peer that looks for a group for so long and finds none; each query takes `query_s`."""
    queries = 0

    async def get(*_: Any, **__: Any) -> None:
        nonlocal queries
        queries += 1
        await asyncio.sleep(query_s)

    keys = cast(Any, object.__new__(GroupKeyManager))
    keys.dht, keys.prefix, keys.group_bits = SimpleNamespace(get=get), "run", ""
    step: Any = SimpleNamespace(deadline=None)
    leaders = PotentialLeaders(PeerID(b"own"), min_matchmaking_time=1.0, target_group_size=None)
    async with leaders.begin_search(step, keys, declare=False):
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(leaders.pop_next_leader(), seconds)
    return queries


def searched(seconds: float, query_s: float) -> int:
    with asyncio.Runner(loop_factory=VirtualTime) as runner:
        return runner.run(queries_for_a_group(seconds, query_s))


def test_a_peer_that_finds_no_group_looks_ten_times_a_second(unpatched) -> None:
    apply("peer")
    assert searched(5.05, query_s=0.001) == 51
    assert searched(5.05, query_s=0.25) == 21  # as often as unpatched


def test_unpatched_it_looks_without_a_pause(unpatched) -> None:
    """If this fails, Hivemind waits between two queries, and the patch can go."""
    assert searched(5.05, query_s=0.001) > 1000
    assert searched(5.05, query_s=0.25) == 21
