"""What a donor keeps for those that download its state: one snapshot, and the updates that came after it."""

from __future__ import annotations

from collections.abc import Callable

from experiments.peer.state.encoding import Blob

# Averaged gradients kept from a snapshot on: with Adam together as large as the state, which is then the shorter way.
KEPT_UPDATES = 5


class Shelf:
    """Holds nothing while nobody asks: a snapshot and its updates cost a peer the state's size in memory twice."""

    def __init__(self) -> None:
        self._epoch: int | None = None
        self._snapshot: Blob | None = None
        self._updates: dict[int, Blob] = {}

    def with_key(self, key: str) -> Blob | None:
        """The snapshot a cut download was reading."""
        return self._snapshot if self._snapshot is not None and self._snapshot.key == key else None

    def snapshot(self, epoch: int, pack: Callable[[], Blob]) -> Blob:
        """Of `epoch`, the present one; packed when it is not here."""
        if self._snapshot is None or self._epoch != epoch:
            self._epoch, self._snapshot = epoch, pack()
        return self._snapshot

    def update(self, epoch: int, pack: Callable[[], Blob | None]) -> Blob | None:
        """The one that leads to `epoch`; packed when it is not here. None: it is gone."""
        if epoch not in self._updates and (blob := pack()) is not None:
            self._updates[epoch] = blob
        return self._updates.get(epoch)

    def epoch_ended(self, epoch: int, pack: Callable[[], Blob | None]) -> None:
        """The weights are those of `epoch` now. Its update is kept if a snapshot was taken lately."""
        oldest = epoch - KEPT_UPDATES
        if self._epoch is None or self._epoch < oldest or self.update(epoch, pack) is None:
            self.clear()
        self._updates = {e: blob for e, blob in self._updates.items() if e > oldest}

    def oldest_update(self, epoch: int, last_is_here: bool) -> int:
        """Of those that lead to `epoch` without a gap; 0: there is none. `last_is_here`: it can be packed."""
        held = {*self._updates, epoch} if last_is_here else set(self._updates)
        oldest = epoch + 1
        while oldest - 1 in held:
            oldest -= 1
        return oldest if oldest <= epoch else 0

    def clear(self) -> None:
        """Other weights: none of this leads to them."""
        self._epoch, self._snapshot, self._updates = None, None, {}
