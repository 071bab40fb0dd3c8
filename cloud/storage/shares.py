"""Assign shards to slots: balanced, and stable when slots join or leave."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b

from cloud.storage.errors import BadUrlError


def shards_for(slot: str, slots: Sequence[str], shards: Sequence[str]) -> tuple[str, ...]:
    """Return the share of `shards` that `slot` reads while `slots` are present; pure, the same on every peer.

    Each shard belongs to exactly one slot, and the sizes of the shares differ by at most one. With more slots than shards,
    each slot reads one shard, and the slots are spread over the shards just as evenly. When a slot joins or leaves, 1.0
    (few slots) to 1.7 times the necessary minimum moves: pairs are weighted by a hash (rendezvous hashing) and assigned
    by descending weight up to each side's capacity; this is the price of equal shares without stored state. The share is
    sorted; order and repetition of `slots` and `shards` do not matter.

    Raises BadUrlError if there are no shards, ValueError if `slot` is not one of `slots`.
    """
    distinct_slots, distinct_shards = sorted(set(slots)), sorted(set(shards))
    if not distinct_shards:
        raise BadUrlError("there are no shards to read; give the experiment's data a pattern that names some")
    if slot not in distinct_slots:
        raise ValueError(f"slot '{slot}' is not one of {', '.join(distinct_slots) or 'no slots'}")
    if len(distinct_slots) > len(distinct_shards):
        for shard, readers in _assign(distinct_shards, distinct_slots).items():
            if slot in readers:
                return (shard,)
    return tuple(sorted(_assign(distinct_slots, distinct_shards)[slot]))


def _assign(owners: Sequence[str], items: Sequence[str]) -> dict[str, list[str]]:
    """Assign each item to one owner; the numbers of items differ by at most one."""
    least, extra = divmod(len(items), len(owners))
    pairs = sorted(
        ((_weight(owner, item), owner, item) for owner in owners for item in items),
        reverse=True,
    )
    share: dict[str, list[str]] = {owner: [] for owner in owners}
    placed: set[str] = set()
    for _, owner, item in pairs:
        mine = share[owner]
        if item in placed or len(mine) > least:
            continue
        if len(mine) == least:
            if not extra:
                continue
            extra -= 1  # this owner takes one of the remaining items
        mine.append(item)
        placed.add(item)
    return share


def _weight(owner: str, item: str) -> bytes:
    return blake2b(f"{owner}\0{item}".encode(), digest_size=8).digest()
