"""Interruption bands: how often AWS interrupted spot VMs of a type in a region, and their readers. Pure.

A band is the share of VMs that were interrupted in the month before the source was made, over all zones of
the region. It says nothing of when, of how long a VM lives, or whether one can be had: no lifetimes or
rates are derived from it.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

from cloud.spot.text import HistoryError, item_line, read_json, read_text, sha256_of

LABELS: dict[str, tuple[int, int | None]] = {
    "<5%": (0, 5),
    "5-10%": (5, 10),
    "10-15%": (10, 15),
    "15-20%": (15, 20),
    ">20%": (20, None),
}
"""Bands as AWS writes them: from, and to, percent of the VMs a month; None: no upper bound is stated."""


@dataclass(frozen=True, slots=True)
class Band:
    """The band of one instance type in one region. None: the source does not say."""

    region: str
    system: str | None  # Linux, Windows
    instance: str
    label: str  # one of LABELS
    savings_percent: int | None  # below the price on demand

    @property
    def percent(self) -> tuple[int, int | None]:
        """From and to, percent of the VMs a month."""
        return LABELS[self.label]


@dataclass(frozen=True)
class InterruptionBands:
    """The bands of one source."""

    source: str
    sha256: str  # of the source's bytes
    bands: tuple[Band, ...]
    place: str | None = None
    accelerator: str | None = None

    def __post_init__(self) -> None:
        if not self.bands:
            raise ValueError("there is at least one band")
        if any(band.label not in LABELS for band in self.bands):
            raise ValueError(f"a band is one of {', '.join(LABELS)}")


@dataclass(frozen=True, slots=True)
class BandFacts:
    """Facts of interruption bands."""

    bands: int
    regions: int
    instances: int
    by_label: dict[str, int]  # every label, in order
    contradictions: int  # further, different bands of one type in one region


def band_facts(found: InterruptionBands) -> BandFacts:
    """Derive the facts of interruption bands."""
    counts = Counter(band.label for band in found.bands)
    labels: dict[tuple[str, str | None, str], set[str]] = {}
    for band in found.bands:
        labels.setdefault((band.region, band.system, band.instance), set()).add(band.label)
    return BandFacts(
        bands=len(found.bands),
        regions=len({band.region for band in found.bands}),
        instances=len({band.instance for band in found.bands}),
        by_label={label: counts[label] for label in LABELS},
        contradictions=sum(len(each) - 1 for each in labels.values()),
    )


def read_spot_advisor(name: str, content: bytes) -> InterruptionBands:
    """Read AWS's Spot Advisor, which alexei-led/spotinfo embeds.

    `{"ranges": [{"index", "label"}], "spot_advisor": {region: {system: {instance: {"r": index, "s": savings
    in percent}}}}}`. Raises HistoryError.
    """
    document = read_json(name, read_text(name, content))
    regions = _mapping(
        name, "spot_advisor", document.get("spot_advisor") if isinstance(document, dict) else None
    )
    ranges = document.get("ranges")
    if not isinstance(ranges, list):
        raise HistoryError(f"{name}:1: ranges must be a list")
    labels: dict[int, str] = {}
    for position, each in enumerate(ranges):
        index = each.get("index") if isinstance(each, dict) else None
        label = _label(each.get("label")) if isinstance(each, dict) else None
        if isinstance(index, bool) or not isinstance(index, int) or label is None:
            raise HistoryError(
                f"{name}:1: ranges[{position}] must have an index, and a label of {', '.join(LABELS)}"
            )
        labels[index] = label
    bands: list[Band] = []
    for region, systems in regions.items():
        for system, types in _mapping(name, f"spot_advisor.{region}", systems).items():
            for instance, row in _mapping(name, f"spot_advisor.{region}.{system}", types).items():
                where = f"spot_advisor.{region}.{system}.{instance}"
                row = _mapping(name, where, row)
                index = row.get("r")
                if isinstance(index, bool) or not isinstance(index, int) or index not in labels:
                    raise HistoryError(f"{name}:1: {where}.r must be an index of ranges")
                try:
                    savings = _savings(row.get("s"))
                except ValueError as error:
                    raise HistoryError(f"{name}:1: {where}.s: {error}") from None
                bands.append(Band(region, system, instance, labels[index], savings))
    return _bands(name, content, bands)


def read_spotinfo(name: str, content: bytes) -> InterruptionBands:
    """Read what `spotinfo --output json` of alexei-led/spotinfo prints.

    `[{"region", "instance", "range": {"label"}, "savings"}]`; the operating system is not stated. Raises
    HistoryError.
    """
    text = read_text(name, content)
    rows = read_json(name, text)
    if not isinstance(rows, list):
        raise HistoryError(f"{name}:1: expected a list of rows with region, instance and range")
    bands: list[Band] = []
    for index, row in enumerate(rows):
        try:
            bands.append(_spotinfo_band(row))
        except ValueError as error:
            raise HistoryError(f"{name}:{item_line(text, '', index)}: {error}") from None
    return _bands(name, content, bands)


def _spotinfo_band(row: object) -> Band:
    found = row if isinstance(row, dict) else {}
    stated = found.get("range")
    label = _label(stated.get("label") if isinstance(stated, dict) else None)
    region, instance = found.get("region"), found.get("instance")
    if label is None or not (isinstance(region, str) and region and isinstance(instance, str) and instance):
        raise ValueError(f"expected region, instance, and a range with a label of {', '.join(LABELS)}")
    return Band(region, None, instance, label, _savings(found.get("savings")))


def _bands(name: str, content: bytes, bands: list[Band]) -> InterruptionBands:
    if not bands:
        raise HistoryError(f"{name}:1: there is no interruption band")
    return InterruptionBands(name, sha256_of(content), tuple(bands))


def _mapping(name: str, where: str, value: object) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise HistoryError(f"{name}:1: {where} must be an object")
    return value


def _label(value: object) -> str | None:
    return value if isinstance(value, str) and value in LABELS else None


def _savings(value: object) -> int | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= 100:
        raise ValueError("the savings must be a whole number of percent from 0 to 100")
    return value
