"""Dead peers are detected at once and their samples not awaited; limits of a round. No process, no DHT."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hivemind.optim.progress_tracker import ProgressTracker
from hivemind.p2p import PeerID
from hivemind.utils import get_dht_time
from hivemind.utils.timed_storage import ValueWithExpiration
from hypothesis import given
from hypothesis import strategies as st

from experiments.averaging.round_limits import averaging_timeout_s
from experiments.peer.optimizer.progress_tracker import PunctualTracker
from experiments.peer.swarm.members import Member
from experiments.peer.swarm.membership import Membership
from experiments.peer.swarm.reachability import enough_answer, find_dead_and_silent
from experiments.wire.record_keys import generate_identity

PEERS = {
    name: generate_identity()[1]
    for name in ("me", "connected", "frozen", "stopped", "reachable", "killed", "silent")
}
CONNECTED = ("connected", "frozen", "stopped")


def maddr(name: str) -> str:
    return f"/ip4/127.0.0.1/tcp/4000/p2p/{PEERS[name]}"


class Node:
    """A DHT node whose p2pd has some connections; "reachable" can be connected to, "silent" never answers.

    "frozen" and "stopped" are connected but do not respond to pings: stopped processes, or machines that are gone."""

    def __init__(self) -> None:
        self.tried: list[str] = []
        self.pinged: list[str] = []
        self.forgotten: list[str] = []
        self.banned: list[str] = []
        self.cleared: list[str] = []
        names = {peer: name for name, peer in PEERS.items()}

        async def list_peers() -> list[Any]:
            return [SimpleNamespace(peer_id=PeerID.from_base58(PEERS[n])) for n in CONNECTED]

        async def connect(peer_id: PeerID, maddrs: list[Any]) -> None:
            name = names[str(peer_id)]
            self.tried.append(name)
            if name == "killed":
                raise ConnectionRefusedError
            if name == "silent":
                await asyncio.Event().wait()

        async def call_ping(peer_id: PeerID) -> str:
            name = names[str(peer_id)]
            self.pinged.append(name)
            if name != "connected":
                await asyncio.Event().wait()
            return name

        self.p2p = SimpleNamespace(list_peers=list_peers, _client=SimpleNamespace(connect=connect))

        async def update_routing_table(node_id: Any, peer_id: PeerID, responded: bool) -> None:
            assert (node_id, responded) == (None, False)
            self.forgotten.append(names[str(peer_id)])

        self.protocol = SimpleNamespace(call_ping=call_ping, update_routing_table=update_routing_table)
        self.blacklist = SimpleNamespace(
            register_failure=lambda peer: self.banned.append(names[str(peer)]),
            register_success=lambda peer: self.cleared.append(names[str(peer)]),
        )


KNOWN = {PEERS[name]: maddr(name) for name in PEERS if name not in ("me", "stopped")}


def test_unconnected_and_unreachable_peer_is_dead() -> None:
    node = Node()
    dead, silent = asyncio.run(find_dead_and_silent(None, node, KNOWN, connect_s=0.05, answer_s=None))
    assert dead == [PEERS["killed"], PEERS["silent"]]
    assert (silent, node.pinged) == ([], [])  # it costs no traffic
    assert sorted(node.tried) == [
        "killed",
        "reachable",
        "silent",
    ]  # whose connection stands is not even asked


def test_connected_unresponsive_peer_is_silent() -> None:
    node = Node()
    dead, silent = asyncio.run(find_dead_and_silent(None, node, KNOWN, connect_s=0.05, answer_s=0.05))
    assert dead == [PEERS["killed"], PEERS["silent"]]
    assert silent == [PEERS["frozen"]]
    assert sorted(node.pinged) == ["connected", "frozen"]
    # by the DHT, whose calls waited for them
    assert node.forgotten == node.banned == ["frozen", "killed", "silent"]


def raw(name: str) -> bytes:
    return PeerID.from_base58(PEERS[name]).to_bytes()


def test_dead_peers_are_not_counted_as_training() -> None:
    config = SimpleNamespace(run_id="r", vm="me", initial_peers=(), dht_timeout_s=1.0)
    membership = Membership(cast(Any, None), cast(Any, config), maddr("me"), lambda _: None, subkey=b"")
    membership._members = tuple(Member(n, n, "training", 5, maddr(n)) for n in ("me", "connected", "killed"))
    assert membership.others_training(5) == 2
    membership._gone = frozenset({raw("killed")})
    assert membership.others_training(5) == 1
    assert membership.others_training(6) == 1
    assert membership.others_training(7) == 0


def membership_of(*names: str, node: Node | None = None) -> Membership:
    """This peer's membership, with the given peers training at epoch 5; DHT calls go to `node`."""
    config = SimpleNamespace(run_id="r", vm="me", initial_peers=(), dht_timeout_s=0.05)
    dht = SimpleNamespace(
        run_coroutine=lambda ask, return_future: SimpleNamespace(
            result=lambda _: asyncio.run(ask(None, node or Node()))
        )
    )
    membership = Membership(cast(Any, dht), cast(Any, config), maddr("me"), lambda _: None, subkey=b"")
    membership._members = tuple(Member(n, n, "training", 5, maddr(n)) for n in ("me", *names))
    membership._read = lambda _: None  # type: ignore[method-assign]
    return membership


