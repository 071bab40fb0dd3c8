"""What of Hivemind 1.1.12 we mend: a sender that dies breaks the reducer for all, a cancelled task keeps a lock."""

from __future__ import annotations

import asyncio
import threading

import pytest
import torch
from hivemind.averaging.partition import TensorPartReducer
from hivemind.utils.asyncio import _AsyncContextWrapper, enter_asynchronously

from experiments.peer.mend import mend_hivemind

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


@pytest.fixture
def unmended(monkeypatch: pytest.MonkeyPatch) -> None:
    original = TensorPartReducer.accumulate_part
    monkeypatch.setattr(TensorPartReducer, "accumulate_part", getattr(original, "unmended", original))
    entering = _AsyncContextWrapper.__aenter__
    monkeypatch.setattr(_AsyncContextWrapper, "__aenter__", getattr(entering, "unmended", entering))


def test_with_the_shield_the_others_get_their_parts(unmended) -> None:
    mend_hivemind()
    results = asyncio.run(three_senders_one_dies())
    # part 1 is the average of senders 0 and 2 alone
    assert all(isinstance(r, torch.Tensor) and torch.equal(r, torch.ones(4)) for r in results), results


def test_without_the_shield_hivemind_still_breaks(unmended) -> None:
    """If this fails, Hivemind has mended itself and `mend_hivemind` can go."""
    results = asyncio.run(three_senders_one_dies())
    assert any(isinstance(r, BaseException) for r in results)


def test_mending_twice_shields_once(unmended) -> None:
    mend_hivemind()
    once = TensorPartReducer.accumulate_part
    mend_hivemind()
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


def test_a_lock_is_not_kept_by_a_task_that_was_cancelled_while_it_waited_for_it(unmended) -> None:
    mend_hivemind()
    assert asyncio.run(free_after_a_task_that_waited_for_it_was_cancelled(threading.Lock()))


def test_unmended_hivemind_still_keeps_it(unmended) -> None:
    """If this fails, the mend can go."""
    assert not asyncio.run(free_after_a_task_that_waited_for_it_was_cancelled(threading.Lock()))


async def entered_and_left(lock: threading.Lock) -> tuple[bool, bool]:
    async with enter_asynchronously(lock):
        inside = lock.locked()
    return inside, lock.locked()


def test_who_is_not_cancelled_has_it_and_gives_it_back(unmended) -> None:
    mend_hivemind()
    assert asyncio.run(entered_and_left(threading.Lock())) == (True, False)
