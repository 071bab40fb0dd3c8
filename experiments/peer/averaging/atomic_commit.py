"""Atomic commit of a round: either all live peers of a group keep its result, or none does.

If some peers kept the result and others lost it, the swarm would split in two. So a peer with all parts reports READY
and keeps the result only after READY or COMMITTED from all others. A peer that misses a part reports ABORTED at once,
and no peer can have kept the result without its READY. Only a peer that was READY and lost another one is in DOUBT: the
lost peer may have kept the result and informed others. It asks all others again, which makes them stop waiting for the
lost peer. If one of them kept the result, so does this peer; if all of them are in DOUBT, no live peer kept it.

This is atomic commitment without a coordinator, for peers that may crash but do not lie (Bernstein, Hadzilacos,
Goodman, "Concurrency Control and Recovery in Database Systems", 1987, chapter 7: the cooperative termination protocol).
Pure: messages are passed in as calls.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from enum import IntEnum
from typing import Generic, TypeVar

Peer = TypeVar("Peer", bound=Hashable)


class State(IntEnum):
    """State of a round as reported by one peer."""

    WORKING = 0
    READY = 1  # has all parts
    DOUBT = 2  # has all parts, but lost a peer that may have kept the result
    COMMITTED = 3  # keeps the result
    ABORTED = 4  # drops the result


class Agreement(Generic[Peer]):
    """One peer's view of a round. `state` is the state it reports; COMMITTED and ABORTED are final."""

    def __init__(self, others: Iterable[Peer]) -> None:
        self.others = frozenset(others)
        self.state = State.WORKING
        self.poll = 0  # a response counts only in the poll for which it was requested
        self._ready: set[Peer] = set()
        self._lost: set[Peer] = set()
        self._doubting: set[Peer] = set()  # responded DOUBT in this poll

    @property
    def final(self) -> bool:
        """Whether the outcome is decided."""
        return self.state >= State.COMMITTED

    def to_ask(self, other: Peer) -> bool:
        """Whether this peer needs a response from `other`."""
        if other in self._lost or self.final:
            return False
        return other not in (self._ready if self.state < State.DOUBT else self._doubting)

    def completed(self) -> None:
        """Call when this peer has all parts."""
        if self.state is State.WORKING:
            self.state = State.READY
            self._decide()

    def failed(self) -> None:
        """Call when a part will not arrive."""
        if self.state is State.WORKING:
            self.state = State.ABORTED

    def received(self, other: Peer, state: State) -> State:
        """Process the state reported by `other`. Returns this peer's state as the response."""
        if other in self.others:
            self._hear(other, state, self.poll)
        return self.state

    def answered(self, other: Peer, state: State, poll: int) -> None:
        """Process the response of `other` to a request made when `self.poll` was `poll`."""
        self._hear(other, state, poll)

    def lost(self, other: Peer) -> None:
        """Call when `other` has become unreachable."""
        if other in self._lost or self.final:
            return
        self._lost.add(other)
        if self.state is State.WORKING:
            self.state = State.ABORTED
        elif self.state is State.DOUBT or other not in self._ready:
            self._doubt()

    def _hear(self, other: Peer, state: State, poll: int) -> None:
        if self.final:
            return
        if state is State.COMMITTED and self.state is not State.WORKING:
            self.state = State.COMMITTED
        elif state >= State.COMMITTED or (state is State.WORKING and self.state is State.DOUBT):
            self.state = State.ABORTED  # no peer can have kept the result
        elif state is State.DOUBT:
            if self.state is State.WORKING:
                self.state = State.ABORTED
                return
            if self.state is State.READY:
                self._doubt()  # starts a new poll: this message was not a response to one of this peer's polls
            elif poll == self.poll:
                self._doubting.add(other)
        elif state is State.READY:
            self._ready.add(other)
        self._decide()

    def _doubt(self) -> None:
        self.state = State.DOUBT
        self.poll += 1
        self._doubting.clear()
        self._decide()

    def _decide(self) -> None:
        if self.state is State.READY and self._ready >= self.others:
            self.state = State.COMMITTED
        elif self.state is State.DOUBT and self._doubting >= self.others - self._lost:
            self.state = State.ABORTED
