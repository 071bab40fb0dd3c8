"""Record types of averaging methods. Each record describes one value of a key of `swarm`.

`AveragingMethod` combines the records that an experiment selects. The schema reads names and descriptions from them, the
parser the rules for combining them, the plan, the reserve and the audit bytes and seconds, and the peer the names of the
classes to build. This module imports none of these, so all of them can import it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

from experiments.averaging.model_shapes import Shapes, model_shapes

PART_BYTES = 2**19
"""Hivemind's default size of a part: tensors are split into parts of so many bytes, and each tensor has at least one."""

Problem = tuple[tuple[str, str], str]
"""(section, key) of the experiment file, and the problem there."""


def region_of(location: str) -> str:
    """Return `cloud/region` of a place. Peers in the same region are close to each other."""
    return "/".join(location.split("/")[:2])


@dataclass(frozen=True, slots=True)
class Setting:
    """Properties of an experiment, besides `swarm`, that decide whether a method can be used. None: unknown."""

    model: str | Shapes | None = None  # its name in model_shapes.csv, or the shapes of its parameters
    peers: int | None = None
    samples_scale: float | Literal["auto"] = 1  # 1 also if nothing is emulated


def name_of(model: str | Shapes) -> str:
    """Return the name of a model for messages."""
    return model if isinstance(model, str) else "the task"


def _no_problems(method: AveragingMethod, setting: Setting) -> Iterator[Problem]:
    yield from ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """Fields that every record has."""

    key: str  # of `swarm`
    name: str  # the value in the experiment file
    meaning: str = ""  # for the reference of the experiment file
    problems: Callable[[AveragingMethod, Setting], Iterator[Problem]] = _no_problems
    paper_note: str = ""  # note for comparisons of its figures with the published ones


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange(Record):
    """Who sends gradients to whom in a round (`swarm.averaging`)."""

    sent: Callable[[Sequence[str]], Mapping[tuple[str, str], Fraction]]
    """Gradients (in units of one whole gradient) that the peers of one region send to those of another in a round, by
    (source region, destination region). The argument is the region of each peer. A region to itself: what its peers send
    each other."""
    pair_shares: Callable[[Sequence[str]], Mapping[tuple[int, int], Fraction]]
    """The same by pair of peers, (sender, receiver), from the region of each peer. Pairs that exchange nothing are left
    out; both directions of a pair are equal."""
    transfer_s: Callable[[int, int, float, float], float]
    """Transfer seconds of a round, from: bytes of a gradient, peers, bit/s of the slowest stream, bit/s of one VM."""
    plan_notes: Callable[[Sequence[str]], list[str]] = lambda regions: []
    whole_group: bool  # whether all peers of a round are in one group
    averager: str  # class that the peer builds

    def peer_share(self, regions: Sequence[str], region: str) -> Fraction:
        """Return the number of whole gradients that one peer of `region` sends in a round."""
        sent = sum((v for (src, _), v in self.sent(regions).items() if src == region), Fraction(0))
        return sent / regions.count(region)


