"""SkyPilot's price catalogs as they are on this machine; they are only read, never downloaded or refreshed.

`~/.sky/catalogs/v8/<cloud>/vms.csv` (SkyPilot 0.14): `Price` and `SpotPrice` are dollars per hour. On AWS, Azure and
Lambda a row is a whole VM including its accelerators. On GCP a VM's row has no accelerator, and each accelerator has a
row of its own without an instance. AWS's zones are ids (`use1-az6`), which `az_mappings-*.csv` translates to the names
that one account sees (`us-east-1a`).
"""

from __future__ import annotations

import csv
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal, InvalidOperation
from functools import lru_cache
from pathlib import Path

from cloud.vendors import VENDORS

SCHEMA = "v8"

_COLUMNS = (
    "InstanceType",
    "AcceleratorName",
    "AcceleratorCount",
    "vCPUs",
    "MemoryGiB",
    "Price",
    "SpotPrice",
    "Region",
)


@dataclass(frozen=True, slots=True)
class CatalogRow:
    """One row: a VM type in one place, or (GCP) an accelerator in one place."""

    instance: str  # "" for an accelerator alone
    accelerator: str  # "" for none
    count: int
    vcpus: float | None
    memory_gib: float | None
    usd_per_h: Decimal | None  # None: the catalog has no price
    spot_usd_per_h: Decimal | None
    zone: str  # "" if the cloud has none to choose from, or its name is not known here


@dataclass(frozen=True)
class Catalog:
    """The catalog file of one cloud."""

    cloud: str
    path: Path
    modified_s: float
    sha256: str
    regions: Mapping[str, tuple[CatalogRow, ...]]
    zones_named: bool  # False: zones are ids that no file here translates, so they were left out

    @property
    def source(self) -> str:
        """The file that a price comes from, in words."""
        day = f"{datetime.fromtimestamp(self.modified_s, UTC):%Y-%m-%d}"
        return f"SkyPilot catalog {self.cloud} {SCHEMA}, file dated {day}, sha256 {self.sha256[:12]}"


def catalog_folder(environ: Mapping[str, str]) -> Path:
    """Folder of SkyPilot's catalogs: below SKY_RUNTIME_DIR, else below HOME."""
    home = environ.get("SKY_RUNTIME_DIR") or environ.get("HOME") or "~"
    return Path(home).expanduser() / ".sky" / "catalogs" / SCHEMA


def catalog_path(folder: Path, cloud: str) -> Path:
    """Path of one cloud's catalog, whether it exists or not."""
    return folder / cloud / "vms.csv"


def read_catalog(folder: Path, cloud: str) -> Catalog | str:
    """Read one cloud's catalog, or return in one sentence why it cannot be used. Contacts nothing."""
    path = catalog_path(folder, cloud)
    try:
        stat = path.stat()
        zones = _zone_file(path.parent) if VENDORS[cloud].catalog_zone_ids else None
        return _read(cloud, path, stat.st_mtime_ns, stat.st_size, zones)
    except FileNotFoundError:
        return f"SkyPilot's catalog of {cloud} is not on this machine ({path})"
    except (OSError, ValueError, csv.Error) as error:
        return f"SkyPilot's catalog of {cloud} cannot be read ({path}: {error})"


@lru_cache(maxsize=8)
def _read(cloud: str, path: Path, modified_ns: int, size: int, zones: tuple[int, Path] | None) -> Catalog:
    content = path.read_bytes()
    lines = csv.reader(content.decode("utf-8-sig").splitlines())
    header = next(lines, [])
    missing = [column for column in _COLUMNS if column not in header]
    if missing:
        raise ValueError(f"it has no column {', '.join(missing)}")
    at = {name: index for index, name in enumerate(header)}
    names = None if not VENDORS[cloud].catalog_zone_ids else _zone_names(zones[1]) if zones else {}
    regions: dict[str, list[CatalogRow]] = {}
    for cells in lines:
        if len(cells) != len(header):
            raise ValueError(f"line {lines.line_num} has {len(cells)} cells, the first one {len(header)}")
        if "Arch" in at and cells[at["Arch"]] not in ("", "x86_64"):
            continue  # orch's wheels are built for one architecture
        zone = cells[at["AvailabilityZone"]] if "AvailabilityZone" in at else ""
        if names is not None:
            zone = names.get(zone, "")
        row = CatalogRow(
            instance=cells[at["InstanceType"]],
            accelerator=cells[at["AcceleratorName"]],
            count=int(_number(cells[at["AcceleratorCount"]]) or 0),
            vcpus=_number(cells[at["vCPUs"]]),
            memory_gib=_number(cells[at["MemoryGiB"]]),
            usd_per_h=_price(cells[at["Price"]]),
            spot_usd_per_h=_price(cells[at["SpotPrice"]]),
            zone=zone,
        )
        regions.setdefault(cells[at["Region"]], []).append(row)
    return Catalog(
        cloud=cloud,
        path=path,
        modified_s=modified_ns / 1e9,
        sha256=hashlib.sha256(content).hexdigest(),
        regions={region: tuple(rows) for region, rows in regions.items()},
        zones_named=names is None or bool(names),
    )


def _zone_file(folder: Path) -> tuple[int, Path] | None:
    """The newest mapping of zone ids to names, which SkyPilot itself uses without credentials."""
    return max(((path.stat().st_mtime_ns, path) for path in folder.glob("az_mappings-*.csv")), default=None)


def _zone_names(path: Path) -> dict[str, str]:
    with path.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    return {row["AvailabilityZone"]: row["AvailabilityZoneName"] for row in rows if len(row) > 1}


def _number(text: str) -> float | None:
    return float(text) if text else None


def _price(text: str) -> Decimal | None:
    try:
        amount = Decimal(text)
    except InvalidOperation:
        return None
    return amount if amount.is_finite() and amount > 0 else None
