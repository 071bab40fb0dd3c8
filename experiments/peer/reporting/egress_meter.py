"""Egress by destination, from the kernel's counters of this VM's TCP sockets.

`EgressTally` is the accounting, pure; `EgressMeter` reads the kernel once a second, and on demand,
and feeds it. Counted is every TCP socket of the network namespace: what a cloud bills is the VM's
traffic, not one process's.
"""

from __future__ import annotations

import ipaddress
import threading
from collections.abc import Iterable
from dataclasses import dataclass

from experiments.peer.reporting.socket_counters import InetDiag, InetDiagError, SocketCounters

_FORGET_AFTER_READS = 120  # a dump may skip a socket that is being moved; this long, it is gone


@dataclass
class _Socket:
    dst: str
    ip_bytes: int
    missing_reads: int = 0


class EgressTally:
    """IP bytes by destination, from readings in any order of a socket's life. Totals never go back.

    A socket counts from its birth, also what it sent before the first reading.
    """

    def __init__(self) -> None:
        self.totals: dict[str, int] = {}
        self.without_tail = 0  # sockets that vanished without last counters
        self._alive: dict[int, _Socket] = {}

    def read(self, sockets: Iterable[SocketCounters]) -> None:
        """A dump of all sockets alive."""
        seen: set[int] = set()
        for counters in sockets:
            seen.add(counters.cookie)
            self._grow(counters)
        for cookie in [c for c in self._alive if c not in seen]:
            self._alive[cookie].missing_reads += 1
            if self._alive[cookie].missing_reads >= _FORGET_AFTER_READS:
                del self._alive[cookie]
                self.without_tail += 1

    def died(self, counters: SocketCounters) -> None:
        """The last counters of one socket, whether or not a dump ever showed it."""
        self._grow(counters)
        del self._alive[counters.cookie]

    def _grow(self, counters: SocketCounters) -> None:
        known = self._alive.get(counters.cookie)
        sent = counters.ip_bytes_sent
        if known is None or known.dst != counters.dst or sent < known.ip_bytes:
            # new, or another socket under an old name: the old one's bytes stay counted
            known = self._alive[counters.cookie] = _Socket(counters.dst, 0)
        self.totals[counters.dst] = self.totals.get(counters.dst, 0) + sent - known.ip_bytes
        known.ip_bytes = sent
        known.missing_reads = 0


class EgressMeter:
    """IP bytes sent by destination address, cumulative. Make it inside the VM's network namespace."""

    def __init__(self, period_s: float = 1.0) -> None:
        """Starts a daemon thread. Raises InetDiagError when the kernel gives no socket counters."""
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
        """ "counted": what a socket sent between the last read and its end is counted; else "unknown"."""
        return "unknown" if self._kernel.lost_notices else self._kernel.tail

    @property
    def warnings(self) -> list[str]:
        """What makes the counts incomplete, one sentence each."""
        said: list[str] = []
        if self._kernel.refusal:
            said.append(
                f"egress: {self._kernel.refusal}; what sockets send just before they close is missing"
            )
        if self._kernel.lost_notices:
            said.append(
                f"egress: the kernel dropped notices of closing sockets {self._kernel.lost_notices} times;"
                " what those sent in their last second is missing"
            )
        if self._tally.without_tail and not self._kernel.refusal:
            said.append(f"egress: {self._tally.without_tail} sockets vanished without their last counters")
        if self._failure:
            said.append(f"egress: {self._failure}")
        return said

    def snapshot(self) -> dict[str, int]:
        """Read now: IP bytes (headers, retransmissions) by destination address, loopback and link-local left out.

        Link-local addresses (a cloud's metadata service) are answered by the VM's own host, and nobody bills them.
        Cumulative: subtract two snapshots for an interval. Raises InetDiagError.
        """
        with self._lock:
            self._poll()
            totals = dict(self._tally.totals)
        return {dst: count for dst, count in totals.items() if _leaves_the_host(dst)}

    def close(self) -> None:
        """Ends the thread and closes the sockets."""
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
        for counters in self._kernel.deaths():
            self._tally.died(counters)


def _leaves_the_host(address: str) -> bool:
    ip = ipaddress.ip_address(address)
    return not (ip.is_loopback or ip.is_link_local)
