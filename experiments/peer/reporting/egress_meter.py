"""Egress by destination, from the kernel's counters of this VM's TCP sockets.

`EgressTally` is the pure accounting; `EgressMeter` feeds it with kernel readings once a second and on demand. All TCP
sockets of the network namespace are counted, since a cloud bills the traffic of the VM, not of one process.
"""

from __future__ import annotations

import ipaddress
import threading
from collections.abc import Iterable
from dataclasses import dataclass

from experiments.peer.reporting.socket_counters import InetDiag, InetDiagError, SocketCounters

_FORGET_AFTER_READS = 120  # a dump may skip a socket that is being moved; after this many readings it is gone


@dataclass
class _Socket:
    dst: str
    ip_bytes: int
    missing_reads: int = 0


class EgressTally:
    """IP bytes by destination, accumulated from readings of sockets in any order. Totals never decrease.

    Everything a socket has sent counts, including what it sent before its first reading.
    """

    def __init__(self) -> None:
        self.totals: dict[str, int] = {}
        self.without_tail = 0  # sockets that vanished without their final counters
        self._alive: dict[int, _Socket] = {}

    def read(self, sockets: Iterable[SocketCounters]) -> None:
        """Process a dump of all open sockets."""
        seen: set[int] = set()
        for counters in sockets:
            seen.add(counters.cookie)
            self._update(counters)
        for cookie in [c for c in self._alive if c not in seen]:
            self._alive[cookie].missing_reads += 1
            if self._alive[cookie].missing_reads >= _FORGET_AFTER_READS:
                del self._alive[cookie]
                self.without_tail += 1

    def closed(self, counters: SocketCounters) -> None:
        """Process the final counters of a socket, which may not have been in any dump."""
        self._update(counters)
        del self._alive[counters.cookie]

    def _update(self, counters: SocketCounters) -> None:
        known = self._alive.get(counters.cookie)
        sent = counters.ip_bytes_sent
        if known is None or known.dst != counters.dst or sent < known.ip_bytes:
            # a new socket, or another one with a reused cookie: the old one's bytes stay counted
            known = self._alive[counters.cookie] = _Socket(counters.dst, 0)
        self.totals[counters.dst] = self.totals.get(counters.dst, 0) + sent - known.ip_bytes
        known.ip_bytes = sent
        known.missing_reads = 0


class EgressMeter:
    """Cumulative IP bytes sent, by destination address. Create it inside the VM's network namespace."""

    def __init__(self, period_s: float = 1.0) -> None:
        """Start a daemon thread. Raises InetDiagError if the kernel provides no socket counters."""
        self._kernel = InetDiag()
        self._tally = EgressTally()
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._failure = ""
        self._period_s = period_s
        self._poll()
        self._thread = threading.Thread(target=self._run, name="egress-meter", daemon=True)
        self._thread.start()

    @property
    def tail(self) -> str:
        """ "counted" if what sockets send between the last reading and their end is counted; else "unknown"."""
        return "unknown" if self._kernel.lost_notices else self._kernel.tail

    @property
    def warnings(self) -> list[str]:
        """Reasons why the counts are incomplete, one sentence each."""
        found: list[str] = []
        if self._kernel.refusal:
            found.append(
                f"egress: {self._kernel.refusal}; bytes that sockets send just before they close are not counted"
            )
        if self._kernel.lost_notices:
            found.append(
                f"egress: the kernel dropped notices of closing sockets {self._kernel.lost_notices} times;"
                " bytes that those sockets sent in their last second are not counted"
            )
        if self._tally.without_tail and not self._kernel.refusal:
            found.append(f"egress: {self._tally.without_tail} sockets vanished without their final counters")
        if self._failure:
            found.append(f"egress: {self._failure}")
        return found

    def snapshot(self) -> dict[str, int]:
        """Read the cumulative IP bytes (with headers and retransmissions) by destination address.

        Loopback and link-local addresses are excluded: the latter (a cloud's metadata service) are served by the VM's
        host and never billed. Subtract two snapshots for an interval. Raises InetDiagError.
        """
        with self._lock:
            self._poll()
            totals = dict(self._tally.totals)
        return {dst: count for dst, count in totals.items() if _leaves_host(dst)}

    def close(self) -> None:
        """End the thread and close the netlink sockets."""
        self._stop.set()
        self._thread.join(timeout=2 * self._period_s + 5)
        with self._lock:
            self._kernel.close()

    def _run(self) -> None:
        while not self._stop.wait(self._period_s):
            try:
                with self._lock:
                    self._poll()
            except InetDiagError as error:
                self._failure = f"a reading failed: {error}"

    def _poll(self) -> None:
        self._tally.read(self._kernel.read())
        for counters in self._kernel.closed():
            self._tally.closed(counters)


def _leaves_host(address: str) -> bool:
    ip = ipaddress.ip_address(address)
    return not (ip.is_loopback or ip.is_link_local)
