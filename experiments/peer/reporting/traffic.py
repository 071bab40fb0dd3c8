"""Bytes sent by this VM: the kernel's counters, the model data among them, and the final egress.csv."""

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
    """Start the egress meter. Returns None, with a warning, if the kernel's counters cannot be read."""
    try:
        return EgressMeter()
    except InetDiagError as error:
        warn("egress", f"egress is unknown: {error}")
        return None


class Traffic:
    """Counts from its construction on: create it before the first byte is sent."""

    def __init__(self, vm: str, path: Path, meter: EgressMeter | None, model: ModelBytes, warn: Warn) -> None:
        """`path`: of egress.csv; `meter`: None if egress is unknown; `model`: the counter passed to `count_tensors`."""
        self._meter, self._model, self._warn = meter, model, warn
        self._since = time.monotonic()
        self._addresses: dict[str, str] = {}
        self._final = FinalEgress(vm, path, self.sent, model_bytes=self.model_bytes)

    @property
    def counting_s(self) -> float:
        """Seconds since counting began."""
        return time.monotonic() - self._since

    def sent(self) -> dict[str, int]:
        """IP bytes sent so far by destination; empty if unknown. Raises InetDiagError."""
        return {} if self._meter is None else self._meter.snapshot()

    def model_bytes(self) -> dict[str, int] | None:
        """Bytes of model data sent so far by destination; None if unknown."""
        counted = None if self._meter is None else self._model.by_peer()
        return None if counted is None else by_address(counted, self._addresses)

    def locate(self, maddrs: Iterable[str], internal: Mapping[str, str]) -> None:
        """Record the peers' addresses from their multiaddrs. `internal` addresses, by libp2p id, take precedence."""
        self._addresses.update(address_of(maddrs))
        self._addresses.update(internal)

    def published(self, epoch: int, records: Iterable[EgressRecord]) -> None:
        """Exclude the published records of the epoch that just ended from egress.csv."""
        self._final.published(epoch, records)

    def write_final(self) -> None:
        """Write the bytes not in any epoch record to egress.csv. Errors become warnings."""
        try:
            self._final.write()
        except (OSError, InetDiagError) as error:
            self._warn("final egress", f"egress after the last epoch is unknown: {error}")

    def close(self) -> None:
        """Write egress.csv for the last time and stop the meter."""
        self.write_final()
        if self._meter is not None:
            for text in self._meter.warnings:
                self._warn(text, text)
            self._meter.close()
