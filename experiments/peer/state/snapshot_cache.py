"""What a donor keeps for peers that download its state: one snapshot and the updates that followed it."""

from __future__ import annotations

from collections.abc import Callable

from experiments.peer.state.encoding import Blob

# Averaged gradients kept after a snapshot. With Adam this many are as large as the state, so that more would not pay off.
KEPT_UPDATES = 5


class SnapshotCache:
    """Cached snapshot and updates of a donor.

    Stays empty until a peer requests them: together they take twice the state's size in memory.
    """

    def __init__(self) -> None:
        self._epoch: int | None = None
        self._snapshot: Blob | None = None
        self._updates: dict[int, Blob] = {}

    def with_key(self, key: str) -> Blob | None:
        """Return the snapshot with this key, to resume an interrupted download."""
        return self._snapshot if self._snapshot is not None and self._snapshot.key == key else None

    def snapshot(self, epoch: int, pack: Callable[[], Blob]) -> Blob:
        """Return the snapshot of the current `epoch`, packing it if it is not cached."""
        if self._snapshot is None or self._epoch != epoch:
            self._epoch, self._snapshot = epoch, pack()
        return self._snapshot

    def update(self, epoch: int, pack: Callable[[], Blob | None]) -> Blob | None:
        """Return the update that leads to `epoch`, packing it if it is not cached; None if it no longer exists."""
        if epoch not in self._updates and (blob := pack()) is not None:
            self._updates[epoch] = blob
        return self._updates.get(epoch)

    def epoch_ended(self, epoch: int, pack: Callable[[], Blob | None]) -> None:
        """Call when the weights have become those of `epoch`. Its update is kept if there is a recent snapshot."""
        oldest = epoch - KEPT_UPDATES
        if self._epoch is None or self._epoch < oldest or self.update(epoch, pack) is None:
            self.clear()
        self._updates = {e: blob for e, blob in self._updates.items() if e > oldest}

    def oldest_update(self, epoch: int, last_available: bool) -> int:
        """Return the oldest of the gapless updates that lead to `epoch`; 0: none.

        `last_available`: whether the last update can be packed.
        """
        held = {*self._updates, epoch} if last_available else set(self._updates)
        oldest = epoch + 1
        while oldest - 1 in held:
            oldest -= 1
        return oldest if oldest <= epoch else 0

    def clear(self) -> None:
        """Drop everything. Call it when the weights were replaced, since no update leads to the new ones."""
        self._epoch, self._snapshot, self._updates = None, None, {}
