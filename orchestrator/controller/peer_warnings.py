"""Keeps, by VM, what its peer warns of (meta's `peer_warnings`)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from cloud.provider import Observed
from cloud.vm_report import printable
from metrics.store.database import RunStore

_MOST = 20  # of one VM, the newest
_LONGEST_TEXT = 500


class PeerWarnings:
    """The warnings of one run's peers. A VM has an entry once its peer has warned."""

    def __init__(self, store: RunStore) -> None:
        """Raises StoreError."""
        self._store = store
        self._known: dict[str, Any] = dict(store.meta("peer_warnings") or {})

    def write(self, seen: Iterable[Observed]) -> None:
        """Store what the provider's list has that is new. An invalid report changes nothing. Raises StoreError."""
        fresh = {o.vm: texts for o in seen if (texts := warnings_of(o.status)) is not None}
        if any(self._known.get(vm, []) != texts for vm, texts in fresh.items()):
            self._known = {vm: texts for vm, texts in {**self._known, **fresh}.items() if texts}
            self._store.set_meta("peer_warnings", self._known)


def warnings_of(status: Mapping[str, Any]) -> list[str] | None:
    """The newest warnings of a status.json that the run has no other record of; None if they are absent or invalid."""
    texts, recorded = status.get("warnings"), status.get("recorded_warnings")
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        return None
    known = {n for n in recorded if type(n) is int} if isinstance(recorded, list) else set[int]()
    shown = [printable(text, _LONGEST_TEXT).strip() for n, text in enumerate(texts) if n not in known]
    return [text for text in dict.fromkeys(shown) if text][-_MOST:]
