"""The bytes this VM sends: the kernel's counters, of them the model's, and the rest that egress.csv records."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from experiments.peer.reporting.egress_meter import EgressMeter
from experiments.peer.reporting.final_egress import FinalEgress
from experiments.peer.reporting.model_bytes import ModelBytes, address_of, by_address
from experiments.peer.reporting.socket_counters import InetDiagError
from metrics.records import EgressRecord

Warn = Callable[[str, str], None]  # (key, text), as `Status.warn`


def open_meter(warn: Warn) -> EgressMeter | None:
    """Start the kernel's counters; None, with a warning, where they cannot be read: egress is unknown then."""
    try:
        return EgressMeter()
    except InetDiagError as error:
        warn("egress", f"egress is unknown: {error}")
        return None


class Traffic:
    """Counts from its construction: make it before the first byte is sent."""

    def __init__(self, vm: str, path: Path, meter: EgressMeter | None, model: ModelBytes, warn: Warn) -> None:
        """`path`: of egress.csv; `meter`: None where egress is unknown; `model`: what `count_tensors` adds to."""
        self._meter, self._model, self._warn = meter, model, warn
        self._since = time.monotonic()
        self._addresses: dict[str, str] = {}
        self._final = FinalEgress(vm, path, self.sent, model_bytes=self.model_bytes)

    @property
    def counting_s(self) -> float:
        """Seconds since counting began."""
        return time.monotonic() - self._since

    def sent(self) -> dict[str, int]:
        """IP bytes sent so far by destination; empty where unknown. Raises InetDiagError."""
        return {} if self._meter is None else self._meter.snapshot()

    def model_bytes(self) -> dict[str, int] | None:
        """Bytes of the model sent so far by destination; None where unknown."""
        counted = None if self._meter is None else self._model.by_peer()
        return None if counted is None else by_address(counted, self._addresses)

    def locate(self, maddrs: Iterable[str], internal: Mapping[str, str]) -> None:
        """Learn the peers' addresses: their multiaddrs, and by libp2p id the internal ones, which come first."""
        self._addresses.update(address_of(maddrs))
        self._addresses.update(internal)

    def published(self, epoch: int, records: Iterable[EgressRecord]) -> None:
        """Take these records of the epoch that just ended out of what egress.csv will hold."""
        self._final.published(epoch, records)

    def write_final(self) -> None:
        """Replace egress.csv with what no epoch's record holds; a failure is a warning."""
        try:
            self._final.write()
        except (OSError, InetDiagError) as error:
            self._warn("final egress", f"egress after the last epoch is unknown: {error}")

    def close(self) -> None:
        """Write egress.csv for the last time and end the meter."""
        self.write_final()
        if self._meter is not None:
            for text in self._meter.warnings:
                self._warn(text, text)
            self._meter.close()
