"""When the emulated provider preempts a VM, and which requests it refuses. Decisions only."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping
from pathlib import Path

from cloud.provider import InvalidRequestError, NoCapacityError


def lifetime_s(seed: int, vm: str, rate_per_h: float) -> float | None:
    """Seconds from a VM's start to its preemption, exponentially distributed; None: never.

    Depends on the arguments only, so that a run can be repeated.
    """
    if rate_per_h <= 0:
        return None
    return random.Random(f"{seed}/{vm}").expovariate(rate_per_h / 3600)


def victim(seed: int, at_s: float, alive: Iterable[str]) -> str | None:
    """Choose the VM that the preemption planned at `at_s` hits; None: no VM is alive."""
    names = sorted(alive)
    return random.Random(f"{seed}/{at_s}").choice(names) if names else None


def belongs(vm: str, slot: str) -> bool:
    """Whether a VM ("<run id>-<slot>-<generation>") belongs to `slot` ("<run id>-<slot>"; "" matches any)."""
    return not slot or vm.rpartition("-")[0] == slot


def check_capacity(location: str, capacity: Mapping[str, int], alive: Iterable[str]) -> None:
    """Raise NoCapacityError if a place that contains `location` is full.

    `capacity` is by cloud, region or zone; `alive` are the locations of the existing VMs.
    """
    living = list(alive)
    for place, limit in capacity.items():
        if not _within(location, place):
            continue
        used = sum(1 for each in living if _within(each, place))
        if used >= limit:
            raise NoCapacityError(
                f"{place}: no capacity for another VM ({used} of {limit} in use); "
                "try the next place, or raise emulation's capacity"
            )


def _within(location: str, place: str) -> bool:
    return location == place or location.startswith(f"{place}/")


def check_memory(peers: int, each_bytes: int, available_bytes: int | None) -> None:
    """Raise InvalidRequestError if this machine does not have enough memory for this many peers."""
    if available_bytes is not None and peers * each_bytes > available_bytes:
        raise InvalidRequestError(
            f"{peers} peers need about {peers * each_bytes / 1e9:.1f} GB of memory ({each_bytes / 1e9:.1f} GB each) and "
            f"this machine has {available_bytes / 1e9:.1f} GB free; request fewer peers or free some memory"
        )


def available_memory() -> int | None:
    """Bytes of memory available to new processes; None if the system does not report it (macOS)."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")), None)
