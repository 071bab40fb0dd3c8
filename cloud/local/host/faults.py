"""When the emulated provider takes a VM back, and what it refuses: decisions only."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping
from pathlib import Path

from cloud.provider import InvalidRequestError, NoCapacityError


def lifetime_s(seed: int, vm: str, rate_per_h: float) -> float | None:
    """Seconds from a VM's start to its preemption, exponentially distributed; None: never.

    A function of its arguments only, so that a run can be repeated.
    """
    if rate_per_h <= 0:
        return None
    return random.Random(f"{seed}/{vm}").expovariate(rate_per_h / 3600)


def victim(seed: int, at_s: float, alive: Iterable[str]) -> str | None:
    """Which of the VMs alive the preemption planned at `at_s` hits; None: there is none."""
    names = sorted(alive)
    return random.Random(f"{seed}/{at_s}").choice(names) if names else None


def belongs(vm: str, slot: str) -> bool:
    """Whether a VM ("<run id>-<slot>-<generation>") is one of `slot` ("<run id>-<slot>"; "": of any)."""
    return not slot or vm.rpartition("-")[0] == slot


def check_capacity(location: str, capacity: Mapping[str, int], alive: Iterable[str]) -> None:
    """Raises NoCapacityError when a place that holds `location` is full.

    `capacity` names clouds, regions or zones; `alive` are the locations of the VMs there are.
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
    """Raises InvalidRequestError when this machine has no memory for so many peers."""
    if available_bytes is not None and peers * each_bytes > available_bytes:
        raise InvalidRequestError(
            f"{peers} peers need about {peers * each_bytes / 1e9:.1f} GB of memory ({each_bytes / 1e9:.1f} GB each) and "
            f"this machine has {available_bytes / 1e9:.1f} GB free; ask for fewer peers or free some memory"
        )


def available_memory() -> int | None:
    """Bytes of memory free for new processes; None where the system does not say (macOS)."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")), None)
