"""All averaging methods by their names in the experiment file. Register new methods here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from experiments.averaging.fixed_width import BLOCKWISE_8BIT, FLOAT16, NONE, UNIFORM_8BIT
from experiments.averaging.flat import FLAT
from experiments.averaging.hierarchical import HIERARCHICAL
from experiments.averaging.overlap import BLOCKING, DELAYED
from experiments.averaging.powersgd import POWERSGD
from experiments.averaging.records import AveragingMethod, Compression, Exchange, Record, Schedule
from experiments.averaging.single_peer import SINGLE_PEER

_R = TypeVar("_R", bound=Record)


EXCHANGES: tuple[Exchange, ...] = (FLAT, HIERARCHICAL)
OVERLAPS: tuple[Schedule, ...] = (BLOCKING, DELAYED)
COMPRESSIONS: tuple[Compression, ...] = (NONE, FLOAT16, UNIFORM_8BIT, BLOCKWISE_8BIT)
COMPRESSION_FAMILIES = (POWERSGD,)
METHOD_KEYS = ("averaging", "compression", "overlap", "plain")
"""The keys of `swarm` that `method_of` takes."""


class UnknownMethodError(LookupError):
    """Unknown value of a key of `swarm`. The message names the key, the value and the known values."""

    def __init__(self, key: str, value: str, known: Sequence[str]) -> None:
        super().__init__(f"{key}: {value!r} is neither {' nor '.join(known)}")


def method_of(
    *,
    averaging: str = FLAT.name,
    compression: str = FLOAT16.name,
    overlap: str = BLOCKING.name,
    plain: bool = False,
) -> AveragingMethod:
    """Return the method that these keys of `swarm` select. Raises UnknownMethodError."""
    single = (SINGLE_PEER,) if plain else ()
    return AveragingMethod(
        exchange=_named("averaging", averaging, EXCHANGES),
        compression=compression_of(compression),
        schedules=(*single, _named("overlap", overlap, OVERLAPS)),
    )


def compression_of(name: str) -> Compression:
    """Return the compression with a name. Raises UnknownMethodError."""
    for family in COMPRESSION_FAMILIES:
        if (found := family.parse(name)) is not None:
            return found
    return _named("compression", name, COMPRESSIONS, tuple(family.form for family in COMPRESSION_FAMILIES))


def _named(key: str, name: str, records: tuple[_R, ...], forms: tuple[str, ...] = ()) -> _R:
    for record in records:
        if record.name == name:
            return record
    raise UnknownMethodError(key, name, (*(record.name for record in records), *forms))
