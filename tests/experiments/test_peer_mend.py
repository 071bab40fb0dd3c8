"""A sender that dies must not break the reducer for the others (Hivemind 1.1.12 does; we mend it)."""

from __future__ import annotations

import asyncio

import pytest
import torch
from hivemind.averaging.partition import TensorPartReducer

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
