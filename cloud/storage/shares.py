"""Which slot reads which shards: balanced, and stable when slots come and go."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b

from cloud.storage.errors import BadUrlError


def shards_for(slot: str, slots: Sequence[str], shards: Sequence[str]) -> tuple[str, ...]:
    """The share of `shards` that `slot` reads while `slots` are there; pure, the same on every peer.

    Each shard belongs to exactly one slot and the shares' sizes differ by at most one. Where there
    are more slots than shards, each slot reads one shard, and the slots spread over the shards as
    evenly. When a slot comes or goes, 1.0 (few slots) to 1.7 times what must move does: pairs are
    weighed by a hash (rendezvous hashing) and the heaviest are taken first, up to each side's
    capacity; equal shares without a memory cost that. The share is sorted; order and repetition of
    `slots` and `shards` do not matter.
    Raises BadUrlError when there are no shards, ValueError when `slot` is not one of `slots`.
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
    """Each item to one owner; the sizes differ by at most one."""
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
            extra -= 1  # one more than the least, for so many owners as there are left-over items
        mine.append(item)
        placed.add(item)
    return share


def _weight(owner: str, item: str) -> bytes:
    return blake2b(f"{owner}\0{item}".encode(), digest_size=8).digest()
