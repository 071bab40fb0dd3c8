"""When a checkpoint is due, and which peer writes it. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from experiments.peer.config import PeerConfigError


@dataclass(frozen=True)
class Start:
    """The checkpoint of another run to begin with."""

    prefix: str  # s3://bucket/prefix/<the other run>
    name: str


@dataclass(frozen=True)
class Checkpointing:
    """The peer's config key `checkpoint`."""

    prefix: str  # s3://bucket/prefix/<run id>
    keep: int
    writers: tuple[str, ...]  # slots, the one with the cheapest path to the store first
    every_epochs: int | None = None
    every_s: float | None = None
    start: Start | None = None

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> Checkpointing:
        """Read the key. Raises PeerConfigError."""
        try:
            start = config.get("start")
            return cls(
                prefix=str(config["prefix"]),
                keep=int(config["keep"]),
                writers=tuple(map(str, config["writers"])),
                every_epochs=config.get("every_epochs"),
                every_s=config.get("every_s"),
                start=None if start is None else Start(str(start["prefix"]), str(start["name"])),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise PeerConfigError(f"checkpoint: {error!r}") from error

    def due(self, epoch: int, now_s: float, last_s: float) -> bool:
        """Whether a checkpoint is made at the beginning of `epoch`. `last_s`: when the last one was due, or training began."""
        if self.every_epochs is not None and epoch % self.every_epochs == 0:
            return True
        return self.every_s is not None and now_s - last_s >= self.every_s


def writing_slot(writers: Sequence[str], training: Collection[str]) -> str | None:
    """The slot whose peer writes: the first of `writers` that trains; None if none does.

    Peers may differ in what they know of each other. Two that write the same epoch do no harm: names differ by VM.
    """
    return next((slot for slot in writers if slot in training), None)
