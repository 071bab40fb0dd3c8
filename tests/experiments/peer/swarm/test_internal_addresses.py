"""Peers of one network connect at internal addresses before they train, or else at public ones."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from experiments.peer.reporting.egress_meter import _leaves_host  # pyright: ignore[reportPrivateUsage]
from experiments.peer.swarm.internal_addresses import at_internal, read_neighbours, to_reconnect

ROOT = Path(__file__).parents[4]
A, B, C = (
    "QmcxxasawHGWuJX5jHY7pYwHfm8EFoNYVVTwM6vZG1aBQQ",
    "QmcTBuzc9H7WvpYh2gX9MV3C9oZp76kXgGM6Q9Lg3NsxdJ",
    "QmS7ZY9jeYdFT16opo6oWbeSFF5negx3C1H1hBTJunPnCh",
)
INTERNAL = {A: "10.0.0.1", B: "10.0.0.2", C: "10.0.0.3"}
MADDRS = {peer: f"/ip4/203.0.113.{n}/tcp/31000/p2p/{peer}" for n, peer in enumerate((A, B, C), 1)}

# Three nodes on addresses of a namespace: two have an internal one, at the third's nobody listens. Runs inside `unshare`.
_PROGRAM = """
import json, subprocess, threading, time
from hivemind_here import apart
from peer_rig import config_of
from experiments.peer.swarm.reachability import peer_of
from experiments.peer.swarm.membership import Membership
from experiments.peer.swarm.dht_node import start_dht
from experiments.wire.dht_records import subkey_of
from experiments.wire.record_keys import generate_identity, generate_record_key

async def connections(_dht, node):
    found = {}
    for info in await node.p2p.list_peers():
        found.setdefault(str(info.peer_id), set()).update(str(a).split("/")[2] for a in info.addrs)
    return {peer: sorted(addresses) for peer, addresses in found.items()}

def run(folder):
    nodes, internal, record_key = [], {}, generate_record_key()[1]
    for n in (1, 2, 3):
        (folder / f"{n}.key").write_bytes(generate_identity()[0])
        known = tuple(maddr for _, _, maddr in nodes[:1])
        config = config_of(
            str(n), "", (), listen_address="0.0.0.0", announce_address=f"203.0.113.{n}", initial_peers=known
        )
        dht, maddr = start_dht(config, folder / f"{n}.key")
        nodes.append((config, dht, maddr))
        internal[peer_of(maddr)] = f"10.0.0.{n if n < 3 else 9}"
    before = [dht.run_coroutine(connections) for _, dht, _ in nodes]
    members = [
        Membership(
            dht, config, maddr, lambda n: None, subkey=subkey_of(config.vm, record_key), period_s=0.5, neighbours=lambda: internal
        )
        for config, dht, maddr in nodes
    ]
    for one in members:
        one.start()
    end = time.monotonic() + 30
    while any(len(one.members) < 3 for one in members):
        assert time.monotonic() < end, "the members did not find each other"
        time.sleep(0.1)
    for one in members:
        one.wait_for_internal_connections(30, threading.Event())
    time.sleep(3)  # further rounds detect what the other ends did meanwhile
    return {
        "ids": [peer_of(maddr) for _, _, maddr in nodes],
        "before": before,
        "after": [dht.run_coroutine(connections) for _, dht, _ in nodes],
        "outside": [list(one.public_only) for one in members],
        "heals": [one.heals for one in members],
        "inside": [dict(one.internal) for one in members],
    }

for words in ("link set lo up", *(f"addr add {a}.{n}/32 dev lo" for a in ("203.0.113", "10.0.0") for n in (1, 2, 3))):
    subprocess.run(["ip", *words.split()], check=True)
print(json.dumps(apart(run, 80)))
"""


def test_exactly_one_peer_of_an_idle_pair_reconnects():
    for one, other in ((A, B), (A, C), (B, C)):
        acting = [
            me
            for me, them in ((one, other), (other, one))
            if to_reconnect(me, INTERNAL, {them: MADDRS[them]}, frozenset())
        ]
        assert len(acting) == 1
        for me, them in ((one, other), (other, one)):
            pairs = to_reconnect(me, INTERNAL, {them: MADDRS[them]}, frozenset((them,)))
            assert list(pairs) == [them], "a peer that trains is not asked to"


def test_only_named_neighbours_reconnect():
    assert to_reconnect(C, {B: "10.0.0.2"}, MADDRS, frozenset()) == {
        B: ("/ip4/10.0.0.2/tcp/31000", "/ip4/203.0.113.2/tcp/31000")
    }
    assert to_reconnect(C, {}, MADDRS, frozenset((A, B))) == {}
    named = {B: f"/dns4/example.org/tcp/31000/p2p/{B}"}
    assert to_reconnect(C, INTERNAL, named, frozenset()) == {}
    assert at_internal(MADDRS[A], "10.0.0.7") == "/ip4/10.0.0.7/tcp/31000"


def test_invalid_lines_in_the_file_are_skipped(tmp_path: Path):
    path = tmp_path / "neighbours"
    assert read_neighbours(path) == {}
    lines = [f"{A} 10.0.0.1", B, f"{B} 10.0.0.300", "no-peer 10.0.0.2", f"{C} ::1", "", f"{C} 10.0.0.3\r"]
    path.write_bytes("\n".join(lines).encode() + b"\n\xff\xfe 10.0.0.4")
    assert read_neighbours(path) == {A: "10.0.0.1", C: "10.0.0.3"}


def test_link_local_and_loopback_traffic_is_no_egress():
    """A cloud's metadata service is polled every few seconds."""
    leaves = {a: _leaves_host(a) for a in ("127.0.0.1", "169.254.169.254", "::1", "fe80::1")}
    assert not any(leaves.values())
    assert all(_leaves_host(a) for a in ("10.0.0.1", "203.0.113.1", "2001:db8::1"))


@pytest.mark.processes
@pytest.mark.timeout(150)
def test_pair_connects_internally_or_stays_at_public_addresses():
    unshare = shutil.which("unshare")
    if unshare is None or subprocess.run([unshare, "-Urn", "true"], capture_output=True).returncode:
        pytest.skip("this host lets nobody make a network namespace")
    path = os.pathsep.join((str(ROOT), str(ROOT / "tests" / "experiments")))
    done = subprocess.run(
        [unshare, "-Urn", sys.executable, "-c", _PROGRAM],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=120,
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    one, two, three = found["ids"]
    # Both ends are on one machine: the accepting end sees the address that was dialled.
    assert found["before"][1][one] == ["203.0.113.1"], "else there was nothing to be done"
    assert {peer: ip for known in found["inside"] for peer, ip in known.items()}.items() <= {
        (one, "10.0.0.1"),
        (two, "10.0.0.2"),
    }
    assert found["heals"] == [0, 0, 0], "no link was lost"
    for n, other in ((0, two), (1, one)):
        assert {address[:7] for address in found["after"][n][other]} == {"10.0.0."}
    for n, own in enumerate((one, two)):  # the third one's internal address is unreachable
        tried = own < three
        assert (three in found["outside"][n]) is tried
        assert {a[:6] for a in found["after"][n][three]} == {"203.0." if tried else "10.0.0"}