@dataclass(frozen=True, slots=True, kw_only=True)
class Compression(Record):
    """How gradients are encoded on the wire (`swarm.compression`)."""

    key: str = "compression"
    bits_per_value: int  # of each value sent, without the scales and offsets of quantised blocks
    part_bytes: int = 0  # sent with each part besides its values: the levels of an 8-bit format
    sent_values: Callable[[str | Shapes | None, int], int] = lambda model, parameters: parameters
    """Number of values sent for a gradient, from the model's name or shapes (None: unknown) and number of parameters."""
    rank: int | None = None  # of the factors of matrices; None: the shapes do not matter
    exchanges: int = 1  # of a round, in one group, each of which needs the results of the one before
    value_format: str  # of each value sent
    audit_wording: str | None = None  # phrase for the audit, "in FP16"; None: from the name
    codec: str  # class that the peer builds
    update_codec: str = (
        "NoCompression"  # codec of averaged gradients that a peer forwards; lossless after `codec`
    )
    averager: str | None = None  # class that the peer builds; None: the exchange's

    @property
    def wording(self) -> str:
        """Phrase for the audit, as in "averaged in FP16"."""
        return self.audit_wording or f"as {self.name}"

    @property
    def bytes_per_value(self) -> float:
        """Bytes of each value sent."""
        return self.bits_per_value / 8

    def gradient_bytes(self, model: str | Shapes | None, parameters: int) -> int:
        """Return the bytes of one gradient, encoded in Hivemind's parts, without headers.

        Without known shapes it counts as one tensor. Raises KeyError if the shapes are needed and unknown.
        """
        values = self.sent_values(model, parameters)
        encoded = -(-values * self.bits_per_value // 8)
        if not self.part_bytes:
            return encoded
        shapes = (model_shapes().get(model) if isinstance(model, str) else model) or (((values,), 1),)
        per_part = PART_BYTES * 8 // self.bits_per_value
        return encoded + self.part_bytes * sum(
            count * math.ceil(math.prod(shape) / per_part) for shape, count in shapes
        )

    def plan_reasons(self, model: str | Shapes, parameters: int) -> list[str]:
        """Return a sentence about the share of a gradient that is sent, if it is not all."""
        values = self.sent_values(model, parameters)
        if values == parameters:
            return []
        return [
            f"compression {self.name}: {100 * values / parameters:.2g} % of {name_of(model)}'s {parameters} values are sent, "
            f"as {self.value_format}"
        ]


@dataclass(frozen=True, slots=True)
class CompressionFamily:
    """A family of compressions whose name has a parameter."""

    form: str  # format of the name, with the parameter's limits
    pattern: str  # the format as a regular expression for JSON Schema
    meaning: str  # an example and its description
    parse: Callable[[str], Compression | None]  # parses a name; None: not of this family


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule(Record):
    """When rounds happen and whether they overlap with calculation (`swarm.overlap`, `swarm.plain`)."""

    epoch_s: Callable[[float, float, float], float] = lambda calc_s, comm_s, step_s: calc_s + comm_s
    """Expected seconds of an epoch, from the seconds of calculation, communication and one reported step."""
    plan_notes: Callable[[float | None, float], list[str]] = lambda calc_s, comm_s: []
    """Notes for the plan, from the seconds of an epoch's calculation (None: unknown) and communication."""
    has_rounds: bool = True
    overlaps_rounds: bool = False  # a shortened calculation would overlap less, so samples_scale must be 1
    optimizer: str  # class that the peer builds


@dataclass(frozen=True, slots=True)
class AveragingMethod:
    """The averaging method of an experiment: the records that it selects."""

    exchange: Exchange
    compression: Compression
    schedules: tuple[Schedule, ...]  # one per key that selects one; the first takes effect

    @property
    def schedule(self) -> Schedule:
        """The schedule that takes effect."""
        return self.schedules[0]

    @property
    def records(self) -> tuple[Record, ...]:
        """All selected records, in the order in which their problems are reported."""
        return (*self.schedules, self.compression, self.exchange)

    @property
    def averager(self) -> str:
        """The averager class that the peer builds."""
        return self.compression.averager or self.exchange.averager

    def problems(self, setting: Setting) -> Iterator[Problem]:
        """Yield where and why the records cannot be combined, or not be used in a setting."""
        for record in self.records:
            yield from record.problems(self, setting)

    def transfer_s(
        self, model: str | Shapes, parameters: int, peers: int, slowest_bps: float, vm_bps: float
    ) -> float:
        """Return the transfer seconds of a round at full scale."""
        gradient_bytes = self.compression.gradient_bytes(model, parameters)
        return self.exchange.transfer_s(gradient_bytes, peers, slowest_bps, vm_bps)

    def plan_notes(self, regions: Sequence[str], calc_s: float | None, comm_s: float | None) -> list[str]:
        """Return the notes for the plan. `calc_s`, `comm_s`: of an epoch at full scale; None: unknown."""
        timed = [] if comm_s is None else self.schedule.plan_notes(calc_s, comm_s)
        return self.exchange.plan_notes(regions) + timed
