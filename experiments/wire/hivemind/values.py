"""What Hivemind 1.1.12's DHT may store and hand on, whoever sent it (docs/hivemind.md).

A node may send anything: values that are no bytes or that msgpack cannot read, entries for months ahead, dictionaries of
a size that is no number. Hivemind reads them when somebody asks for the key, in the asker's search: one such entry,
and nobody who asks that node gets any value of the key. Here they are refused where they come in. Needed in
every process that runs a DHT node.
"""

# pyright: reportMissingTypeStubs=false, reportPrivateUsage=false
from __future__ import annotations

import logging
import math
import re
from collections.abc import Collection
from typing import Any

from hivemind.dht.protocol import DHTProtocol
from hivemind.dht.storage import DictionaryDHTValue
from hivemind.utils import MSGPackSerializer, get_dht_time
from hivemind.utils.timed_storage import ValueWithExpiration

_log = logging.getLogger(__name__)

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


def guard_values() -> None:
    """From now on this process's DHT node stores and hands on only what is sound. Safe to call twice."""
    protocol: Any = DHTProtocol
    if hasattr(protocol.call_find, "unguarded"):
        return
    call_find, record, dictionary = (
        protocol.call_find,
        protocol._validate_record,
        protocol._validate_dictionary,
    )

    async def guarded_call_find(self: Any, peer: Any, keys: Collection[Any]) -> Any:
        answer = await call_find(self, peer, keys)
        if answer is None:
            return None
        now_s = get_dht_time()
        return {key: (_sound_item(item, now_s), nearest) for key, (item, nearest) in answer.items()}

    def guarded_record(self: Any, key: bytes, subkey: bytes, value: bytes, expiration: float) -> bool:
        try:
            plain: Any = MSGPackSerializer.loads(subkey)
            if not is_sound(plain, value, expiration, get_dht_time()):
                return False
            return bool(record(self, key, subkey, value, expiration))
        except Exception as error:  # noqa: BLE001 - a validator's; whatever it is, this is no record of ours
            _log.info("a record that cannot be judged: %r", error)
            return False

    def guarded_dictionary(self: Any, key: bytes, values: Any) -> bool:
        try:
            now_s = get_dht_time()
            with values.freeze():
                few = len(values) <= MOST_ENTRIES
            sound = all(is_sound(k, e.value, e.expiration_time, now_s) for k, e in entries_of(values))
            return few and sound and bool(dictionary(self, key, values))
        except Exception as error:  # noqa: BLE001 - as above
            _log.info("values that cannot be judged: %r", error)
            return False

    guarded_call_find.unguarded = call_find  # type: ignore[attr-defined]
    protocol.call_find = guarded_call_find
    protocol._validate_record = guarded_record
    protocol._validate_dictionary = guarded_dictionary


def _sound_item(item: Any, now_s: float) -> Any:
    if item is None or not isinstance(item.expiration_time, int | float):
        return None
    value = sound_value(item.value, now_s)
    return None if value is None else ValueWithExpiration(value, item.expiration_time)


def _is_readable(value: bytes) -> bool:
    try:
        MSGPackSerializer.loads(value)
    except Exception:  # noqa: BLE001 - msgpack's and its extensions' errors are of many types
        return False
    return True
