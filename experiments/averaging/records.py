"""The records that an averaging method consists of: one for each value of a key of `swarm`.

`AveragingMethod` joins those that an experiment has chosen. The schema takes names and descriptions from the records, the
parser the rules of combination, the plan, the reserve and the audit bytes and seconds, and the peer the names of the
classes to build. Nothing here imports the schema, the catalogue or the peer, so all of them can import it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

Problem = tuple[tuple[str, str], str]
"""Section and key of the experiment file, and what is wrong there."""


def region_of(location: str) -> str:
    """`cloud/region` of a place: the unit in which peers are near each other."""
    return "/".join(location.split("/")[:2])


@dataclass(frozen=True, slots=True)
class Setting:
    """What of an experiment decides, besides `swarm`, whether a method can be used; None: unknown."""

    model: str | None = None
    peers: int | None = None
    samples_scale: float | Literal["auto"] = 1  # 1: nothing is emulated


def _no_problems(method: AveragingMethod, setting: Setting) -> Iterator[Problem]:
    yield from ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """What each value of each key has."""

    key: str  # of `swarm`
    name: str  # the value in the experiment file
    meaning: str = ""  # for the reference of the experiment file
    problems: Callable[[AveragingMethod, Setting], Iterator[Problem]] = _no_problems
    paper_note: str = ""  # what a reader must know who sees its figures beside the published ones


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange(Record):
    """Who sends gradients to whom in a round (`swarm.averaging`)."""

    sent: Callable[[Sequence[str]], Mapping[tuple[str, str], Fraction]]
    """Whole gradients that the peers of one region send those of another in a round, by the region of each peer; a region
    to itself: what its peers send each other."""
    transfer_s: Callable[[int, int, float, float], float]
    """Seconds that a round's bytes take: bytes of a gradient, peers, bit/s of the slowest stream, bit/s of one VM."""
    plan_notes: Callable[[Sequence[str]], list[str]] = lambda regions: []
    whole_group: bool  # whether a round has all peers in one group
    averager: str  # the class that the peer builds

    def peer_share(self, regions: Sequence[str], region: str) -> Fraction:
        """Whole gradients that one peer of `region` sends in a round."""
        sent = sum((v for (src, _), v in self.sent(regions).items() if src == region), Fraction(0))
        return sent / regions.count(region)


@dataclass(frozen=True, slots=True, kw_only=True)
class Compression(Record):
    """How a gradient is written on the wire (`swarm.compression`)."""

    key: str = "compression"
    bits_per_value: int  # of each value that is sent; scales and offsets of quantised blocks are not counted
    sent_values: Callable[[str | None, int], int] = lambda model, parameters: parameters
    """Values that a gradient is sent as, by the model's name (None: unknown) and number of parameters."""
    rank: int | None = None  # of the factors that matrices are sent as; None: shapes do not matter
    value_format: str  # of each value that is sent
    audit_wording: str | None = None  # how parameters are averaged with it; None: as its name
    codec: str  # the class that the peer builds
    update_codec: str = "NoCompression"  # of averaged gradients that a peer hands on; exact after `codec`
    averager: str | None = None  # the class that the peer builds; None: the exchange's

    @property
    def wording(self) -> str:
        """How the audit says that parameters are averaged with it."""
        return self.audit_wording or f"as {self.name}"

    @property
    def bytes_per_value(self) -> float:
        """Of each value that is sent."""
        return self.bits_per_value / 8

    def gradient_bytes(self, model: str | None, parameters: int) -> int:
        """Bytes of one whole gradient as it is sent. Raises KeyError for a model of unknown shapes where they matter."""
        return -(-self.sent_values(model, parameters) * self.bits_per_value // 8)

    def plan_reasons(self, model: str, parameters: int) -> list[str]:
        """How much of a gradient is sent, where it is not all."""
        values = self.sent_values(model, parameters)
        if values == parameters:
            return []
        return [
            f"compression {self.name}: {100 * values / parameters:.2g} % of {model}'s {parameters} values are sent, "
            f"as {self.value_format}"
        ]


@dataclass(frozen=True, slots=True)
class CompressionFamily:
    """Compressions whose name has a parameter."""

    form: str  # of the name, with the parameter's limits
    pattern: str  # the same as a regular expression of JSON Schema
    meaning: str  # an example, and what it does
    parse: Callable[[str], Compression | None]  # of a name; None: not one of these


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule(Record):
    """When rounds happen, and what of them is hidden behind calculation (`swarm.overlap`, `swarm.plain`)."""

    epoch_s: Callable[[float, float, float], float] = lambda calc_s, comm_s, step_s: calc_s + comm_s
    """Expected seconds of an epoch: calculation, communication, and one step that a peer reports."""
    plan_notes: Callable[[float | None, float], list[str]] = lambda calc_s, comm_s: []
    """What the plan says of it, by an epoch's calculation (None: unknown) and communication in seconds."""
    has_rounds: bool = True
    hides_rounds: bool = False  # a shortened calculation would hide less, so samples_scale must be 1
    optimizer: str  # the class that the peer builds


@dataclass(frozen=True, slots=True)
class AveragingMethod:
    """How an experiment averages: the records that it has chosen."""

    exchange: Exchange
    compression: Compression
    schedules: tuple[Schedule, ...]  # of each key that asks for one; the first takes effect

    @property
    def schedule(self) -> Schedule:
        """The schedule that takes effect."""
        return self.schedules[0]

    @property
    def records(self) -> tuple[Record, ...]:
        """All that were chosen, in the order in which their problems are reported."""
        return (*self.schedules, self.compression, self.exchange)

    @property
    def averager(self) -> str:
        """The averager class that the peer builds."""
        return self.compression.averager or self.exchange.averager

    def problems(self, setting: Setting) -> Iterator[Problem]:
        """Where and why the records cannot be combined with each other or used in that setting."""
        for record in self.records:
            yield from record.problems(self, setting)

    def transfer_s(self, model: str, parameters: int, peers: int, slowest_bps: float, vm_bps: float) -> float:
        """Seconds that a round's bytes take at full size."""
        gradient_bytes = self.compression.gradient_bytes(model, parameters)
        return self.exchange.transfer_s(gradient_bytes, peers, slowest_bps, vm_bps)

    def plan_notes(self, regions: Sequence[str], calc_s: float | None, comm_s: float | None) -> list[str]:
        """What the plan says; `calc_s`, `comm_s`: of an epoch at full size, None: unknown."""
        timed = [] if comm_s is None else self.schedule.plan_notes(calc_s, comm_s)
        return self.exchange.plan_notes(regions) + timed
