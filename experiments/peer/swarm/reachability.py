"""Who of the known peers is connected, who answers, and connecting to who is not. All of it runs in the DHT's process."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Any

from hivemind.p2p import PeerID
from hivemind.utils.multiaddr import Multiaddr

_log = logging.getLogger(__name__)
_GRACE_S = 1.0  # for the slower ones, once enough have answered


def peer_of(maddr: str) -> str:
    """The libp2p id, in base58, at the end of an address."""
    return maddr.rsplit("/p2p/", 1)[1]


async def relink(_dht: Any, node: Any, maddrs: dict[str, str], timeout_s: float) -> dict[str, str]:
    """Ping the peers missing in the routing table. Returns each one's state: "linked", "relinked" or "unreachable"."""

    async def one(peer: str, maddr: str) -> str:
        peer_id = PeerID.from_base58(peer)
        if peer_id in node.protocol.routing_table and peer_id not in node.blacklist:
            return "linked"
        try:
            await asyncio.wait_for(_connect(node, peer, maddr), timeout_s)
        except Exception as error:  # noqa: BLE001 - dead peers are expected here; the state tells
            _log.info("membership: cannot reach %s: %r", maddr, error)
            return "unreachable"
        if await node.protocol.call_ping(peer_id) is None:
            return "unreachable"
        node.blacklist.register_success(peer_id)
        return "relinked"

    states = await asyncio.gather(*(one(peer, maddr) for peer, maddr in maddrs.items()))
    return dict(zip(maddrs, states, strict=True))


async def away(
    _dht: Any, node: Any, maddrs: dict[str, str], connect_s: float, answer_s: float | None
) -> tuple[list[str], list[str]]:
    """Those of the peers that are not connected and cannot be; and those that are, and do not answer.

    `answer_s` None: nobody is asked. The DHT asks neither kind for a while: else each of its calls waits for them.
    """
    connected = await _connected(node)

    async def one(peer: str, maddr: str) -> str:
        if peer in connected:
            if answer_s is None:
                return ""
            return "" if await _answers(node, peer, answer_s) else "silent"
        try:
            await asyncio.wait_for(_connect(node, peer, maddr), connect_s)
        except Exception as error:  # noqa: BLE001 - refused, or nobody there: that is what is asked
            _log.info("membership: %s is dead: %r", maddr, error)
            return "dead"
        node.blacklist.register_success(PeerID.from_base58(peer))
        return ""

    found = dict(zip(maddrs, await asyncio.gather(*(one(*item) for item in maddrs.items())), strict=True))
    back = await _connected(node)  # meanwhile: pings take longer than connecting
    found = {peer: "" if how == "dead" and peer in back else how for peer, how in found.items()}
    for peer in (peer for peer, how in found.items() if how):
        await _leave_out(node, peer)
    dead, silent = ([peer for peer, how in found.items() if how == one] for one in ("dead", "silent"))
    return dead, silent


async def enough_answer(_dht: Any, node: Any, peers: Sequence[str], enough: int, answer_s: float) -> bool:
    """Whether so many of the peers are connected and answer in time; returns soon after they do.

    The DHT asks the rest no more until they answer: the first call of each that asks one that is gone would wait for it.
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
                await _leave_out(node, peer)
        return True
    finally:
        for task in asking:
            task.cancel()
        await asyncio.gather(*asking, return_exceptions=True)


async def _leave_out(node: Any, peer: str) -> None:
    """The DHT asks it no more: until a ping is answered, or for some seconds."""
    peer_id = PeerID.from_base58(peer)
    node.blacklist.register_failure(peer_id)
    await node.protocol.update_routing_table(None, peer_id, responded=False)


async def _connected(node: Any) -> set[str]:
    return {str(info.peer_id) for info in await node.p2p.list_peers()}


async def _answers(node: Any, peer: str, answer_s: float) -> bool:
    """Whether it does in time; then nothing keeps the DHT from asking it."""
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