def test_silent_peers_are_not_expected_until_announced_again() -> None:
    membership = membership_of("connected", "frozen")
    assert membership.others_training(5) == 2
    # otherwise this peer might consider itself the last one
    assert membership.others_expected(5, until="known") == 2
    assert membership.others_training(5) == 1
    assert membership.gone == frozenset()
    membership._check_connections()  # the next one, without a ping
    assert membership.others_training(5) == 1
    membership._members = tuple(replace(member, until_s=30.0) for member in membership._members)
    assert membership.others_training(5) == 2


def test_responding_peer_is_no_longer_silent() -> None:
    membership = membership_of("connected", "frozen")
    membership._silent = {raw("connected"): 0.0}
    assert membership.others_training(5) == 1
    membership._check_connections(ping=True)
    assert membership._silent == {raw("frozen"): 0.0}


def test_late_peers_are_excluded_when_enough_have_responded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("experiments.peer.swarm.reachability._GRACE_S", 0.05)
    node = Node()
    peers = [PEERS[name] for name in ("frozen", "connected", "killed")]
    assert asyncio.run(enough_answer(None, node, peers, enough=1, answer_s=60.0))
    assert node.banned == node.forgotten == ["frozen", "killed"]  # unconnected peers are not pinged
    assert (node.cleared, node.tried) == (["connected"], [])


def test_silent_peer_that_announced_itself_meanwhile_is_counted() -> None:
    membership = membership_of("connected", "frozen")
    run = membership._dht.run_coroutine

    def announces(look: Any, return_future: bool) -> Any:
        membership._members = tuple(replace(member, until_s=30.0) for member in membership._members)
        return run(look, return_future)

    membership._dht = SimpleNamespace(run_coroutine=announces)
    membership._check_connections(ping=True)
    assert membership.others_training(5) == 2


def test_peer_that_reconnected_during_the_pings_is_not_dead() -> None:
    node = Node()
    looked = list[str]()

    async def list_peers() -> list[Any]:
        looked.append("")
        names = CONNECTED if len(looked) == 1 else (*CONNECTED, "killed")
        return [SimpleNamespace(peer_id=PeerID.from_base58(PEERS[n])) for n in names]

    node.p2p.list_peers = list_peers
    dead, _ = asyncio.run(find_dead_and_silent(None, node, KNOWN, connect_s=0.05, answer_s=0.05))
    assert dead == [PEERS["silent"]]


def test_next_attempt_begins_when_more_than_half_respond() -> None:
    """Silent peers are determined meanwhile."""
    membership = membership_of("connected", "frozen")
    held, look = threading.Event(), membership._check_connections

    def looks_late(ping: bool = False) -> None:
        held.wait()
        look(ping)

    membership._check_connections = looks_late  # type: ignore[method-assign]
    assert membership.others_expected(5) == 2
    assert membership.others_training(5) == 2
    held.set()
    assert membership._pinging is not None
    membership._pinging.join()
    assert membership.others_training(5) == 1


