"""One attempt at a hierarchical round: exchange the parts, then agree on whether to commit the result."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Iterable

from experiments.peer.averaging.atomic_commit import Agreement, State
from experiments.peer.averaging.hierarchical_exchange import RoundFailedError, TwoLevelRound

_log = logging.getLogger(__name__)

# (peer, this peer's state) -> the peer's state; raises if the peer is lost
Ask = Callable[[int, State], Awaitable[State]]


class Attempt:
    """Runs the round and the agreement. Afterwards it still answers requests for the outcome."""

    def __init__(self, others: Iterable[int], ask: Ask, timeout_s: float, retry_s: float = 0.5) -> None:
        """`others`: the group without this peer; `timeout_s`: a peer that does not respond within it is lost; `retry_s`:
        delay before the only retry of a call that failed for another reason.
        """
        self._agreement = Agreement(others)
        self._ask, self._timeout_s, self._retry_s = ask, timeout_s, retry_s
        self._changed = asyncio.Event()
        self._asking: list[asyncio.Task[None]] = []  # references, since asyncio keeps tasks weakly

    @property
    def state(self) -> State:
        """The state this peer reports."""
        return self._agreement.state

    def received(self, other: int, state: State) -> State:
        """Process the state reported by `other`. Returns this peer's state."""
        answer = self._agreement.received(other, state)
        self._wake()
        return answer

    async def run(self, round_: TwoLevelRound) -> None:
        """Return when all peers commit the result. Raises RoundFailedError if none does."""
        exchange = asyncio.ensure_future(round_.run())
        why = "given up by another peer"
        try:
            while not (exchange.done() or self._agreement.final):
                woken = asyncio.ensure_future(self._change())
                await asyncio.wait({exchange, woken}, return_when=asyncio.FIRST_COMPLETED)
                woken.cancel()
            if exchange.done():
                try:
                    exchange.result()
                    self._agreement.completed()
                except RoundFailedError as error:
                    why = str(error)
                    self._agreement.failed()
            self._asking = [asyncio.ensure_future(self._talk_to(o)) for o in self._agreement.others]
            while not self._agreement.final:
                await self._change()
                if self._agreement.state is State.DOUBT:
                    why = "a peer was lost after all parts had arrived"
        except asyncio.CancelledError:
            # If this peer was READY, the others may commit. Then it is an epoch behind and downloads the state.
            self._agreement.failed()
            raise
        finally:
            exchange.cancel()
            await asyncio.gather(exchange, return_exceptions=True)
            if self._agreement.state is not State.COMMITTED:
                round_.give_up(why)
        if self._agreement.state is State.ABORTED:
            raise RoundFailedError(why)

    async def _talk_to(self, other: int) -> None:
        """Send this peer's state to `other`, and again when it has changed or the response was not sufficient."""
        agreement, failures = self._agreement, 0
        while True:
            state, poll = agreement.state, agreement.poll
            try:
                answer = await asyncio.wait_for(self._ask(other, state), self._timeout_s)
            except Exception as error:  # noqa: BLE001 - however a call fails, there is one retry before the peer is lost
                failures += 1
                if failures == 2 or isinstance(error, TimeoutError):
                    _log.warning("averaging: peer %d is lost: %r", other, error)
                    agreement.lost(other)
                    self._wake()
                    return
                await asyncio.sleep(self._retry_s)
                continue
            failures = 0
            agreement.answered(other, answer, poll)
            self._wake()
            if agreement.final and (state is agreement.state or agreement.state is State.COMMITTED):
                return  # a peer that received READY does not need COMMITTED
            if (state, poll) == (agreement.state, agreement.poll):
                patience_s = self._timeout_s / 2 if agreement.to_ask(other) else None
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._news_after(state, poll), patience_s)

    async def _news_after(self, state: State, poll: int) -> None:
        while (state, poll) == (self._agreement.state, self._agreement.poll):
            await self._change()

    async def _change(self) -> None:
        await self._changed.wait()

    def _wake(self) -> None:
        """Wake all tasks that wait for a change."""
        self._changed.set()
        self._changed = asyncio.Event()
