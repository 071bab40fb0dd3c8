"""Agreement on the outcome of a round, with peers dying at any time."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments.peer.averaging.atomic_commit import Agreement, State

Group = dict[int, "Agreement[int]"]


def group(size: int) -> Group:
    return {peer: Agreement(set(range(size)) - {peer}) for peer in range(size)}


def ask(peers: Group, asking: int, other: int) -> None:
    """A call that succeeds, or finds the other peer dead."""
    poll = peers[asking].poll
    if other not in peers:
        peers[asking].lost(other)
        return
    peers[asking].answered(other, peers[other].received(asking, peers[asking].state), poll)


def settle(peers: Group) -> None:
    """Let all live peers ask those from which they need a response, until none does."""
    for _ in range(20):
        for asking in peers:
            for other in sorted(peers[asking].others):
                if peers[asking].to_ask(other):
                    ask(peers, asking, other)


def states(peers: Group) -> set[State]:
    return {agreement.state for agreement in peers.values()}


def test_all_ready_peers_commit() -> None:
    peers = group(3)
    for agreement in peers.values():
        assert agreement.state is State.WORKING
        agreement.completed()
    settle(peers)
    assert states(peers) == {State.COMMITTED}


def test_single_peer_commits() -> None:
    alone = Agreement[int](())
    alone.completed()
    assert alone.state is State.COMMITTED


def test_no_peer_commits_when_one_misses_a_part() -> None:
    peers = group(3)
    peers[0].completed()
    peers[1].failed()
    settle(peers)
    assert states(peers) == {State.ABORTED}
    peers[2].completed()
    assert peers[2].state is State.ABORTED


def test_working_peer_aborts_when_another_is_lost() -> None:
    peers = group(2)
    peers[0].lost(1)
    assert peers[0].state is State.ABORTED


def test_peers_in_doubt_commit_if_one_committed_before_the_loss() -> None:
    peers = group(3)
    for agreement in peers.values():
        agreement.completed()
    ask(peers, 0, 1)
    ask(peers, 0, 2)  # 0 received both states and commits
    assert peers[0].state is State.COMMITTED
    del peers[2]  # 1 never received 2's state
    ask(peers, 1, 2)
    assert peers[1].state is State.DOUBT
    ask(peers, 1, 0)
    assert peers[1].state is State.COMMITTED


def test_all_live_peers_in_doubt_abort() -> None:
    peers = group(3)
    for agreement in peers.values():
        agreement.completed()
    ask(peers, 2, 0)
    ask(peers, 2, 1)  # 2 keeps it, and dies
    assert peers[2].state is State.COMMITTED
    del peers[2]
    peers[0].lost(2)
    assert peers[0].state is State.READY  # it has 2's state: only 1's is missing
    ask(peers, 0, 1)
    assert states(peers) == {State.COMMITTED}


def test_peer_in_doubt_polls_again_after_another_loss() -> None:
    peers = group(4)
    for agreement in peers.values():
        agreement.completed()
    peers[0].lost(3)
    ask(peers, 0, 1)
    assert peers[1].state is State.DOUBT
    assert not peers[0].to_ask(1)
    peers[0].lost(2)
    assert peers[0].state is State.DOUBT
    assert peers[0].to_ask(1)


def test_response_to_an_older_poll_does_not_end_the_doubt() -> None:
    peers = group(3)
    peers[0].completed()
    peers[0].lost(1)
    peers[0].answered(2, State.DOUBT, peers[0].poll - 1)
    assert peers[0].state is State.DOUBT
    peers[0].answered(2, State.DOUBT, peers[0].poll)
    assert peers[0].state is State.ABORTED


def test_messages_of_strangers_are_ignored() -> None:
    agreement = Agreement({1})
    assert agreement.received(7, State.ABORTED) is State.WORKING


@given(size=st.integers(1, 5), data=st.data())
def test_survivors_always_agree(size: int, data: st.DataObject) -> None:
    """Any order of completions, failures, calls and deaths."""
    peers = group(size)
    for _ in range(data.draw(st.integers(0, 40))):
        what = data.draw(st.sampled_from(["complete", "complete", "ask", "ask", "ask", "ask", "die", "fail"]))
        one = data.draw(st.sampled_from(sorted(peers)))
        if what == "complete":
            peers[one].completed()
        elif what == "ask":
            other = data.draw(st.integers(0, size - 1))
            if other != one:
                ask(peers, one, other)
        elif what == "fail":
            peers[one].failed()
        elif what == "die" and len(peers) > 1:
            del peers[one]
    for agreement in peers.values():
        agreement.completed()
    settle(peers)
    assert len(states(peers)) == 1
    assert states(peers) <= {State.COMMITTED, State.ABORTED}


@pytest.mark.parametrize("size", [2, 8])
def test_peer_that_calls_nobody_is_called(size: int) -> None:
    """A peer whose own calls all fail learns the outcome from the others' calls."""
    peers = group(size)
    for agreement in peers.values():
        agreement.completed()
    for asking in range(1, size):
        for other in peers[asking].others:
            ask(peers, asking, other)
    assert states(peers) == {State.COMMITTED}
