"""Orders: a peer obeys the newest ones signed with the run's key, from any source; and the allowlist."""

from __future__ import annotations

import base64
import math
import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hivemind.dht.routing import DHTID
from hivemind.dht.validation import DHTRecord
from hivemind.p2p import P2PDaemonError, PeerID
from hivemind.p2p.p2p_daemon_bindings.control import ControlClient
from hivemind.utils import MSGPackSerializer
from hivemind_here import apart
from hypothesis import given
from hypothesis import strategies as st
from peer_rig import RUN, config_of

from experiments.peer.config import PeerConfig, PeerConfigError
from experiments.peer.swarm.allowlist import Allowlist, install_allowlist
from experiments.peer.swarm.dht_node import start_dht
from experiments.peer.swarm.orders import OrdersValidator, OrdersWatch
from experiments.wire.lease import Lease
from experiments.wire.orders import OrderPeer, Orders, generate_run_key, orders_expiration_s, orders_key, sign
from experiments.wire.record_keys import generate_identity

PEM, PUBLIC = generate_run_key()
OTHER_PEM, _ = generate_run_key()
A, B, C = (generate_identity()[1] for _ in "abc")
NOW_S = 1_000_000.0


def blob_of(version: int, *peer_ids: str, run: str = RUN, pem: bytes = PEM, paused: bool = False) -> bytes:
    peers = tuple(OrderPeer(f"vm-{i}", peer_id, "") for i, peer_id in enumerate(peer_ids))
    issued_s = NOW_S + version
    return sign(Orders(run, version, issued_s, issued_s + 600.0, paused, peers), pem)


def closed(blob: bytes) -> PeerConfig:
    text = base64.b64encode(blob).decode()
    return replace(config_of("a", "", ()), orders=text, orders_public_key=PUBLIC)


def watch_of(blob: bytes, now_s: float = NOW_S) -> OrdersWatch:
    return OrdersWatch(closed(blob), ticks_s=lambda: now_s)


def test_without_a_key_the_swarm_is_open() -> None:
    watch = OrdersWatch(config_of("a", "", ()))
    assert not watch.closed
    assert watch.allowed(C)
    assert watch.current is None
    assert not watch.paused
    assert watch.lease_left_s() == math.inf


def test_the_first_orders_come_from_the_config_and_their_lease_runs_from_the_start() -> None:
    watch = watch_of(blob_of(0, A, B))
    assert watch.closed
    assert [watch.allowed(p) for p in (A, B, C)] == [True, True, False]
    assert watch.lease_left_s() == 600.0
    late = watch_of(blob_of(0, A, B), now_s=NOW_S + 3600.0)  # the cloud took its time to make the VM
    assert late.lease_left_s() == 600.0


@pytest.mark.parametrize("controller_s", [-3600.0, -700.0, -31.0, 0.0, 31.0, 700.0, 3600.0])
@pytest.mark.parametrize("jump_s", [-3600.0, 0.0, 3600.0])
def test_leases_run_on_the_peers_monotonic_clock_from_receipt(controller_s: float, jump_s: float) -> None:
    """Whatever the controller's clock shows, and wherever it is set in mid-run: orders every 150 s keep a lease of 600 s
    alive, and it expires 600 s after the last ones."""
    ticks = [50.0]

    def given_at(version: int) -> bytes:
        said_s = NOW_S + controller_s + ticks[0] + (jump_s if version > 20 else 0.0)
        return sign(Orders(RUN, version, said_s, said_s + 600.0, False, (OrderPeer("a", A, ""),)), PEM)

    watch = OrdersWatch(closed(given_at(0)), ticks_s=lambda: ticks[0])
    for version in range(1, 40):
        ticks[0] += 150.0
        assert watch.lease_left_s() >= 300.0
        assert watch.offer(given_at(version))
        assert watch.lease_left_s() == (450.0 if jump_s < 0.0 and version > 20 else 600.0)
    ticks[0] += 601.0
    assert not watch.offer(given_at(39))  # the same again is no new lease
    assert watch.lease_left_s() < 0.0


