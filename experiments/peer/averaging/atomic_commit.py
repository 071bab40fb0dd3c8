"""Whether a round counts: all peers of a group that live keep its result, or none does.

A result that some peers keep and others lose makes two swarms of one. So a peer that has all parts says READY and
keeps the result only when it heard READY, or COMMITTED, from everybody else; a peer that misses something says
ABORTED at once, and nobody can have kept the result without its READY. Only a peer that was READY and lost another
is in DOUBT: the lost one may have kept the result, and told others. It asks all the others again, who stop hoping
for the lost peer's word when they are asked: if one of them kept the result, it does so too; when all of them are as
much in the dark, nobody alive did.

This is atomic commitment without a coordinator, for peers that die but do not lie (Bernstein, Hadzilacos, Goodman,
"Concurrency Control and Recovery in Database Systems", 1987, chapter 7: the cooperative termination protocol).
Pure: what is heard comes in as calls.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from enum import IntEnum
from typing import Generic, TypeVar

Peer = TypeVar("Peer", bound=Hashable)


class State(IntEnum):
    """The state of a round that one peer reports."""

    WORKING = 0
    READY = 1  # has all parts
    DOUBT = 2  # has all parts, but somebody who may have kept the result is lost
    COMMITTED = 3  # keeps the result
    ABORTED = 4  # does not


class Agreement(Generic[Peer]):
    """One peer's view of a round. `state` is what it reports; once COMMITTED or ABORTED it stays so."""

    def __init__(self, others: Iterable[Peer]) -> None:
        self.others = frozenset(others)
        self.state = State.WORKING
        self.poll = 0  # an answer counts for the poll in which it was asked for
        self._ready: set[Peer] = set()
        self._lost: set[Peer] = set()
        self._doubting: set[Peer] = set()  # answered so in this poll

    @property
    def final(self) -> bool:
        """Whether it is decided."""
        return self.state >= State.COMMITTED

    def to_ask(self, other: Peer) -> bool:
        """Whether this peer needs to hear from `other`."""
        if other in self._lost or self.final:
            return False
        return other not in (self._ready if self.state < State.DOUBT else self._doubting)

    def completed(self) -> None:
        """This peer has all parts."""
        if self.state is State.WORKING:
            self.state = State.READY
            self._decide()

    def failed(self) -> None:
        """This peer misses a part, and will not get it."""
        if self.state is State.WORKING:
            self.state = State.ABORTED

    def received(self, other: Peer, state: State) -> State:
        """Take the state that `other` reports; returns the answer."""
        if other in self.others:
            self._hear(other, state, self.poll)
        return self.state

    def answered(self, other: Peer, state: State, poll: int) -> None:
        """`other` answered so what it was asked when `self.poll` was `poll`."""
        self._hear(other, state, poll)

    def lost(self, other: Peer) -> None:
        """`other` cannot be reached any more."""
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
            self.state = State.ABORTED  # nobody can have kept it
        elif state is State.DOUBT:
            if self.state is State.WORKING:
                self.state = State.ABORTED
                return
            if self.state is State.READY:
                self._doubt()  # a poll of its own: what `other` says now was asked by itself
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
