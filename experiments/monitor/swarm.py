"""Access to the swarm's DHT for the monitor: a client that does not listen and stores only the orders.

Hivemind's DHTNode runs in this process (p2pd is the only child, so stopping is fast). It queries each node near a key
separately, so that every replica's answer is seen unmerged and a slow node does not delay the others.
"""

# pyright: reportMissingTypeStubs=false, reportPrivateUsage=false
from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from hivemind.dht.node import DHTNode
from hivemind.dht.routing import DHTID
from hivemind.p2p import P2P, PeerID
from hivemind.utils import MSGPackSerializer
from hivemind.utils.multiaddr import Multiaddr

from experiments.monitor.acceptance import Raw, raw_entries
from experiments.wire.hivemind.patches import keep_tasks

_log = logging.getLogger(__name__)

_REPLICAS_QUERIED = 10  # the nearest nodes of each key; Hivemind stores on 5
_STARTUP_TIMEOUT_S = 60.0
_IDLE_TIMEOUT_S = 7 * 86400.0  # by default p2pd exits after 30 s without a peer
_RECONNECT_S, _RECONNECT_MAX_S = 3.0, 30.0  # back-off, doubled with each failure of an address
_PUBLISH_AGAIN_S = 20.0


class SwarmReader:
    """Keeps connections to the roster's peers and reads keys from the nodes that answer."""

    def __init__(self, timeout_s: float) -> None:
        self.peer_id = ""
        self._timeout_s = timeout_s
        self._p2p: Any = None
        self._node: Any = None
        self._busy: dict[tuple[Any, bytes], asyncio.Task[None]] = {}
        self._connecting: dict[str, asyncio.Task[None]] = {}
        self._failures: dict[str, int] = {}  # by address, in a row
        self._next_try: dict[str, float] = {}  # by address, monotonic seconds
        self._published: dict[Any, tuple[bytes, float]] = {}  # by peer: last value, time of the next attempt
        self._publishing: dict[Any, asyncio.Task[None]] = {}

    async def start(self, identity: Path | None = None) -> None:
        """Start p2pd, in up to three attempts. Raises hivemind's P2PDaemonError.

        `identity`: file with the key that identifies this node to the peers. Without it, p2pd generates one.
        """
        keep_tasks(asyncio.get_running_loop())
        for left in (2, 1, 0):
            try:
                self._p2p = await P2P.create(
                    dht_mode="client",
                    host_maddrs=(),
                    no_listen=True,
                    identity_path=str(identity) if identity is not None else None,
                    check_if_identity_free=False,
                    auto_nat=False,
                    nat_port_map=False,
                    use_relay=False,
                    idle_timeout=_IDLE_TIMEOUT_S,
                    startup_timeout=_STARTUP_TIMEOUT_S,
                )
                break
            except Exception:
                if not left:
                    raise
                _log.warning("p2pd did not start, retrying", exc_info=True)
        node_class: Any = DHTNode
        self._node = await node_class.create(
            p2p=self._p2p,
            client_mode=True,
            wait_timeout=self._timeout_s,
            cache_locally=False,
            cache_nearest=0,
        )
        self.peer_id = self._p2p.peer_id.to_base58()

    @property
    def nodes(self) -> int:
        """Number of DHT nodes that answered recently."""
        return len(self._node.protocol.routing_table.uid_to_peer_id) if self._node is not None else 0

    def connect(self, maddrs: Mapping[str, str], now: float) -> None:
        """Connect, in the background, to VMs whose node is not in the routing table. `now`: monotonic s."""
        known = set(self._node.protocol.routing_table.peer_id_to_uid)
        for vm, maddr in maddrs.items():
            peer_text = maddr.rpartition("/p2p/")[2]
            if vm in self._connecting or now < self._next_try.get(maddr, now):
                continue
            try:
                peer = PeerID.from_base58(peer_text)
                if peer in known:
                    continue
                address = Multiaddr(maddr.rpartition("/p2p/")[0])
            except ValueError as error:
                _log.warning("%s: %r is not a valid address: %s", vm, maddr, error)
                self._next_try[maddr] = math.inf
                continue
            waits = _RECONNECT_S * 2 ** self._failures.get(maddr, 0)
            self._next_try[maddr] = now + min(waits, _RECONNECT_MAX_S)
            task = asyncio.create_task(self._connect(vm, maddr, peer, address))
            self._connecting[vm] = task
            task.add_done_callback(lambda _, vm=vm: self._connecting.pop(vm, None))

    def query(self, keys: Sequence[bytes], take: Callable[[list[Raw]], None]) -> list[asyncio.Task[None]]:
        """Query the nodes near each key, except where an earlier query of the same node is pending.

        `take` is called with the entries of each answer. Returns all pending queries, including earlier ones.
        """
        table = self._node.protocol.routing_table
        for key in keys:
            key_id = DHTID.from_bytes(key)
            for _, peer in table.get_nearest_neighbors(key_id, _REPLICAS_QUERIED):
                place = (peer, key)
                if place not in self._busy:
                    task = asyncio.create_task(self._find(peer, key_id, key, take))
                    self._busy[place] = task
                    task.add_done_callback(lambda _, place=place: self._busy.pop(place, None))
        return list(self._busy.values())

    def publish(self, key: str, value: bytes, expiration_s: float, now: float) -> None:
        """Store `value` on every known node, in the background.

        A new value is stored at once, then again every `_PUBLISH_AGAIN_S`, because a node may have been restarted.
        `now`: monotonic s.
        """
        key_id = DHTID.generate(source=key)
        for peer in list(self._node.protocol.routing_table.peer_id_to_uid):
            published, next_try = self._published.get(peer, (b"", now))
            if peer not in self._publishing and (published != value or now >= next_try):
                task = asyncio.create_task(self._publish(peer, key_id, value, expiration_s, now))
                self._publishing[peer] = task
                task.add_done_callback(lambda _, peer=peer: self._publishing.pop(peer, None))

    async def close(self) -> None:
        """Cancel pending tasks and stop p2pd."""
        tasks = [*self._busy.values(), *self._connecting.values(), *self._publishing.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        child = getattr(self._p2p, "_child", None)
        for what in (self._node, self._p2p):
            if what is not None:
                await _within(1.0, what.shutdown(), f"{type(what).__name__} did not shut down in 1 s")
        if child is not None and child.returncode is None:
            child.kill()
            await child.wait()

    async def _connect(self, vm: str, maddr: str, peer: Any, address: Any) -> None:
        """Connect to a peer. Never raises: a peer that cannot be reached is retried later."""
        try:
            await asyncio.wait_for(self._p2p._client.connect(peer, [address]), self._timeout_s)
            if await self._node.protocol.call_ping(peer) is None:
                raise TimeoutError("connected, but its DHT does not answer")
        except Exception as error:  # noqa: BLE001 - p2pd's errors have many types; all mean "retry later"
            self._failures[maddr] = min(self._failures.get(maddr, 0) + 1, 10)
            level = logging.INFO if self._failures[maddr] == 1 else logging.DEBUG
            _log.log(level, "cannot reach %s at %s, will retry: %r", vm, address, error)
        else:
            self._failures.pop(maddr, None)

    async def _publish(self, peer: Any, key_id: Any, value: bytes, expiration_s: float, now: float) -> None:
        packed = MSGPackSerializer.dumps(value)
        if await self._node.protocol.call_store(peer, [key_id], [packed], expiration_s) is not None:
            self._published[peer] = (value, now + _PUBLISH_AGAIN_S)  # stored, or the node has it already

    async def _find(self, peer: Any, key_id: Any, key: bytes, take: Callable[[list[Raw]], None]) -> None:
        answer = await self._node.protocol.call_find(peer, [key_id])  # None: no answer, logged at DEBUG
        if not answer:
            return
        item, _ = answer[key_id]  # the neighbours are ignored: they are on the roster or not part of the run
        if item is not None:
            take(raw_entries(key, item.value))


async def _within(limit_s: float, work: Awaitable[Any], otherwise: str) -> None:
    try:
        await asyncio.wait_for(work, limit_s)
    except (TimeoutError, OSError) as error:
        _log.warning("%s: %r", otherwise, error)