@pytest.mark.parametrize("controller_s", [-3600.0, -31.0, 0.0, 700.0, 3600.0])
@given(cut_s=st.floats(0.0, 590.0), given_s=st.floats(0.0, 1.0))
def test_late_orders_extend_the_lease_only_by_the_remaining_time(
    controller_s: float, cut_s: float, given_s: float
) -> None:
    """The last orders were issued while the peer was cut off, and then the controller was lost."""
    ticks = [0.0]
    lease = Lease(600.0, NOW_S + controller_s, lambda: ticks[0])
    ticks[0] = cut_s
    lease.received(600.0, NOW_S + controller_s + given_s * cut_s)
    assert lease.left_s() == pytest.approx(600.0 - (1.0 - given_s) * cut_s, abs=1e-3)


def test_orders_cannot_extend_the_lease_beyond_the_config() -> None:
    watch = watch_of(blob_of(0, A))
    long = Orders(RUN, 1, NOW_S, NOW_S + 1e6, False, (OrderPeer("a", A, ""),))
    assert watch.offer(sign(long, PEM))
    assert watch.lease_left_s() == 600.0


@pytest.mark.parametrize(
    "blob", [b"", b"x" * 100, blob_of(0, A, pem=OTHER_PEM), blob_of(0, A, run="another")]
)
def test_config_with_foreign_orders_is_refused(blob: bytes) -> None:
    with pytest.raises(PeerConfigError, match="orders: not signed orders of this run"):
        watch_of(blob)
    with pytest.raises(PeerConfigError, match="orders: not signed orders of this run"):
        OrdersWatch(replace(closed(b""), orders="not base64!"))


def test_newer_orders_are_taken_and_refusals_counted() -> None:
    watch = watch_of(blob_of(3, A))
    assert watch.offer(blob_of(4, A, B, paused=True))
    assert watch.paused
    assert watch.allowed(B)
    assert not watch.offer(blob_of(4, A, B, paused=True))  # the same again is nothing new, and nothing bad
    assert watch.refused == {}
    for wrong in (blob_of(2, C), blob_of(9, C, pem=OTHER_PEM), blob_of(9, C, run="another"), b"x" * 20_000):
        assert not watch.offer(wrong)
    assert watch.refused == {"stale": 1, "signature": 1, "run": 1, "size": 1}
    assert not watch.allowed(C)
    assert watch.current is not None
    assert watch.current.version == 4


_offers = st.tuples(
    st.integers(0, 20), st.sampled_from(["good", "another key", "another run", "cut", "noise"])
)


@given(st.lists(_offers, max_size=12))
def test_newest_valid_orders_are_always_obeyed(offers: list[tuple[int, str]]) -> None:
    watch, newest = watch_of(blob_of(5, A)), 5
    for version, kind in offers:
        blob = {
            "good": lambda v: blob_of(v, A, B),
            "another key": lambda v: blob_of(v, C, pem=OTHER_PEM),
            "another run": lambda v: blob_of(v, C, run="another"),
            "cut": lambda v: blob_of(v, C)[:-1],
            "noise": lambda v: bytes([v]) * 90,
        }[kind](version)
        assert watch.offer(blob) == (kind == "good" and version > newest)
        newest = max(newest, version) if kind == "good" else newest
        assert watch.current is not None
        assert watch.current.version == newest
        assert not watch.allowed(C)


def record_of(blob: object, expires_s: float, *, key: str = "", subkey: object = None) -> DHTRecord:
    key_id = DHTID.generate(source=key or orders_key(RUN)).to_bytes()
    return DHTRecord(key_id, MSGPackSerializer.dumps(subkey), MSGPackSerializer.dumps(blob), expires_s)


def test_nodes_keep_only_orders_under_the_orders_key() -> None:
    validator = OrdersValidator(RUN, PUBLIC)
    until_s = orders_expiration_s(5)
    assert validator.validate(record_of(b"anything", 1.0, key="another key", subkey="mine"))
    assert not validator.validate(record_of(b"anything", 1.0, key="another key"))
    assert not validator.validate(record_of(blob_of(5, A, pem=OTHER_PEM), until_s))
    assert not validator.validate(record_of("text", until_s))
    assert not validator.validate(record_of([blob_of(5, A)], until_s))
    assert not validator.validate(record_of(b"x" * 20_000, until_s))
    assert not validator.validate(
        record_of(blob_of(5, A), until_s + 1e6)
    )  # an old copy cannot be kept forever
    assert not validator.validate(record_of(blob_of(5, A), until_s, subkey="mine"))
    assert validator.validate(record_of(blob_of(5, A), until_s))
    assert validator.validate(record_of(blob_of(5, A), until_s))
    assert not validator.validate(record_of(blob_of(4, A), orders_expiration_s(4)))


