"""Which values Hivemind 1.1.12's DHT may store and hand on, whoever sent them. Pure; `patches.py` applies it."""

# pyright: reportMissingTypeStubs=false, reportPrivateUsage=false
from __future__ import annotations

import math
import re
from typing import Any

from hivemind.dht.storage import DictionaryDHTValue
from hivemind.utils import MSGPackSerializer

MOST_BYTES = 64 * 1024  # of one entry; the largest of ours have 32 KiB
MOST_ENTRIES = 2048  # of one key
MOST_AHEAD_S = (
    2 * 3600.0
)  # of an entry that nobody signed: its life of minutes, and what clocks may differ by
_SUBKEY_BYTES = 1024
_DICTIONARY: Any = DictionaryDHTValue
_SIGNATURE = re.compile(rb"\[signature:(.+?)\]")


def is_sound(subkey: object, value: object, expiration: object, now_s: float) -> bool:
    """Whether an entry can be read by anybody. `subkey` None: the key has this value alone. Never raises.

    Subkeys are bytes: Hivemind orders entries that expire at the same time by their subkeys, and those of two types raise there.

    An entry without an owner's key in its subkey expires `MOST_AHEAD_S` from `now_s` (DHT time) at the latest: anybody
    may have written it.
    """
    if not isinstance(value, bytes) or len(value) > MOST_BYTES:
        return False
    if not isinstance(expiration, int | float) or not math.isfinite(expiration):
        return False
    owned = isinstance(subkey, bytes) and b"[owner:" in subkey
    if subkey is not None:
        if not isinstance(subkey, bytes) or len(subkey) > _SUBKEY_BYTES:
            return False
        if not owned and expiration > now_s + MOST_AHEAD_S:
            return False
    return _is_readable(_SIGNATURE.sub(b"", value)) and (owned or _is_readable(value))


def sound_value(value: object, now_s: float) -> Any:
    """A node's answer, without what is not sound; None when nothing is left. Never raises."""
    if isinstance(value, bytes):
        return value if is_sound(None, value, 0.0, now_s) else None
    kept = [
        (subkey, entry)
        for subkey, entry in entries_of(value)
        if subkey is not None and is_sound(subkey, entry.value, entry.expiration_time, now_s)
    ]
    if not kept:
        return None
    found: Any = _DICTIONARY()
    with found.freeze():
        for subkey, entry in kept:
            found.store(subkey, entry.value, entry.expiration_time)
    return found


def entries_of(value: object) -> list[tuple[Any, Any]]:
    """Subkeys and entries (`value`, `expiration_time`) of a key's dictionary, the expired too; no flood's rest. Never raises."""
    if not isinstance(value, _DICTIONARY):
        return []
    dictionary: Any = value
    with dictionary.freeze():
        return list(dictionary.items())[:MOST_ENTRIES]


def _is_readable(value: bytes) -> bool:
    try:
        MSGPackSerializer.loads(value)
    except Exception:  # noqa: BLE001 - msgpack's and its extensions' errors are of many types
        return False
    return True
