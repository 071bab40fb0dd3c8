"""The controller's orders to its peers: the members of the swarm, the lease, and whether to pause.

There is one signed document per run; newer ones have a larger version. The controller signs it with the run's own key
(Ed25519), the monitor publishes it in the DHT, and every peer verifies it. So no one else can admit a peer, renew the
lease or pause the swarm, and old orders cannot be replayed.

On the wire: 64 bytes of signature, then compressed JSON. A peer takes about 75 bytes (its id and the digest of its record
key cannot be compressed), so `MAX_BYTES` is enough for `MAX_PEERS`.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
import zlib
from dataclasses import dataclass
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ed25519

ORDERS_FILE = "orders.bin"  # the newest signed orders, in the folder of the monitor's config
# Hivemind's pipe to its DHT process is not locked, and above 16 KiB Python writes in two parts.
MAX_BYTES = 12 * 1024
MAX_PEERS = 150  # with our VM names; the monitor is one more
_MAX_JSON_BYTES = 8 * MAX_BYTES
_SIGNATURE_BYTES = 64
_DOMAIN = b"orch orders 1\n"  # domain separation: the signature is not valid for any other document
_MAX_VERSION = 10**15
_MAX_EPOCH = 10**9
_EXPIRATION_S = 1e10  # unix: the year 2286
_REASONS = frozenset({"signature", "run", "stale", "size", "form"})


class OrdersError(Exception):
    """Orders cannot be signed or are invalid. `reason`: signature, run, stale, size or form."""

    def __init__(self, reason: str, detail: str) -> None:
        if reason not in _REASONS:
            raise ValueError(f"{reason!r} is not a reason of OrdersError")
        super().__init__(f"{reason}: {detail}")
        self.reason = reason


@dataclass(frozen=True, slots=True)
class OrderPeer:
    """One node that belongs to the swarm."""

    vm: str
    peer_id: str  # libp2p, base58
    record_key: str  # digest of the key that signs its records (`record_key_digest`); "": none


@dataclass(frozen=True, slots=True)
class Orders:
    """Orders of the controller at one point in time.

    Times are by the controller's clock, which may be wrong. Peers only use the length of the lease and the differences
    between issue times, on their own monotonic clock (`experiments.wire.lease.Lease`).
    """

    run_id: str
    version: int  # grows with each orders of the run, independent of the clock; larger is newer
    issued_s: float
    lease_until_s: float
    paused: bool
    peers: tuple[OrderPeer, ...]
    last_epoch: int | None = None  # the peers are done after it; None: after the last one of their config

    @property
    def lease_s(self) -> float:
        """Length of the lease in seconds. A peer without newer orders for this long exits."""
        return self.lease_until_s - self.issued_s


def generate_run_key() -> tuple[bytes, str]:
    """Generate a key for a run: (PEM of the private key, OpenSSH text of the public key)."""
    key = ed25519.Ed25519PrivateKey.generate()
    pem = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    return pem, public.decode()


def orders_key(run_id: str) -> str:
    """Return the DHT key of the orders. Its value is the blob, its expiration `orders_expiration_s`."""
    return f"{run_id}_orders"


def orders_expiration_s(version: int) -> float:
    """Return the DHT expiration of orders of this version, in unix seconds.

    It grows with the version, so that nodes keep the newest orders. It is in the future by any clock, so that no node
    refuses or drops them because its clock differs from the controller's.
    """
    return _EXPIRATION_S + version / 1000


def record_key_digest(record_public_key: str) -> str:
    """Return the SHA-256 of an OpenSSH public key's text, as 43 characters of URL-safe base64."""
    digest = hashlib.sha256(record_public_key.encode()).digest()
    return base64.urlsafe_b64encode(digest).decode().rstrip("=")


