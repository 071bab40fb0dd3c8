"""A late peer takes over the swarm's state, and what that cost it."""

from __future__ import annotations

import ipaddress
import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from experiments.peer.optimizer import SwarmOptimizer

__all__ = ["Download", "download_bytes", "take_over"]

_log = logging.getLogger(__name__)

Received = Callable[[], Mapping[str, int] | None]


@dataclass(frozen=True)
class Download:
    """The state this peer began with. Nothing was downloaded: zero; not measured: None."""

    seconds: float = 0.0
    bytes: int | None = 0


def take_over(
    optimizer: SwarmOptimizer,
    stop: threading.Event,
    wait_s: float,
    received: Received,
    maddrs: Callable[[], Iterable[str]],
) -> Download:
    """Load the swarm's weights before the first step, outside any epoch, if it is ahead of this peer.

    `wait_s`: for the swarm's progress; `received`: TCP payload received so far by address (None: unknown);
    `maddrs`: of the peers known.
    """
    optimizer.tracker.fetched_global_progress_this_epoch.wait(wait_s)
    if optimizer.tracker.global_epoch <= optimizer.local_epoch or stop.is_set():
        return Download()
    began, before = time.monotonic(), received()
    optimizer.load_state_from_peers()
    optimizer.take_round()
    seconds = time.monotonic() - began
    _log.info("took over epoch %d in %.1f s", optimizer.local_epoch, seconds)
    return Download(seconds, download_bytes(before, received(), maddrs()))


def download_bytes(
    before: Mapping[str, int] | None, after: Mapping[str, int] | None, maddrs: Iterable[str]
) -> int | None:
    """Payload bytes that came from the peers between two readings, what they said beside the state included.

    None without readings, and on loopback, where the store cannot be told from the peers.
    """
    addresses = {address for maddr in maddrs if (address := _ip_of(maddr))}
    if before is None or after is None or not addresses:
        return None
    if any(ipaddress.ip_address(address).is_loopback for address in addresses):
        return None
    return sum(after.get(a, 0) - before.get(a, 0) for a in addresses)


def _ip_of(maddr: str) -> str:
    parts = maddr.split("/")
    return parts[2] if len(parts) > 2 and parts[1] in ("ip4", "ip6") else ""
