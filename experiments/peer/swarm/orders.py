"""The orders this peer obeys: the newest ones signed by the run's controller, from the config or the DHT."""

from __future__ import annotations

import base64
import binascii
import logging
import math
import threading
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

from hivemind.dht.routing import DHTID
from hivemind.dht.validation import DHTRecord, RecordValidatorBase
from hivemind.utils import MSGPackSerializer

from cloud.clock import ticks_s
from experiments.peer.config import PeerConfig, PeerConfigError
from experiments.peer.swarm.allowlist import Allowlist, disconnect_strangers, install_allowlist
from experiments.wire.lease import Lease
from experiments.wire.orders import (
    MAX_BYTES,
    Orders,
    OrdersError,
    orders_expiration_s,
    orders_key,
    record_key_digest,
    verify,
)

_log = logging.getLogger(__name__)

_PERIOD_S = 2.0
# Lookups; the monitor stores the orders on every node it reaches, the others find them with wide lookups.
_WIDE_EVERY = 8


class OrdersWatch:
    """Keeps the newest orders. Without a public key in the config the swarm is open: every peer is allowed.

    Leases are measured on this machine's monotonic clock (`experiments.wire.lease`), so that neither the controller's
    time of day nor this machine's can shorten or extend them.
    """

    def __init__(self, config: PeerConfig, *, ticks_s: Callable[[], float] = ticks_s) -> None:
        """Take the first orders from the config. Raises PeerConfigError if the run's controller did not sign them."""
        self._run_id, self._public_key = config.run_id, config.orders_public_key
        self._dht_timeout_s = config.dht_timeout_s
        self._current: Orders | None = None
        self._peer_ids: frozenset[str] = frozenset()
        self._lease: Lease | None = None
        self._ended = threading.Event()
        self.refused: Counter[str] = Counter()  # refused orders by reason
        if not self._public_key:
            return
        try:
            first = verify(base64.b64decode(config.orders, validate=True), self._public_key, self._run_id, -1)
        except (OrdersError, binascii.Error) as error:
            raise PeerConfigError(
                f"orders: not signed orders of this run: {error}; the controller writes them"
            ) from error
        self._lease = Lease(first.lease_s, first.issued_s, ticks_s)
        self._take(first)

    @property
    def closed(self) -> bool:
        """Whether only the peers listed in the orders belong to the swarm."""
        return bool(self._public_key)

    @property
    def current(self) -> Orders | None:
        """The newest orders; None in an open swarm."""
        return self._current

    @property
    def paused(self) -> bool:
        """Whether the controller has paused training."""
        return self._current is not None and self._current.paused

    @property
    def last_epoch(self) -> int | None:
        """The epoch after which the peers are done. None: the last one of their config."""
        return None if self._current is None else self._current.last_epoch

    @property
    def peer_ids(self) -> frozenset[str]:
        """Libp2p ids (base58) of the allowed peers; empty in an open swarm."""
        return self._peer_ids

    def allowed(self, peer_id: str) -> bool:
        """Whether the peer (base58) belongs to the swarm."""
        return not self._public_key or peer_id in self._peer_ids

    def is_member(self, vm: str, record_key: str, peer_id: str) -> bool:
        """Whether the newest orders list the VM ("": any) with this record key and libp2p id. True in an open swarm."""
        orders = self._current
        if not self._public_key or orders is None:
            return not self._public_key
        digest = record_key_digest(record_key)
        known = (peer for peer in orders.peers if peer.peer_id == peer_id and peer.record_key == digest)
        return any(vm in ("", peer.vm) for peer in known)

    def lease_left_s(self) -> float:
        """Seconds until the lease ends; negative if expired, infinite in an open swarm."""
        return math.inf if self._lease is None else self._lease.left_s()

    def offer(self, blob: bytes) -> bool:
        """Verify orders from an untrusted source and take them if they are newer. Returns whether they were taken."""
        known = self._current.version if self._current is not None else -1
        try:
            orders = verify(blob, self._public_key, self._run_id, known)
        except OrdersError as error:
            self.refused[error.reason] += 1
            _log.warning("orders refused: %s", error)
            return False
        if orders.version == known:
            return False
        assert self._lease is not None
        self._lease.received(orders.lease_s, orders.issued_s)
        self._take(orders)
        return True

    def watch(self, dht: Any, on_look: Callable[[], None], *, period_s: float = _PERIOD_S) -> None:
        """Start a thread that looks up the orders in the DHT every `period_s` and then calls `on_look`.

        Each lookup also closes the connections of unlisted peers (`allowlist.disconnect_strangers`).
        """
        if not self._public_key:
            return
        validator = OrdersValidator(self._run_id, self._public_key)
        dht.add_validators([validator])
        threading.Thread(target=self._run, args=(dht, on_look, period_s), name="orders", daemon=True).start()

    def stop(self) -> None:
        """End the thread."""
        self._ended.set()

    def _take(self, orders: Orders) -> None:
        self._peer_ids = frozenset(peer.peer_id for peer in orders.peers)
        self._current = orders

    def _run(self, dht: Any, on_look: Callable[[], None], period_s: float) -> None:
        lookups, seen = 0, b""
        while not self._ended.wait(period_s):
            wide = lookups % _WIDE_EVERY == _WIDE_EVERY - 1
            lookups += 1
            try:
                future = dht.run_coroutine(
                    partial(_look, key=orders_key(self._run_id), wide=wide), return_future=True
                )
                blob = future.result(2.0 * self._dht_timeout_s if wide else self._dht_timeout_s)
            except Exception as error:  # noqa: BLE001 - the DHT process is busy or dying: the next lookup tries again
                _log.warning("orders: the DHT did not answer: %r", error)
                continue
            if blob is not None and blob != seen:
                seen = blob
                self.offer(blob)
            on_look()


