"""Connections to peers of this VM's network at internal addresses, whose traffic clouds bill less or not at all.

The controller writes the peers reachable internally to a file next to the config (`neighbours`). libp2p keeps whichever
connection came first and dials all addresses it knows, so a pair reconnects until its only connection is an internal
one. This happens before this peer trains, since closing a connection aborts its calls. Peers that cannot be reached
internally stay connected at their public address.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hivemind.p2p import PeerID
from hivemind.utils.multiaddr import Multiaddr

_log = logging.getLogger(__name__)
FILE = "neighbours"
_LARGEST_BYTES = 65_536
_TRIES = 20  # per pair, in a row; the public address wins some of them
_CONNECT_S = 2.0
_SETTLED_S = 0.3  # the other end may have been dialling while there was no connection


def read_neighbours(path: Path) -> dict[str, str]:
    """Read internal IPv4 addresses by libp2p id (base58) from lines "PEER_ID IP"; {} without a file.

    Invalid lines are skipped.
    """
    try:
        with path.open("rb") as file:
            lines = file.read(_LARGEST_BYTES).decode(errors="replace").splitlines()
    except OSError:
        return {}
    found: dict[str, str] = {}
    for line in lines:
        peer, _, address = line.strip().partition(" ")
        try:
            PeerID.from_base58(peer)
            found[peer] = str(ipaddress.IPv4Address(address))
        except ValueError:
            continue
    return found


def at_internal(maddr: str, address: str) -> str:
    """Replace the IP of the multiaddr /ip4/.../tcp/PORT[/p2p/ID] and drop the id."""
    parts = maddr.split("/")
    return f"/ip4/{address}/tcp/{parts[4]}"


def ip_of(maddr: str) -> str:
    """Return the IP address in /ip4/IP/tcp/..."""
    return maddr.split("/")[2]


def to_reconnect(
    own: str, neighbours: Mapping[str, str], maddrs: Mapping[str, str], training: frozenset[str]
) -> dict[str, tuple[str, str]]:
    """Peers to which this peer, not training yet, should reconnect: (internal, public) address by libp2p id.

    `maddrs`: the announced addresses of the others. If neither peer of a pair trains, the one with the smaller id
    reconnects; if the other one trains (`training`), this peer does.
    """
    return {
        peer: (at_internal(maddr, neighbours[peer]), maddr.rsplit("/p2p/", 1)[0])
        for peer, maddr in maddrs.items()
        if peer in neighbours and maddr.startswith("/ip4/") and (peer in training or own < peer)
    }


async def connect_inside(_dht: Any, node: Any, pairs: Mapping[str, tuple[str, str]]) -> dict[str, bool]:
    """Reconnect each pair internally; whether all of a pair's connections are internal now. Runs in the DHT's process."""
    found = await asyncio.gather(*(_connect_pair(node, peer, *pair) for peer, pair in pairs.items()))
    return dict(zip(pairs, found, strict=True))


async def _connect_pair(node: Any, peer: str, internal: str, public: str) -> bool:
    address = ip_of(internal)
    for _ in range(_TRIES):
        if await _settled(node, peer, address):
            return True
        await node.p2p._client.control.disconnect(PeerID.from_base58(peer))
        if not await _connect(node, peer, internal):
            break
    if await _settled(node, peer, address):
        return True
    if not await _addresses(node, peer):
        await _connect(node, peer, public)
    return False


async def _settled(node: Any, peer: str, address: str) -> bool:
    """Whether the peer is connected at this address only, now and a moment later."""
    if await _addresses(node, peer) != {address}:
        return False
    await asyncio.sleep(_SETTLED_S)
    return await _addresses(node, peer) == {address}


async def _addresses(node: Any, peer: str) -> set[str]:
    """Remote IP addresses of all connections to a peer."""
    known = await node.p2p.list_peers()
    return {ip_of(str(a)) for info in known if str(info.peer_id) == peer for a in info.addrs}


async def _connect(node: Any, peer: str, maddr: str) -> bool:
    try:
        await asyncio.wait_for(
            node.p2p._client.connect(PeerID.from_base58(peer), [Multiaddr(maddr)]), _CONNECT_S
        )
    except Exception as error:  # noqa: BLE001 - unreachable there: the caller tries the other address
        _log.info("internal connections: cannot connect to %s at %s: %r", peer, maddr, error)
        return False
    return True
