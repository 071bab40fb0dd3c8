"""Field types of the experiment file. Each validates one value; its error names the value and what is allowed."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from decimal import Decimal, InvalidOperation
from typing import Annotated, Any, Literal, TypeVar
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, Field, PlainSerializer, PlainValidator, WithJsonSchema
from pydantic_core import PydanticCustomError, PydanticKnownError

from cloud.places import PlaceError, expand, nearest
from cloud.prices.book import AUTO, names_of
from experiments.averaging.methods import (
    COMPRESSION_FAMILIES,
    COMPRESSIONS,
    EXCHANGES,
    OVERLAPS,
    UnknownMethodError,
    compression_of,
)
from experiments.averaging.records import Record
from experiments.catalog import ACCELERATORS, models, networks, price_books
from experiments.schema.requirements import RequirementError, parse_requirement
from experiments.schema.shards import ShardPatternError, shard_urls
from experiments.tasks.settings import SETTINGS

MAX_PEERS = 64
_T = TypeVar("_T")
_COMPRESSIONS = tuple(compression.name for compression in COMPRESSIONS)


def complain(message: str) -> PydanticCustomError:
    """Return a validation error with our own message."""
    return PydanticCustomError("orch", "{message}", {"message": message})


def word(pattern: str, what: str) -> Any:
    """Return a validator that requires a full match of `pattern`. Its error says that the value is not `what`."""
    compiled = re.compile(pattern)

    def check(value: str) -> str:
        if not compiled.fullmatch(value):
            raise complain(f"'{value[:80]}' is not {what}")
        return value

    return AfterValidator(check)


def _one_of(what: str, names: Callable[[], tuple[str, ...]]) -> Any:
    def check(value: str) -> str:
        known = names()
        if value not in known:
            raise complain(
                f"unknown {what} '{value[:80]}' (known: {', '.join(known)}){nearest(value[:80], known)}"
            )
        return value

    return AfterValidator(check)


def _location(value: str) -> str:
    try:
        found = expand(value[:200])
    except PlaceError as error:
        raise complain(str(error)) from error
    if not (found[0].rents_vms or found[0].own):
        raise complain(f"'{value}' is a location of an object store; VMs cannot be rented there")
    return value


def _store_location(value: str) -> str:
    try:
        expand(value[:200])
    except PlaceError as error:
        raise complain(str(error)) from error
    return value


def _accelerator(value: str) -> str:
    name, colon, count = value.partition(":")
    if name not in ACCELERATORS:
        near = nearest(name[:40], ACCELERATORS)
        raise complain(f"unknown accelerator '{name[:40]}' (known: {', '.join(ACCELERATORS)}){near}")
    if colon and not re.fullmatch("[1-9]|1[0-6]", count):
        raise complain(f"'{value[:40]}' is not an accelerator and a count from 1 to 16, such as 'T4:1'")
    return value if colon else f"{value}:1"


def _compression(value: str) -> str:
    try:
        return compression_of(value).name
    except UnknownMethodError as error:
        forms = "".join(f", or {family.form}" for family in COMPRESSION_FAMILIES)
        message = f"found {value[:40]!r}; must be one of {', '.join(_COMPRESSIONS)}{forms}"
        raise complain(message + nearest(value[:40], _COMPRESSIONS)) from error


def _named(records: Sequence[Record]) -> Any:
    """Return a validator for the names of the records, with the same error as a Literal of them."""
    names = [record.name for record in records]
    *most, last = (f"'{name}'" for name in names)

    def check(value: Any) -> str:
        if value not in names:
            raise PydanticKnownError("literal_error", {"expected": f"{', '.join(most)} or {last}"})
        return value

    return PlainValidator(check)


def _enum(records: Sequence[Record]) -> WithJsonSchema:
    return WithJsonSchema({"enum": [record.name for record in records], "type": "string"})


def meanings(records: Sequence[Record]) -> str:
    """Return one sentence per record, for the reference of the experiment file."""
    return " ".join(f"{record.name}: {record.meaning}." for record in records)


def joined_books(value: Any) -> Any:
    """`[list-2026-11, mine.csv]` as `list-2026-11,mine.csv`; anything else as it is."""
    if isinstance(value, list) and value and all(isinstance(name, str) for name in value):
        return ",".join(value)
    return value


def _price_books(value: str) -> str:
    """Check the form of `prices`; whether a file exists and is a book is checked where the experiment is read."""
    known = (AUTO, *price_books())
    for place, name in enumerate(names_of(value)):
        if name.endswith(".csv"):
            continue
        if name not in known:
            near = nearest(name[:80], known)
            raise complain(
                f"unknown price book '{name[:80]}' (known: {', '.join(known)}; or a file of yours, whose name ends in "
                f".csv){near}"
            )
        if place and name == AUTO:
            raise complain("'auto' must be the first of several price books")
    return value


def _shards(value: str) -> str:
    try:
        shard_urls(value)
    except ShardPatternError as error:
        raise complain(str(error)) from error
    return value


def _requirement(value: str) -> str:
    try:
        parse_requirement(value)
    except RequirementError as error:
        raise complain(str(error)) from error
    return value


def _endpoint(value: str) -> str:
    if not value:
        return value
    try:
        parts = urlsplit(value)
        good = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.path in ("", "/")
        good = good and parts.port != 0 and not parts.query and not parts.fragment
    except ValueError:
        parts, good = None, False
    if parts is not None and (parts.username is not None or parts.password is not None):
        raise complain(
            "an endpoint must not contain a user or a password; pass keys as AWS_* variables or a profile"
        )
    if not good:
        raise complain(f"'{value[:80]}' is not an endpoint: use http(s)://host:port, or '' for none")
    return value.rstrip("/")


def _number_or_auto(low: float, high: float, *, whole: bool) -> Callable[[Any], Any]:
    def check(value: Any) -> Any:
        if value == "auto":
            return value
        number = isinstance(value, int if whole else (int, float)) and not isinstance(value, bool)
        if not number or not low <= value <= high:
            kind = "a whole number" if whole else "a number"
            raise complain(f"found {value!r:.80}; must be 'auto' or {kind} from {low:g} to {high:g}")
        return value if whole else float(value)

    return check


def _usd(value: Any) -> Decimal:
    """Convert to Decimal through str(), which restores the number as written in the YAML file."""
    bad = complain(f"found {value!r:.80}; must be dollars above 0 and at most 1000000, such as 2.50")
    if isinstance(value, bool) or not isinstance(value, (int, float, str, Decimal)):
        raise bad
    try:
        usd = Decimal(str(value))
    except InvalidOperation:
        raise bad from None
    if not usd.is_finite() or not 0 < usd <= 1_000_000:
        raise bad
    return usd


Text = Annotated[str, Field(max_length=1000)]
Seconds = Annotated[float, Field(ge=0, le=86_400)]
ExperimentName = Annotated[
    str, word("[a-z0-9][a-z0-9-]{0,39}", "an experiment's name: a-z, 0-9 and '-', at most 40")
]
GroupName = Annotated[
    str, word("[a-z][a-z0-9-]{0,15}", "a group's name: a-z, 0-9 and '-', from a letter, at most 16")
]
EnvironmentName = Annotated[str, word("[A-Za-z_][A-Za-z0-9_]{0,99}", "an environment variable's name")]
ModelName = Annotated[str, _one_of("model", lambda: tuple(models()))]
TaskName = Annotated[str, _one_of("task", lambda: tuple(SETTINGS))]
FILE_AND_NAME = re.compile(r"(?P<file>.+\.py):(?P<name>[A-Za-z_][A-Za-z0-9_]*)")
TaskFunction = Annotated[
    str,
    Field(max_length=1000),
    word(FILE_AND_NAME.pattern, "a Python file and a function in it, such as my_task.py:build"),
]
PipelineName = Annotated[
    str,
    Field(max_length=1000),
    word(FILE_AND_NAME.pattern, "a Python file and a name in it, such as my_task.py:PIPELINE"),
]
FilePath = Annotated[str, Field(min_length=1, max_length=1000)]
Requirement = Annotated[str, Field(max_length=1000), AfterValidator(_requirement)]
PriceBook = Annotated[
    str,
    BeforeValidator(joined_books),
    AfterValidator(_price_books),
    WithJsonSchema(
        {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}, "minItems": 1}]}
    ),
]
NO_NETWORK = "none"  # for rented VMs, which have a real network
NetworkName = Annotated[str, _one_of("network", lambda: (*networks(), NO_NETWORK))]
Location = Annotated[str, AfterValidator(_location)]
StoreLocation = Annotated[str, AfterValidator(_store_location)]
AcceleratorName = Annotated[str, AfterValidator(_accelerator)]
Compression = Annotated[
    str,
    AfterValidator(_compression),
    WithJsonSchema(
        {
            "anyOf": [
                {"enum": list(_COMPRESSIONS)},
                *({"type": "string", "pattern": family.pattern} for family in COMPRESSION_FAMILIES),
            ]
        }
    ),
]
COMPRESSION_MEANING = (
    f"Compression of gradients on the wire: {', '.join(_COMPRESSIONS)}, "
    f"{', '.join(f'or {family.meaning}' for family in COMPRESSION_FAMILIES)}."
)
Averaging = Annotated[str, _named(EXCHANGES), _enum(EXCHANGES)]
Overlap = Annotated[str, _named(OVERLAPS), _enum(OVERLAPS)]
ShardPattern = Annotated[str, Field(max_length=1000), AfterValidator(_shards)]
Endpoint = Annotated[str, Field(max_length=1000), AfterValidator(_endpoint)]
ScaleOrAuto = Annotated[
    float | Literal["auto"],
    PlainValidator(_number_or_auto(1, 100_000, whole=False)),
    WithJsonSchema({"anyOf": [{"type": "number", "minimum": 1, "maximum": 100_000}, {"const": "auto"}]}),
]
PartsOrAuto = Annotated[
    int | Literal["auto"],
    PlainValidator(_number_or_auto(1, 4096, whole=True)),
    WithJsonSchema({"anyOf": [{"type": "integer", "minimum": 1, "maximum": 4096}, {"const": "auto"}]}),
]
Usd = Annotated[
    Decimal,
    PlainValidator(_usd),
    PlainSerializer(str, return_type=str),
    WithJsonSchema({"anyOf": [{"type": "number", "exclusiveMinimum": 0}, {"type": "string"}]}),
]
