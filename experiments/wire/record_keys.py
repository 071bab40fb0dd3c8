"""Keys that the controller generates in advance for a peer: its record key and its libp2p identity.

Needs only `cryptography`; the formats are Hivemind 1.1.12's own (`hivemind.utils.crypto`,
`hivemind.p2p.P2P.generate_identity`), so the controller need not import Hivemind.
"""

from __future__ import annotations

import hashlib

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

_BASE58 = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"


def generate_record_key() -> tuple[bytes, str]:
    """Generate an RSA-2048 key: (content of record.key as PEM, OpenSSH text of the public key for the roster)."""
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    pem = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.TraditionalOpenSSL,
        serialization.NoEncryption(),
    )
    public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    return pem, public.decode()


def generate_identity() -> tuple[bytes, str]:
    """Generate a libp2p identity: (content of identity.key, peer id in base58).

    The file is libp2p's `PrivateKey` protobuf with an RSA key in PKCS#1 DER; the peer id is the
    sha2-256 multihash of the `PublicKey` protobuf
    (https://github.com/libp2p/specs/blob/master/peer-ids/peer-ids.md).
    """
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    private = key.private_bytes(
        serialization.Encoding.DER,
        serialization.PrivateFormat.TraditionalOpenSSL,
        serialization.NoEncryption(),
    )
    public = key.public_key().public_bytes(
        serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    digest = hashlib.sha256(_rsa_key_message(public)).digest()
    return _rsa_key_message(private), _base58(b"\x12\x20" + digest)  # 0x12: sha2-256, 0x20: 32 bytes


def _rsa_key_message(der: bytes) -> bytes:
    """Encode the protobuf message {1: key type RSA (0), 2: der}."""
    return b"\x08\x00\x12" + _varint(len(der)) + der


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def _base58(data: bytes) -> str:
    number, digits = int.from_bytes(data, "big"), ""
    while number:
        number, digit = divmod(number, 58)
        digits = _BASE58[digit] + digits
    return "1" * (len(data) - len(data.lstrip(b"\0"))) + digits
