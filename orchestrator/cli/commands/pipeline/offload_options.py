"""The options of a profile alone, without an experiment: what is typed, and checks of it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from analysis.pipeline.offload.choices import Codec
    from analysis.pipeline.offload.pass_time import Prices
    from analysis.pipeline.offload.passes import Caches

_LEAST, _MOST = 1e-3, 1e9  # of numbers of the options
_MOST_PASSES = 1_000_000
PANEL = "A profile of each sample, without an experiment"


class Objective(StrEnum):
    """What the best offloading minimises."""

    time = "time"
    usd = "usd"


def _option(text: str, metavar: str | None = None) -> Any:
    return typer.Option(help=text, metavar=metavar, rich_help_panel=PANEL)


BandwidthOption = Annotated[str | None, _option("Mb/s to the client.", "X[,X...]")]
ClientCoresOption = Annotated[str | None, _option("Cores of the client.", "N[,N...]")]
StorageCoresOption = Annotated[str | None, _option("Cores next to the storage.", "N")]
ServerSpeedOption = Annotated[
    str | None, _option("Seconds of an operation next to the storage / on the client. [1]", "X[,X...]")
]
ServerProfileOption = Annotated[
    str | None,
    _option("Two-stage profile of the same samples, measured on the server: each operation's speed.", "DIR"),
]
TrainerOption = Annotated[str | None, _option("Seconds of a pass that never waits for data.", "S[,S...]")]
ObjectiveOption = Annotated[Objective, _option("What `best` minimises.")]
PrefixOption = Annotated[
    int,
    typer.Option(min=1, metavar="K", help="First operations of the policy prefix:K.", rich_help_panel=PANEL),
]
CodecOption = Annotated[
    list[str] | None,
    _option(
        "Lossless codec of the values after OPS operations. Repeatable.", "NAME,OPS,RATIO,WRITE_MS,READ_MS"
    ),
]
UsdPerHourOption = Annotated[
    str | None,
    _option("Dollars an hour of all that is rented, and of the server next to the storage.", "RENTED,SERVER"),
]
UsdPerGbOption = Annotated[
    str | None,
    _option(
        "Dollars a GB from store to client; through the server: from store to it, from it to the client.",
        "DIRECT,IN,OUT",
    ),
]
CacheOption = Annotated[
    str | None,
    _option(
        "GB of the caches of client and server, which keep values for later passes. [0,0]", "CLIENT[,SERVER]"
    ),
]
RandomFromOption = Annotated[
    int | None,
    _option("First random operation, counted from 1: values before it can be cached. [2]", "K"),
]


@dataclass(frozen=True, slots=True)
class OffloadOptions:
    """The options of one profile, None if not given. Texts are as typed."""

    profile: str
    times: str | None
    bandwidth_mbps: str | None
    client_cores: str | None
    storage_cores: str | None
    server_speed: str | None
    server_profile: str | None
    trainer_s: str | None
    objective: Objective
    prefix: int
    codecs: tuple[str, ...]
    usd_per_h: str | None
    usd_per_gb: str | None
    passes: str | None
    cache_gb: str | None
    random_from: int | None


@contextmanager
def refusing() -> Iterator[None]:
    """Turn what the analysis raises into UsageError and RunFailedError."""
    from analysis.pipeline.offload.best import SolverError
    from analysis.pipeline.offload.sophon_file import SampleProfileError
    from orchestrator.errors import RunFailedError, UsageError

    try:
        yield
    except SampleProfileError as error:
        raise UsageError(str(error)) from error
    except ValueError as error:
        raise UsageError(f"{error}; see `orch pipeline plan --help`") from error
    except SolverError as error:
        raise RunFailedError(str(error)) from error


def caches_of(options: OffloadOptions) -> Caches:
    """Passes and caches. Raises typer.BadParameter."""
    from analysis.pipeline.offload.passes import Caches

    text = "1" if options.passes is None else options.passes
    try:
        passes = float(text)
    except ValueError:
        passes = math.nan
    if not 1 <= passes <= _MOST_PASSES:
        raise typer.BadParameter(
            f"--passes '{text[:80]}' is not one number from 1 to {_MOST_PASSES:,}, such as 30"
        )
    sizes = ("0" if options.cache_gb is None else options.cache_gb).split(",")
    try:
        gb = [float(part) for part in sizes]
    except ValueError:
        gb = []
    if len(gb) not in (1, 2) or not all(0 <= one <= _MOST for one in gb):
        raise typer.BadParameter(
            f"--cache-gb '{(options.cache_gb or '')[:80]}' is not CLIENT or CLIENT,SERVER in GB of 0 or more"
        )
    if options.random_from is not None and options.random_from < 1:
        raise typer.BadParameter(f"--random-from {options.random_from} is not 1 or more")
    return Caches(passes, gb[0] * 1e9, (gb[1] if len(gb) > 1 else 0.0) * 1e9, options.random_from or 2)


def numbers(option: str, text: str | None, count: int = 1, *, zero: bool = False) -> list[float]:
    """Parse one number for all of `count` profiles, or one for each. `zero`: 0 is allowed.

    Raises UsageError if it is not given, typer.BadParameter for a number that is not possible and for another count.
    """
    from orchestrator.errors import UsageError

    if text is None:
        raise UsageError(
            f"{option}: a plan without an experiment needs it; add {option}, or name an experiment"
        )
    found: list[float] = []
    for part in text.split(","):
        try:
            value = float(part)
        except ValueError as error:
            raise typer.BadParameter(f"{option} '{part[:40]}' is not a number") from error
        if not (_LEAST <= value <= _MOST or (zero and value == 0)):
            also = "0, or " if zero else ""
            raise typer.BadParameter(f"{option} {value:g} is not {also}from {_LEAST:g} to {_MOST:g}")
        found.append(value)
    if len(found) not in (1, count):
        profiles = "1 profile" if count == 1 else f"{count} profiles"
        allowed = "one number" if count == 1 else "one number for all, or one for each"
        raise typer.BadParameter(
            f"{option} '{text[:80]}' has {len(found)} numbers for {profiles}; give {allowed}"
        )
    return found * count if len(found) == 1 else found


def codec_of(text: str) -> Codec:
    """Parse NAME,OPS,RATIO,WRITE_MS,READ_MS. Raises typer.BadParameter."""
    from analysis.pipeline.offload.choices import Codec

    parts = text.split(",")
    try:
        name, ops, (ratio, write_ms, read_ms) = parts[0], int(parts[1]), map(float, parts[2:])
    except (ValueError, IndexError):
        name, ops, ratio, write_ms, read_ms = "", 0, 0.0, 0.0, 0.0
    if not name or ops < 1 or not (0 < ratio <= _MOST and 0 <= write_ms <= _MOST and 0 <= read_ms <= _MOST):
        raise typer.BadParameter(
            f"--codec '{text[:80]}' is not NAME,OPS,RATIO,WRITE_MS,READ_MS, such as webp,2,0.392,48,1.2"
        )
    return Codec(name, ops, ratio, write_ms / 1e3, read_ms / 1e3)


def prices_of(usd_per_h: str | None, usd_per_gb: str | None) -> Prices | None:
    """Parse the prices, None if none is given. Raises typer.BadParameter."""
    from analysis.pipeline.offload.pass_time import Prices

    if usd_per_h is None and usd_per_gb is None:
        return None
    if usd_per_h is None or usd_per_gb is None:
        given, missing = (
            ("--usd-per-gb", "--usd-per-h") if usd_per_h is None else ("--usd-per-h", "--usd-per-gb")
        )
        raise typer.BadParameter(f"{given}: dollars need {missing} too, 0,0 or 0,0,0 if nothing is paid")
    rented, server = _dollars("--usd-per-h", usd_per_h, "RENTED,SERVER", 2)
    direct, into, out = _dollars("--usd-per-gb", usd_per_gb, "DIRECT,IN,OUT", 3)
    return Prices(rented / 3600, direct / 1e9, into / 1e9, out / 1e9, server / 3600)


def _dollars(option: str, text: str, shape: str, count: int) -> list[float]:
    try:
        found = [float(part) for part in text.split(",")]
    except ValueError:
        found = []
    if len(found) != count or not all(0 <= one <= _MOST for one in found):
        raise typer.BadParameter(f"{option} '{text[:80]}' is not {shape} in dollars of 0 or more")
    return found
