"""Connections to the peers of this VM's own network at their internal addresses, which clouds bill less or not at all.

The controller leaves, beside the config, whom this VM reaches inside (`neighbours`). libp2p keeps whichever connection
came first and dials all addresses that it knows, so a pair connects again until its only connection is an internal one;
before this peer trains, since a connection that ends takes its calls with it. What cannot be reached inside stays at its
public address.
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
_TRIES = 20  # of one pair in a row; the public address wins some of them
_CONNECT_S = 2.0
_SETTLED_S = 0.3  # the other end may be dialling, too, while there was no connection


def read_neighbours(path: Path) -> dict[str, str]:
    """Internal IPv4 address by libp2p id (base58), from lines "PEER_ID IP"; {} without a file. Other lines are left out."""
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
    """The libp2p address /ip4/.../tcp/PORT[/p2p/ID] with another IP and without the id."""
    parts = maddr.split("/")
    return f"/ip4/{address}/tcp/{parts[4]}"


def ip_of(maddr: str) -> str:
    """The IP address in /ip4/IP/tcp/..."""
    return maddr.split("/")[2]


def to_reconnect(
    own: str, neighbours: Mapping[str, str], maddrs: Mapping[str, str], training: frozenset[str]
) -> dict[str, tuple[str, str]]:
    """The pairs that this peer, which does not train yet, connects again: (internal, public) address by libp2p id.

    `maddrs`: of the others, as they announce them. Of two that do not train the one with the smaller id does it; of
    one that trains (`training`) this one.
    """
    return {
        peer: (at_internal(maddr, neighbours[peer]), maddr.rsplit("/p2p/", 1)[0])
        for peer, maddr in maddrs.items()
        if peer in neighbours and maddr.startswith("/ip4/") and (peer in training or own < peer)
    }


async def connect_inside(_dht: Any, node: Any, pairs: Mapping[str, tuple[str, str]]) -> dict[str, bool]:
    """In the DHT's process: whether each pair's connections are all internal ones, after some tries."""
    found = await asyncio.gather(*(_inside(node, peer, *pair) for peer, pair in pairs.items()))
    return dict(zip(pairs, found, strict=True))


async def _inside(node: Any, peer: str, internal: str, public: str) -> bool:
    wanted = ip_of(internal)
    for _ in range(_TRIES):
        if await _settled(node, peer, wanted):
            return True
        await node.p2p._client.control.disconnect(PeerID.from_base58(peer))
        if not await _connect(node, peer, internal):
            break
    if await _settled(node, peer, wanted):
        return True
    if not await _addresses(node, peer):
        await _connect(node, peer, public)
    return False


async def _settled(node: Any, peer: str, wanted: str) -> bool:
    """Whether there is no connection but at this address, now and a moment later."""
    if await _addresses(node, peer) != {wanted}:
        return False
    await asyncio.sleep(_SETTLED_S)
    return await _addresses(node, peer) == {wanted}


async def _addresses(node: Any, peer: str) -> set[str]:
    """The other ends' IP addresses of all connections to a peer."""
    known = await node.p2p.list_peers()
    return {ip_of(str(a)) for info in known if str(info.peer_id) == peer for a in info.addrs}


async def _connect(node: Any, peer: str, maddr: str) -> bool:
    try:
        await asyncio.wait_for(
            node.p2p._client.connect(PeerID.from_base58(peer), [Multiaddr(maddr)]), _CONNECT_S
        )
    except Exception as error:  # noqa: BLE001 - unreachable there: the caller takes the other address
        _log.info("inside: %s at %s: %r", peer, maddr, error)
        return False
    return True