def sign(orders: Orders, private_pem: bytes) -> bytes:
    """Sign orders and return them as sent over the wire.

    Raises OrdersError: "size" if there are too many peers for `MAX_BYTES`, "form" for values that readers would reject,
    "signature" if `private_pem` is not an Ed25519 key.
    """
    try:
        key = serialization.load_pem_private_key(private_pem, password=None)
    except (ValueError, TypeError) as error:
        raise OrdersError("signature", f"the run's key cannot be read: {error}") from error
    if not isinstance(key, ed25519.Ed25519PrivateKey):
        raise OrdersError("signature", "the run's key is not an Ed25519 key")
    document = {
        "run": orders.run_id,
        "version": orders.version,
        "issued": float(orders.issued_s),
        "until": float(orders.lease_until_s),
        "paused": orders.paused,
        "peers": [[p.vm, p.peer_id, p.record_key] for p in orders.peers],
        **({} if orders.last_epoch is None else {"last": orders.last_epoch}),
    }
    _parse(document)
    payload = zlib.compress(json.dumps(document, separators=(",", ":")).encode(), 9)
    blob = key.sign(_DOMAIN + payload) + payload
    if len(blob) > MAX_BYTES:
        raise OrdersError(
            "size", f"{len(orders.peers)} peers take {len(blob)} bytes, the maximum is {MAX_BYTES}"
        )
    return blob


def verify(blob: bytes, public_key: str, run_id: str, newest_version: int) -> Orders:
    """Verify `blob` and return its orders.

    `public_key`: OpenSSH text of the run's key. `newest_version`: version of the newest known orders, -1 for none; the same
    version is accepted again. Raises OrdersError: "size", "signature" (not by this key), "form", "run" (of another run),
    "stale" (older than the newest known orders).
    """
    if len(blob) > MAX_BYTES:
        raise OrdersError("size", f"{len(blob)} bytes, the maximum is {MAX_BYTES}")
    signature, payload = blob[:_SIGNATURE_BYTES], blob[_SIGNATURE_BYTES:]
    try:
        key = serialization.load_ssh_public_key(public_key.encode())
        if not isinstance(key, ed25519.Ed25519PublicKey):
            raise OrdersError("signature", "the run's public key is not an Ed25519 key")
        key.verify(signature, _DOMAIN + payload)
    except (ValueError, InvalidSignature) as error:
        raise OrdersError("signature", "not signed by the run's key") from error
    orders = _parse(_unpack(payload))
    if orders.run_id != run_id:
        raise OrdersError("run", f"orders of run {orders.run_id!r}, expected {run_id!r}")
    if orders.version < newest_version:
        raise OrdersError("stale", f"version {orders.version} after {newest_version}")
    return orders


def _unpack(payload: bytes) -> Any:
    try:
        unpacking = zlib.decompressobj()
        text = unpacking.decompress(payload, _MAX_JSON_BYTES)
        if not unpacking.eof or unpacking.unused_data:
            raise OrdersError("form", "truncated, too long or with trailing data")
        return json.loads(text)
    except (zlib.error, ValueError, RecursionError) as error:
        raise OrdersError("form", f"not compressed JSON: {error}") from error


def _parse(raw: Any) -> Orders:
    """Parse strictly: exactly these keys and types, finite times, no duplicate name or peer id. "last" may be absent."""
    try:
        run, version, issued, until, paused, rows = (
            raw[name] for name in ("run", "version", "issued", "until", "paused", "peers")
        )
        peers = tuple(OrderPeer(*row) for row in rows)
    except (KeyError, TypeError) as error:
        raise OrdersError("form", f"not orders: {error!r}") from error
    texts = [run, *(text for p in peers for text in (p.vm, p.peer_id, p.record_key))]
    last: Any = raw.get("last")
    if len(raw) != 6 + ("last" in raw) or not all(
        isinstance(text, str) and len(text) <= 128 for text in texts
    ):
        raise OrdersError("form", "unknown keys, or an invalid name")
    if type(version) is not int or not 0 <= version <= _MAX_VERSION or type(paused) is not bool:
        raise OrdersError("form", "an invalid version or pause")
    if "last" in raw and (type(last) is not int or not 1 <= last <= _MAX_EPOCH):
        raise OrdersError("form", "an invalid last epoch")
    if type(issued) is not float or type(until) is not float or not 0.0 <= issued <= until < math.inf:
        raise OrdersError("form", "invalid times")
    for names in ([p.vm for p in peers], [p.peer_id for p in peers]):
        if len(set(names)) != len(names) or not all(names):
            raise OrdersError("form", "a duplicate peer, or one without a name")
    return Orders(run, version, issued, until, paused, peers, last)
