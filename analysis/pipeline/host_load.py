"""What a host did while a profile was measured: differences of its counters. Pure."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable
from dataclasses import astuple, dataclass, fields

UNKNOWN = "unknown"  # in the CSV, what the host does not tell
_SHORT_S = 0.1  # CPU shares of less than that would be those of a few ticks of the kernel


@dataclass(frozen=True, slots=True)
class HostReading:
    """Counters of the host at one moment. None: the host does not tell."""

    at_s: float  # monotonic
    cpu_s: float | None = None  # of all cores, without idle time
    disk_read_bytes: int | None = None
    disk_write_bytes: int | None = None
    net_received_bytes: int | None = None
    net_sent_bytes: int | None = None
    context_switches: int | None = None


@dataclass(frozen=True, slots=True)
class HostSample:
    """What the host did between two readings; `time_s` is that of the later one since the profile began."""

    time_s: float
    strategy: str  # label of the strategy whose batches were delivered; "" between strategies
    cpu_share: float | None  # of all cores, 0 to 1
    disk_read_bytes: int | None
    disk_write_bytes: int | None
    net_received_bytes: int | None
    net_sent_bytes: int | None
    context_switches: int | None


@dataclass(frozen=True, slots=True)
class HostLoad:
    """Means over the `seconds` in which a strategy's batches were delivered, untimed passes included. None: unknown."""

    seconds: float
    cpu_share: float | None  # of all cores, 0 to 1
    disk_read_bytes_per_s: float | None
    disk_write_bytes_per_s: float | None
    net_received_bytes_per_s: float | None
    net_sent_bytes_per_s: float | None
    context_switches_per_s: float | None


def sample(
    before: HostReading, after: HostReading, began_s: float, *, strategy: str, cores: int
) -> HostSample:
    """What the host did between two readings. `began_s`: when the profile began, as `at_s`."""
    return HostSample(
        round(after.at_s - began_s, 3),
        strategy,
        _share(before, after, cores),
        _more(before.disk_read_bytes, after.disk_read_bytes),
        _more(before.disk_write_bytes, after.disk_write_bytes),
        _more(before.net_received_bytes, after.net_received_bytes),
        _more(before.net_sent_bytes, after.net_sent_bytes),
        _more(before.context_switches, after.context_switches),
    )


def load(before: HostReading, after: HostReading, cores: int) -> HostLoad:
    """The means between two readings."""
    seconds = after.at_s - before.at_s

    def rate(first: int | None, last: int | None) -> float | None:
        more = _more(first, last)
        return more / seconds if more is not None and seconds > 0 else None

    return HostLoad(
        seconds,
        _share(before, after, cores),
        rate(before.disk_read_bytes, after.disk_read_bytes),
        rate(before.disk_write_bytes, after.disk_write_bytes),
        rate(before.net_received_bytes, after.net_received_bytes),
        rate(before.net_sent_bytes, after.net_sent_bytes),
        rate(before.context_switches, after.context_switches),
    )


def to_csv(samples: Iterable[HostSample]) -> str:
    """One line a sample, with a header."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([field.name for field in fields(HostSample)])
    writer.writerows([UNKNOWN if value is None else value for value in astuple(one)] for one in samples)
    return text.getvalue()


def _more(before: int | None, after: int | None) -> int | None:
    """The increase of a counter; None if it was reset."""
    return None if before is None or after is None or after < before else after - before


def _share(before: HostReading, after: HostReading, cores: int) -> float | None:
    seconds = after.at_s - before.at_s
    if before.cpu_s is None or after.cpu_s is None or after.cpu_s < before.cpu_s or seconds < _SHORT_S:
        return None
    # The kernel counts in ticks of 10 ms, so that a share may seem to exceed 1.
    return round(min(1.0, (after.cpu_s - before.cpu_s) / seconds / cores), 4)