def test_no_wait_after_a_too_small_group() -> None:
    """Otherwise two such groups, each checking peers while the other one gathers, would never merge."""
    node, held, asked = Node(), threading.Event(), list[list[str]]()
    membership = membership_of("connected", "frozen", node=node)
    look = membership._check_connections
    membership._enough_answer = lambda peers: bool(asked.append(peers))  # type: ignore[method-assign]

    def looks_late(ping: bool = False) -> None:
        held.wait()
        look(ping)

    membership._check_connections = looks_late  # type: ignore[method-assign]
    assert membership.others_expected(5, until="now") == 2
    held.set()
    assert membership._pinging is not None
    membership._pinging.join()
    assert membership.others_training(5) == 1
    assert asked == [
        [PEERS["connected"], PEERS["frozen"]]
    ]  # in the background, where the late are left out of the DHT


def test_silent_peers_are_determined_when_half_are_silent() -> None:
    membership = membership_of("connected", "frozen", "stopped")
    assert membership.others_expected(5) == 3
    assert membership.others_training(5) == 1


def test_ping_begun_before_the_failure_is_repeated() -> None:
    membership, looks = membership_of("frozen"), list[bool]()
    membership._check_connections = lambda ping=False: looks.append(ping)  # type: ignore[method-assign]
    held = threading.Event()
    membership._pinging = threading.Thread(target=held.wait)
    membership._pinging.start()
    threading.Timer(0.3, held.set).start()
    assert membership.others_expected(5) == 1
    assert not membership._pinging.is_alive()
    assert looks == [True]


@pytest.mark.parametrize(("other", "left"), [("killed", 0), ("frozen", 1)])
def test_dead_peers_are_determined_when_none_respond(other: str, left: int) -> None:
    membership = membership_of(other)
    assert membership.others_expected(5) == left
    assert membership.others_training(5) == 0


def test_no_query_without_known_peers() -> None:
    node = Node()
    assert membership_of(node=node).others_expected(5) == 0
    assert (node.pinged, node.tried) == ([], [])


def test_failing_dht_does_not_end_the_round() -> None:
    membership = membership_of("connected")

    def fails(*_: object, **__: object) -> Any:
        raise RuntimeError("no DHT")

    membership._dht = SimpleNamespace(run_coroutine=fails)
    assert membership.others_expected(5) == 1


@pytest.mark.parametrize(
    ("peers", "enough", "answered"),
    [
        (("frozen", "connected"), 1, True),
        (("frozen", "connected"), 2, False),
        (("frozen",), 1, False),
        (("killed",), 1, False),
    ],
)
def test_only_connected_peers_count_as_responding(
    peers: tuple[str, ...], enough: int, answered: bool
) -> None:
    node = Node()
    asked = enough_answer(None, node, [PEERS[name] for name in peers], enough=enough, answer_s=0.05)
    assert asyncio.run(asked) is answered
    assert node.tried == []
    assert node.cleared == [name for name in peers if name == "connected"]


def test_ready_peers_are_expected_in_the_first_round_only() -> None:
    config = SimpleNamespace(run_id="r", vm="me", initial_peers=(), dht_timeout_s=1.0)
    membership = Membership(cast(Any, None), cast(Any, config), maddr("me"), lambda _: None, subkey=b"")
    membership._members = tuple(Member(n, n, "ready", 0, maddr(n)) for n in ("me", "connected"))
    assert membership.others_training(0) == 1
    assert membership.others_training(1) == 0
    assert membership.others_training_at(0, seen=0) == 0  # so no round reports it as missing


def test_ready_peers_are_looked_up_before_stepping_alone() -> None:
    """Announcements are read every 10 s, so a shorter first epoch ends with the knowledge from before it."""
    config = SimpleNamespace(run_id="r", vm="me", initial_peers=(), dht_timeout_s=1.0)
    membership = Membership(cast(Any, None), cast(Any, config), maddr("me"), lambda _: None, subkey=b"")

    def members(phase: str) -> tuple[Member, ...]:
        return tuple(Member(n, n, phase, 0, maddr(n)) for n in ("me", "connected"))

    def read(_: float) -> None:
        membership._members = members("training")

    membership._members = members("ready")
    membership._read, membership._check_connections = read, lambda ping=False: None  # type: ignore[method-assign]
    assert membership.others_training_at(0, seen=0) == 1
    membership._members = members("ready")
    assert membership.others_training_at(1, seen=0) == 0


