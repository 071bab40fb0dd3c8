"""Warnings of the peers, as sentences of the run. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from metrics.readable import few

MOST_SHOWN = 20  # sentences; the others are counted


def peer_warnings_of(
    texts: Mapping[str, Sequence[str]], slot_of: Callable[[str], str], slot: str = ""
) -> list[str]:
    """Return "us-0, eu-0: TEXT" for each text of meta's `peer_warnings`, each VM's newest first.

    `slot`: of this slot's VMs only.
    """
    ranked = sorted(
        (rank, vm, text)
        for vm, of_vm in texts.items()
        if not slot or slot_of(vm) == slot
        for rank, text in enumerate(reversed(of_vm))
    )
    slots: dict[str, set[str]] = {}
    for _, vm, text in ranked:
        slots.setdefault(text, set()).add(slot_of(vm))
    found = [f"{few(sorted(names), between=', ')}: {text}" for text, names in slots.items()]
    others = len(found) - MOST_SHOWN
    more = [f"The peers have {others} more warning{'' if others == 1 else 's'}."] if others > 0 else []
    return [*found[:MOST_SHOWN], *more]
