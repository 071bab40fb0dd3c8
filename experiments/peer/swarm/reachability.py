"""Checks which known peers are connected and responsive, and reconnects them. All of it runs in the DHT's process."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Any

from hivemind.p2p import PeerID
from hivemind.utils.multiaddr import Multiaddr

_log = logging.getLogger(__name__)
_GRACE_S = 1.0  # for slower peers, once enough have responded


def peer_of(maddr: str) -> str:
    """Return the libp2p id (base58) at the end of a multiaddr."""
    return maddr.rsplit("/p2p/", 1)[1]


async def relink(_dht: Any, node: Any, maddrs: dict[str, str], timeout_s: float) -> dict[str, str]:
    """Ping the peers missing from the routing table. Returns each one's state: "linked", "relinked" or "unreachable"."""

    async def one(peer: str, maddr: str) -> str:
        peer_id = PeerID.from_base58(peer)
        if peer_id in node.protocol.routing_table and peer_id not in node.blacklist:
            return "linked"
        try:
            await asyncio.wait_for(_connect(node, peer, maddr), timeout_s)
        except Exception as error:  # noqa: BLE001 - dead peers are expected here and reported as unreachable
            _log.info("membership: cannot reach %s: %r", maddr, error)
            return "unreachable"
        if await node.protocol.call_ping(peer_id) is None:
            return "unreachable"
        node.blacklist.register_success(peer_id)
        return "relinked"

    states = await asyncio.gather(*(one(peer, maddr) for peer, maddr in maddrs.items()))
    return dict(zip(maddrs, states, strict=True))


async def find_dead_and_silent(
    _dht: Any, node: Any, maddrs: dict[str, str], connect_s: float, answer_s: float | None
) -> tuple[list[str], list[str]]:
    """Return the dead peers (not connected and unreachable) and the silent ones (connected but not responding).

    `answer_s` None: do not ping. Both kinds are excluded from DHT calls for a while, which would otherwise wait for
    them.
    """
    connected = await _connected(node)

    async def one(peer: str, maddr: str) -> str:
        if peer in connected:
            if answer_s is None:
                return ""
            return "" if await _answers(node, peer, answer_s) else "silent"
        try:
            await asyncio.wait_for(_connect(node, peer, maddr), connect_s)
        except Exception as error:  # noqa: BLE001 - refused or unreachable: the peer is dead
            _log.info("membership: %s is dead: %r", maddr, error)
            return "dead"
        node.blacklist.register_success(PeerID.from_base58(peer))
        return ""

    found = dict(zip(maddrs, await asyncio.gather(*(one(*item) for item in maddrs.items())), strict=True))
    back = await _connected(node)  # some may have reconnected meanwhile: pings take longer than connecting
    found = {peer: "" if state == "dead" and peer in back else state for peer, state in found.items()}
    for peer in (peer for peer, state in found.items() if state):
        await _exclude(node, peer)
    dead, silent = ([peer for peer, state in found.items() if state == one] for one in ("dead", "silent"))
    return dead, silent


async def enough_answer(_dht: Any, node: Any, peers: Sequence[str], enough: int, answer_s: float) -> bool:
    """Whether at least `enough` of the peers are connected and respond in time. Returns soon after they do.

    The others are excluded from DHT calls until they respond: calls to a dead peer would wait for it.
    """
    loop = asyncio.get_running_loop()
    began = loop.time()
    connected = await _connected(node)
    asking = {
        asyncio.ensure_future(_answers(node, peer, answer_s)): peer for peer in peers if peer in connected
    }
    try:
        late = set(asking)
        while late and enough > 0:
            answered, late = await asyncio.wait(late, return_when=asyncio.FIRST_COMPLETED)
            enough -= sum(one.result() for one in answered)
        if enough > 0:
            return False
        if late:
            await asyncio.wait(late, timeout=max(_GRACE_S, 2.0 * (loop.time() - began)))
        here = await _connected(node) - connected
        here |= {peer for one, peer in asking.items() if one.done() and one.result()}
        for peer in peers:
            if peer not in here:
                await _exclude(node, peer)
        return True
    finally:
        for task in asking:
            task.cancel()
        await asyncio.gather(*asking, return_exceptions=True)


async def _exclude(node: Any, peer: str) -> None:
    """Exclude a peer from DHT calls until it responds to a ping, or for some seconds."""
    peer_id = PeerID.from_base58(peer)
    node.blacklist.register_failure(peer_id)
    await node.protocol.update_routing_table(None, peer_id, responded=False)


async def _connected(node: Any) -> set[str]:
    return {str(info.peer_id) for info in await node.p2p.list_peers()}


async def _answers(node: Any, peer: str, answer_s: float) -> bool:
    """Whether a peer responds to a ping in time. If so, the DHT may call it again."""
    peer_id = PeerID.from_base58(peer)
    try:
        if await asyncio.wait_for(node.protocol.call_ping(peer_id), answer_s) is None:
            return False
    except TimeoutError:
        return False
    node.blacklist.register_success(peer_id)
    return True


async def _connect(node: Any, peer: str, maddr: str) -> None:
    address = Multiaddr(maddr.rsplit("/p2p/", 1)[0])
    await node.p2p._client.connect(PeerID.from_base58(peer), [address])
