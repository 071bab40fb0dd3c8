"""Validation of values that Hivemind 1.1.12's DHT stores and forwards. Pure; applied by `patches.py`."""

# pyright: reportMissingTypeStubs=false, reportPrivateUsage=false
from __future__ import annotations

import math
import re
from typing import Any

from hivemind.dht.storage import DictionaryDHTValue
from hivemind.utils import MSGPackSerializer

MAX_ENTRY_BYTES = 64 * 1024  # our largest entries have 32 KiB
MAX_ENTRIES = 2048  # per key
MAX_AHEAD_S = 2 * 3600.0  # of an unsigned entry: its lifetime of minutes, and differences between clocks
_SUBKEY_BYTES = 1024
_DICTIONARY: Any = DictionaryDHTValue
_SIGNATURE = re.compile(rb"\[signature:(.+?)\]")


def is_sound(subkey: object, value: object, expiration: object, now_s: float) -> bool:
    """Whether every node can read an entry. `subkey` None: the key has a single value. Never raises.

    Subkeys must be bytes: Hivemind sorts entries with the same expiration by their subkeys, which fails for mixed types.

    An entry without an owner's key in its subkey may have been written by anyone, so it may expire at most `MAX_AHEAD_S`
    after `now_s` (DHT time).
    """
    if not isinstance(value, bytes) or len(value) > MAX_ENTRY_BYTES:
        return False
    if not isinstance(expiration, int | float) or not math.isfinite(expiration):
        return False
    owned = isinstance(subkey, bytes) and b"[owner:" in subkey
    if subkey is not None:
        if not isinstance(subkey, bytes) or len(subkey) > _SUBKEY_BYTES:
            return False
        if not owned and expiration > now_s + MAX_AHEAD_S:
            return False
    return _is_readable(_SIGNATURE.sub(b"", value)) and (owned or _is_readable(value))


def sound_value(value: object, now_s: float) -> Any:
    """Return a node's answer without its unsound entries. None if nothing is left. Never raises."""
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
    """Return subkeys and entries (`value`, `expiration_time`) of a key's dictionary, expired ones included. Never raises.

    At most `MAX_ENTRIES` are returned.
    """
    if not isinstance(value, _DICTIONARY):
        return []
    dictionary: Any = value
    with dictionary.freeze():
        return list(dictionary.items())[:MAX_ENTRIES]


def _is_readable(value: bytes) -> bool:
    try:
        MSGPackSerializer.loads(value)
    except Exception:  # noqa: BLE001 - msgpack's and its extensions' errors are of many types
        return False
    return True