def test_the_list_and_the_counts_are_shared_with_forked_processes() -> None:
    allowlist = Allowlist()
    a, b = PeerID.from_base58(A), PeerID.from_base58(B)
    allowlist.allow(frozenset([A]))
    assert (allowlist.allows(a), allowlist.allows(b)) == (True, False)
    to_child, to_parent = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:  # as an averager is: it knew the first list, then another comes
        known = allowlist.allows(b)
        allowlist.refuse("store")
        os.write(to_parent[1], b"1")
        os.read(to_child[0], 1)
        allowlist.refuse("store")
        os._exit(0 if not known and allowlist.allows(b) and not allowlist.allows(a) else 1)
    os.read(to_parent[0], 1)
    assert allowlist.refused == {"store": 1}
    allowlist.allow(frozenset([B]))
    os.write(to_child[1], b"1")
    assert os.waitpid(child, 0)[1] == 0
    assert allowlist.refused == {"store": 2}
    for end in (*to_child, *to_parent):
        os.close(end)


def test_invalid_peer_ids_and_too_many_peers_are_refused() -> None:
    with pytest.raises(ValueError, match="0"):
        Allowlist().allow(frozenset(["0OIl"]))


def _call_a_stranger(_folder: Path) -> list[str]:
    import asyncio

    allowlist = Allowlist()
    allowlist.allow(frozenset([A]))
    install_allowlist(allowlist)
    client: Any = object.__new__(ControlClient)
    client._read_task = client._write_task = None
    stranger = PeerID.from_base58(C)
    failed = []
    for call in (
        lambda: client.call_unary_handler(stranger, "DHTProtocol.rpc_ping", b""),
        lambda: client.stream_open(stranger, ("x",)),
        lambda: client.connect(stranger, ()),
    ):
        try:
            asyncio.run(call())
        except P2PDaemonError as error:
            failed.append(str(error))
    return [*failed, str(allowlist.refused)]


@pytest.mark.processes
def test_strangers_are_not_called() -> None:
    assert apart(_call_a_stranger) == [f"{C} is not a member of this swarm"] * 3 + ["{'call': 3}"]


async def _keep(_dht: Any, node: Any, blob: bytes, until_s: float) -> None:
    """Store the orders on a node, as the monitor does."""
    key_id = DHTID.generate(source=orders_key(RUN))
    node.protocol.storage.store(key_id, MSGPackSerializer.dumps(blob), until_s)


def _two_nodes(folder: Path) -> list[int]:
    from functools import partial

    now_s = time.time() - 3600.0  # the controller's clock is an hour behind the nodes'
    ids = [str(PeerID.from_identity((folder / f"{name}.key").read_bytes())) for name in "ab"]

    def orders(version: int) -> tuple[bytes, float]:
        peers = tuple(OrderPeer(f"vm-{p}", p, "") for p in ids)
        blob = sign(Orders(RUN, version, now_s, now_s + 60.0 + version, False, peers), PEM)
        return blob, orders_expiration_s(version)

    first = closed(orders(1)[0])
    dht_a, maddr = start_dht(first, folder / "a.key")
    second = replace(
        closed(orders(1)[0]), initial_peers=(maddr,), listen_port=config_of("b", "", ()).listen_port
    )
    dht_b, _ = start_dht(second, folder / "b.key")
    watches = [OrdersWatch(first), OrdersWatch(second)]
    looks: list[int] = []
    for watch, dht in zip(watches, (dht_a, dht_b), strict=True):
        watch.watch(dht, lambda: looks.append(1), period_s=0.2)
    dht_a.run_coroutine(partial(_keep, blob=orders(2)[0], until_s=orders(2)[1]))
    end = time.monotonic() + 20.0
    while [w.current.version for w in watches if w.current] != [2, 2] and time.monotonic() < end:
        time.sleep(0.1)
    for watch in watches:
        watch.stop()
    assert looks
    return [w.current.version for w in watches if w.current]


@pytest.mark.processes
@pytest.mark.timeout(300)  # at idle priority too
def test_orders_reach_a_peer_that_the_monitor_cannot_reach() -> None:
    assert apart(_two_nodes) == [2, 2]