class Admission:
    """Keeps the allowlist in sync with the newest orders and warns about refusals. Does nothing in an open swarm."""

    def __init__(self, orders: OrdersWatch, allowlist: Allowlist, warn: Callable[[str, str], None]) -> None:
        """`warn`: (key, text), as `Status.warn`."""
        self._orders, self._allowlist, self._warn = orders, allowlist, warn

    def install(self) -> None:
        """Restrict Hivemind's calls to the peers listed in the orders. Call it before anything listens."""
        if self._orders.closed:
            self._allowlist.allow(self._orders.peer_ids)
            install_allowlist(self._allowlist)

    def watch(self, dht: Any) -> None:
        """Watch the orders in the DHT, in a thread, until `stop`."""
        self._orders.watch(dht, self.update)

    def update(self) -> None:
        """Copy the peers of the newest orders to the allowlist, and report refusals."""
        self._allowlist.allow(self._orders.peer_ids)
        for key, refused in (("strangers", self._allowlist.refused), ("orders", dict(self._orders.refused))):
            if refused:
                self._warn(key, f"{key} refused: {', '.join(f'{n} {k}' for k, n in refused.items())}")

    def stop(self) -> None:
        """End the thread."""
        self._orders.stop()


class OrdersValidator(RecordValidatorBase):
    """Accepts records of the run's orders only if its controller signed them. Runs in the DHT's process.

    Values without subkeys are refused under all other keys: with a later expiration, such a value would replace
    everything that others have stored under the key.

    The expiration of orders is determined exactly by their version, so an old copy cannot outlast a newer one.
    """

    def __init__(self, run_id: str, public_key: str) -> None:
        self._run_id, self._public_key = run_id, public_key
        self._key = DHTID.generate(source=orders_key(run_id)).to_bytes()
        self._newest = -1

    def validate(self, record: DHTRecord) -> bool:
        """Whether the record has a subkey, or holds orders that are not older than the known ones."""
        plain = record.subkey == MSGPackSerializer.dumps(None)
        if record.key != self._key:
            return not plain
        if not plain or len(record.value) > MAX_BYTES + 8:
            return False
        try:
            blob: Any = MSGPackSerializer.loads(record.value)
            orders = verify(bytes(blob), self._public_key, self._run_id, self._newest)
        except Exception as error:  # noqa: BLE001 - msgpack raises many types of errors; all mean invalid orders
            _log.info("refused a record that holds no valid orders: %r", error)
            return False
        if record.expiration_time != orders_expiration_s(orders.version):
            return False
        self._newest = orders.version
        return True


async def _look(_dht: Any, node: Any, key: str, wide: bool) -> bytes | None:
    """Return the newest orders on this node or, with `wide`, on the nodes nearest the key. Runs in the DHT's process."""
    await disconnect_strangers(node)
    if wide:
        await node.get(key, latest=True)  # its result is kept in the cache
    key_id = DHTID.generate(source=key)
    found = [
        e for e in (s.get(key_id) for s in (node.protocol.storage, node.protocol.cache)) if e is not None
    ]
    if not found:
        return None
    newest = max(found, key=lambda entry: entry.expiration_time)
    value: Any = MSGPackSerializer.loads(newest.value)
    return value if isinstance(value, bytes) and len(value) <= MAX_BYTES else None
