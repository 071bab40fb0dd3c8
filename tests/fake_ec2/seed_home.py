"""Writes a HOME in which SkyPilot finds AWS credentials and price catalogs and fetches nothing.

usage: seed_home.py DIR

Instance types, zones and prices are a small table made for tests. Prices are of the right size, not of any day.
A spot price differs by zone, so that a test can tell zones apart.
"""

from __future__ import annotations

import csv
import hashlib
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from moto.ec2.models.availability_zones_and_regions import RegionsAndZonesBackend

_AMI = "ami-0fa4eec2000000001"
_MOTO_USER = "AKIAIOSFODNN7EXAMPLE"  # UserId that moto's STS answers with
_REGIONS = {  # region: price relative to the cheapest
    "us-east-1": 1.0,
    "us-west-2": 1.0,
    "eu-central-1": 1.25,
    "ap-northeast-1": 1.35,
    "ap-southeast-2": 1.30,
}
_TYPES = [  # name, vCPUs, GiB, accelerator, count, $/h
    ("m6i.large", 2, 8, "", "", 0.096),
    ("m6i.xlarge", 4, 16, "", "", 0.192),
    ("m6i.2xlarge", 8, 32, "", "", 0.384),
    ("c6i.large", 2, 4, "", "", 0.085),
    ("g4dn.xlarge", 4, 16, "T4", 1, 0.526),
    ("g4dn.2xlarge", 8, 32, "T4", 1, 0.752),
]
_T4 = (
    "{'Gpus': [{'Name': 'T4', 'Count': 1, 'MemoryInfo': {'SizeInMiB': 16384}}], 'TotalGpuMemoryInMiB': 16384}"
)
_HEAD = (
    "InstanceType AcceleratorName AcceleratorCount vCPUs MemoryGiB GpuInfo Price SpotPrice Region "
    "AvailabilityZone Arch LocalDiskType NVMeSupported LocalDiskSize LocalDiskCount"
)
_TAGS = ("skypilot:custom-cpu-ubuntu", "skypilot:custom-gpu-ubuntu-cuda13", "skypilot:custom-gpu-ubuntu")


def _table(path: Path, head: str, rows: Iterable[Sequence[Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([head.split(), *rows])


def _vms(zones: dict[str, list[tuple[str, str]]]) -> list[list[Any]]:
    rows: list[list[Any]] = []
    for name, cpus, memory, accelerator, count, price in _TYPES:
        about = [name, accelerator, count, cpus, memory, _T4 if accelerator else ""]
        for region, factor in _REGIONS.items():
            for n, (zone_id, _) in enumerate(zones[region]):
                usd = round(price * factor, 4)
                spot = round(usd * (0.30 + 0.05 * n), 4)
                rows.append([*about, usd, spot, region, zone_id, "x86_64", "", "", "", ""])
    return rows


def main(home: Path) -> None:
    """Write all of it below `home`."""
    catalogs = home / ".sky/catalogs/v8"  # v8: constants.CATALOG_SCHEMA_VERSION of SkyPilot 0.14.1
    zones = {r: [(z.zone_id, z.name) for z in RegionsAndZonesBackend.zones[r]][:3] for r in _REGIONS}
    _table(catalogs / "aws/vms.csv", _HEAD, _vms(zones))
    images = [[tag, region, "ubuntu", "22.04", _AMI, "20250101"] for tag in _TAGS for region in _REGIONS]
    _table(catalogs / "aws/images.csv", "Tag Region OS OSVersion ImageId CreationDate", images)
    _table(
        catalogs / "aws/instance_quota_mapping.csv", "InstanceType OnDemandInstanceCode SpotInstanceCode", []
    )
    # Zone ids to this "account"'s zone names; named after the hash of the caller's UserId.
    account = hashlib.md5(_MOTO_USER.encode()).hexdigest()[:8]
    names = [pair for region in _REGIONS for pair in zones[region]]
    _table(catalogs / f"aws/az_mappings-{account}.csv", "AvailabilityZone AvailabilityZoneName", names)
    # Read as soon as a resource names an accelerator.
    _table(catalogs / "common/accelerators.csv", "AcceleratorName Clouds", [["T4", "['AWS']"]])
    _table(catalogs / "common/metadata.csv", "GPU MemoryGB Manufacturer", [["T4", 16, "NVIDIA"]])
    (home / ".aws").mkdir(exist_ok=True)
    keys = "aws_access_key_id = fake\naws_secret_access_key = fake\n"
    (home / ".aws/credentials").write_text(f"[default]\n{keys}")
    (home / ".aws/config").write_text("[default]\nregion = us-west-2\n")
    (home / ".sky/config.yaml").write_text("allowed_clouds: [aws]\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