def progress(kind: type[ProgressTracker], gone: frozenset[bytes]) -> Any:
    """A tracker's progress from two peers' reports; the killed one's is some seconds old."""
    tracker: Any = object.__new__(kind)
    known: dict[str, Any] = {
        "prefix": "r", "target_batch_size": 1000, "status_loglevel": 0, "expected_drift_peers": 3,
        "expected_drift_rate": 0.2, "min_refresh_period": 0.5, "max_refresh_period": 5.0,
        "default_refresh_period": 0.5, "performance_ema": SimpleNamespace(eps=1e-9, samples_per_second=10.0),
        "local_progress": SimpleNamespace(epoch=3, samples_accumulated=100), "is_alive": lambda: False,
        "gone": lambda: gone,
    }  # fmt: skip
    for name, value in known.items():
        setattr(tracker, name, value)
    now = get_dht_time()
    entries = {
        name: ValueWithExpiration(
            {
                "peer_id": raw(name), "epoch": 3, "samples_accumulated": 100, "samples_per_second": 10.0,
                "time": now - age_s, "client_mode": False,
            },
            now + 30.0,
        )
        for name, age_s in (("me", 0.0), ("killed", 20.0))
    }  # fmt: skip
    return tracker._parse_swarm_progress_data(entries)


def test_samples_of_dead_peers_end_no_epoch() -> None:
    found = progress(PunctualTracker, frozenset({raw("killed")}))
    assert (found.num_peers, found.samples_accumulated) == (1, 100)
    assert found.eta_next_epoch - get_dht_time() == pytest.approx(90.0, abs=1.0)


def test_hivemind_extrapolates_dead_peers() -> None:
    """If this fails, Hivemind no longer extrapolates the samples of silent peers."""
    found = progress(ProgressTracker, frozenset({raw("killed")}))
    assert found.num_peers == 2
    assert found.eta_next_epoch - get_dht_time() == pytest.approx((1000 - 200 - 200) / 20, abs=1.0)


def test_progress_of_the_last_remaining_peer() -> None:
    found = progress(PunctualTracker, frozenset({raw("killed"), raw("me")}))
    assert (found.num_peers, found.epoch, found.samples_accumulated) == (0, 3, 100)


def test_progress_is_stale_after_a_standstill(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SimpleNamespace(now=100.0)
    monkeypatch.setattr("experiments.peer.optimizer.progress_tracker.time.monotonic", lambda: clock.now)
    tracker: Any = object.__new__(PunctualTracker)
    tracker.is_alive, tracker.max_refresh_period = lambda: False, 5.0
    assert tracker.stale  # nothing was looked at so far
    tracker._fetched_s = 100.0
    clock.now = 107.9
    assert not tracker.stale
    clock.now = 108.1
    assert tracker.stale


SECONDS = st.floats(0.1, 500.0)


@given(SECONDS, SECONDS, SECONDS, SECONDS)
def test_round_limit_is_four_expected_durations_and_a_silence(
    longest_s: float, comm_s: float, matchmaking_s: float, chunk_s: float
) -> None:
    limit_s = averaging_timeout_s(longest_s, comm_s, matchmaking_s, chunk_s)
    assert limit_s <= longest_s
    assert limit_s == longest_s or limit_s >= 4.0 * comm_s
    assert limit_s == longest_s or limit_s >= 2.0 * chunk_s + matchmaking_s + 2.0 * comm_s - 1e-6


def test_limits_of_the_papers_longest_and_shortest_rounds() -> None:
    """NLP C-8 is expected to communicate for 41 s and CV A-2 for 8 s: neither is awaited for 300 s."""
    assert averaging_timeout_s(300.0, 41.0, 5.0, 20.0) == 164.0
    assert averaging_timeout_s(300.0, 8.0, 5.0, 20.0) == 61.0
