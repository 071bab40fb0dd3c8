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
class State:
    """A state of the run that needs no checkpoint: it has one, or training began with it."""

    epoch: int
    made_at_s: float  # Unix time


def later(one: State | None, other: State | None) -> State | None:
    """The later epoch and the later time of two states."""
    if one is None or other is None:
        return one or other
    return State(max(one.epoch, other.epoch), max(one.made_at_s, other.made_at_s))


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

    def due(self, epoch: int, now_s: float, last: State | None) -> bool:
        """Whether a checkpoint is made at the beginning of `epoch`, after the state `last`; None: no state is known.

        With `every_epochs`, one is due for each multiple of it; if that one was missed, at the next epoch. A state of a
        later epoch, or made in the future, is not relied on for longer than one interval.
        """
        if self.every_epochs is not None:
            return epoch // self.every_epochs != (0 if last is None else last.epoch) // self.every_epochs
        return self.every_s is not None and (last is None or abs(now_s - last.made_at_s) >= self.every_s)


def writing_slot(writers: Sequence[str], training: Collection[str]) -> str | None:
    """The slot whose peer writes: the first of `writers` that trains; None if none does.

    Peers may differ in what they know of each other. Two that write the same epoch do no harm: names differ by VM.
    """
    return next((slot for slot in writers if slot in training), None)
