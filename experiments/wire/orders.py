"""The controller's orders to its peers: who belongs to the swarm, until when, and whether to go on.

One signed document a run, newer ones with a greater version. The controller signs it with the run's own
key (Ed25519), the monitor publishes it in the DHT, every peer checks it by itself. So nobody else can let a
peer in, keep a swarm alive or pause it, and what was true once cannot be said again.

On the wire: 64 bytes of signature, then compressed JSON. A peer takes about 75 bytes (its id and its record
key's digest cannot be compressed), so `MAX_BYTES` is room for `MAX_PEERS`.
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

ORDERS_FILE = "orders.bin"  # beside the monitor's config: the newest signed orders
# Hivemind's pipe to its DHT process is not locked: above 16 KiB Python writes in two parts.
MAX_BYTES = 12 * 1024
MAX_PEERS = 150  # with names as ours; the monitor is one more
_MAX_JSON_BYTES = 8 * MAX_BYTES
_SIGNATURE_BYTES = 64
_DOMAIN = b"orch orders 1\n"  # the run's key signs nothing that could pass for something else
_MAX_VERSION = 10**15
_EXPIRATION_S = 1e10  # unix: the year 2286
_REASONS = frozenset({"signature", "run", "stale", "size", "form"})


class OrdersError(Exception):
    """Orders that cannot be signed or are not obeyed. `reason`: signature, run, stale, size or form."""

    def __init__(self, reason: str, detail: str) -> None:
        if reason not in _REASONS:
            raise ValueError(f"{reason!r} is no reason of OrdersError")
        super().__init__(f"{reason}: {detail}")
        self.reason = reason


@dataclass(frozen=True, slots=True)
class OrderPeer:
    """One node that belongs to the swarm."""

    vm: str
    peer_id: str  # libp2p, base58
    record_key: str  # digest of the key its records are signed with (`record_key_digest`); "": none


@dataclass(frozen=True, slots=True)
class Orders:
    """What the controller says at one moment. Times are by the controller's clock, which may be wrong: of the lease only its
    length counts, from the moment in which a peer receives the orders and on the peer's own monotonic clock."""

    run_id: str
    version: (
        int  # grows with each orders of the run, whatever the clock does; newer is what has a greater one
    )
    issued_s: float
    lease_until_s: float
    paused: bool
    peers: tuple[OrderPeer, ...]

    @property
    def lease_s(self) -> float:
        """A peer that hears nothing newer for so long stops by itself. Seconds."""
        return self.lease_until_s - self.issued_s


def generate_run_key() -> tuple[bytes, str]:
    """A new key for a run: (PEM of the private half, OpenSSH text of the public one)."""
    key = ed25519.Ed25519PrivateKey.generate()
    pem = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    return pem, public.decode()


def orders_key(run_id: str) -> str:
    """The DHT key under which the orders are: the value is the blob, the expiration `orders_expiration_s`."""
    return f"{run_id}_orders"


def orders_expiration_s(version: int) -> float:
    """The DHT expiration of orders of this version, unix seconds.

    It grows with the version, so that nodes keep the newest, and is in the future by any clock: no node refuses or
    forgets them because its clock differs from the controller's.
    """
    return _EXPIRATION_S + version / 1000


def record_key_digest(record_public_key: str) -> str:
    """SHA-256 of an OpenSSH public key's text, as 43 characters of URL-safe base64."""
    digest = hashlib.sha256(record_public_key.encode()).digest()
    return base64.urlsafe_b64encode(digest).decode().rstrip("=")


