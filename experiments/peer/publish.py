"""Publishes this peer's epochs and evaluations to the DHT, signed, without holding up training."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from metrics.records import EgressRecord, EpochRecord, IngressRecord

__all__ = ["Publisher", "use_record_key"]


def use_record_key(path: Path) -> Any:
    """Make the key in `path` (PEM) Hivemind's process-wide key; call it after the fork, before DHT and Optimizer.

    Hivemind then signs its own progress with it too, so the monitor knows which VM reports.
    """
    raise NotImplementedError


class Publisher:
    """Stores the last epochs of this peer under its own signed subkey, from a thread, until accepted.

    Create it after the DHT and before `hivemind.Optimizer` (it adds the validators and sets the
    process-wide key if nobody did).
    """

    warnings: list[str]

    def __init__(self, dht: Any, run_key: str, vm: str, slot: str, generation: int, record_key_path: Path) -> None:
        raise NotImplementedError

    def epoch(self, epoch: EpochRecord, egress: Sequence[EgressRecord], ingress: IngressRecord) -> None:
        """Returns at once. Raises ValueError when the record is not one the schema accepts."""
        raise NotImplementedError

    def evaluation(self, epoch: int, accuracy: float, loss: float, samples: int) -> None:
        """Returns at once."""
        raise NotImplementedError

    def flush(self, timeout_s: float) -> bool:
        """Wait until all that was published is accepted by the DHT; False when it was not in time."""
        raise NotImplementedError

    def close(self) -> None:
        """End the thread (call `flush` before)."""
        raise NotImplementedError