def sign(orders: Orders, private_pem: bytes) -> bytes:
    """The orders as they go over the wire.

    Raises OrdersError: "size" when there are too many peers for `MAX_BYTES`, "form" for values no reader
    would take, "signature" when `private_pem` is no Ed25519 key.
    """
    try:
        key = serialization.load_pem_private_key(private_pem, password=None)
    except (ValueError, TypeError) as error:
        raise OrdersError("signature", f"the run's key cannot be read: {error}") from error
    if not isinstance(key, ed25519.Ed25519PrivateKey):
        raise OrdersError("signature", "the run's key is no Ed25519 key")
    document = {
        "run": orders.run_id,
        "version": orders.version,
        "issued": float(orders.issued_s),
        "until": float(orders.lease_until_s),
        "paused": orders.paused,
        "peers": [[p.vm, p.peer_id, p.record_key] for p in orders.peers],
    }
    _parse(document)
    payload = zlib.compress(json.dumps(document, separators=(",", ":")).encode(), 9)
    blob = key.sign(_DOMAIN + payload) + payload
    if len(blob) > MAX_BYTES:
        raise OrdersError("size", f"{len(orders.peers)} peers take {len(blob)} of {MAX_BYTES} bytes")
    return blob


def verify(blob: bytes, public_key: str, run_id: str, newest_version: int) -> Orders:
    """The orders in `blob`, when the run's controller gave them.

    `public_key`: OpenSSH text. `newest_version`: of the newest orders known, -1 for none; the same again is
    no error. Raises OrdersError: "size", "signature" (not by this key), "form", "run" (another run's),
    "stale" (older than the newest known).
    """
    if len(blob) > MAX_BYTES:
        raise OrdersError("size", f"{len(blob)} bytes, {MAX_BYTES} are allowed")
    signature, payload = blob[:_SIGNATURE_BYTES], blob[_SIGNATURE_BYTES:]
    try:
        key = serialization.load_ssh_public_key(public_key.encode())
        if not isinstance(key, ed25519.Ed25519PublicKey):
            raise OrdersError("signature", "the run's public key is no Ed25519 key")
        key.verify(signature, _DOMAIN + payload)
    except (ValueError, InvalidSignature) as error:
        raise OrdersError("signature", "not by the run's key") from error
    orders = _parse(_unpack(payload))
    if orders.run_id != run_id:
        raise OrdersError("run", f"orders of {orders.run_id!r}, this is {run_id!r}")
    if orders.version < newest_version:
        raise OrdersError("stale", f"version {orders.version} after {newest_version}")
    return orders


def _unpack(payload: bytes) -> Any:
    try:
        unpacking = zlib.decompressobj()
        text = unpacking.decompress(payload, _MAX_JSON_BYTES)
        if not unpacking.eof or unpacking.unused_data:
            raise OrdersError("form", "cut off, too long or with something behind it")
        return json.loads(text)
    except (zlib.error, ValueError, RecursionError) as error:
        raise OrdersError("form", f"not compressed JSON: {error}") from error


def _parse(raw: Any) -> Orders:
    """Strict: exactly these keys and types, finite times, no name or peer id twice."""
    try:
        run, version, issued, until, paused, rows = (
            raw[name] for name in ("run", "version", "issued", "until", "paused", "peers")
        )
        peers = tuple(OrderPeer(*row) for row in rows)
    except (KeyError, TypeError) as error:
        raise OrdersError("form", f"not orders: {error!r}") from error
    texts = [run, *(text for p in peers for text in (p.vm, p.peer_id, p.record_key))]
    if len(raw) != 6 or not all(isinstance(text, str) and len(text) <= 128 for text in texts):
        raise OrdersError("form", "unknown keys, or a name that is none")
    if type(version) is not int or not 0 <= version <= _MAX_VERSION or type(paused) is not bool:
        raise OrdersError("form", "a version or a pause that is none")
    if type(issued) is not float or type(until) is not float or not 0.0 <= issued <= until < math.inf:
        raise OrdersError("form", "times that cannot be")
    for names in ([p.vm for p in peers], [p.peer_id for p in peers]):
        if len(set(names)) != len(names) or not all(names):
            raise OrdersError("form", "a peer twice, or without a name")
    return Orders(run, version, issued, until, paused, peers)
