"""The vendors' records: complete, consistent with the places, importable by peers, and the only list of vendors."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from cloud.places import places
from cloud.vendors import AWS, RENTABLE, VENDORS, Vendor

ROOT = Path(__file__).parents[2]


def test_every_place_that_rents_vms_has_a_vendor_and_the_other_way_round():
    assert {p.cloud for p in places() if p.rents_vms} == set(RENTABLE)
    assert {p.cloud for p in places() if not p.own} == set(VENDORS)


@pytest.mark.parametrize("vendor", RENTABLE.values(), ids=lambda vendor: vendor.name)
def test_a_rented_vendor_says_all_that_a_launch_needs(vendor: Vendor):
    assert vendor.sign_in
    assert vendor.api_url.startswith("https://")
    assert vendor.credential_files or vendor.credential_variables
    assert re.compile(vendor.cpu_instances).pattern
    assert vendor.identity == "uploaded" or vendor.skypilot_switch  # else SkyPilot refuses the configuration
    assert vendor.rents_spot or vendor.notices is None


def test_a_name_on_a_bill_means_one_vendor():
    for vendor in VENDORS.values():
        told = vendor.focus.provider.casefold()
        assert [v.name for v in VENDORS.values() if any(word in told for word in v.bill_words)] == [
            vendor.name
        ]


def test_a_location_belongs_to_the_whole_name_of_its_vendor():
    assert AWS.has("aws/us-east-1/us-east-1a")
    assert not AWS.has("awsome/us-east-1")


def test_the_records_import_the_standard_library_only():
    code = (
        "import sys; known = set(sys.modules); import cloud.vendors; print(*sorted(set(sys.modules) - known))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    names = {name.partition(".")[0] for name in done.stdout.split()}
    assert names - set(sys.stdlib_module_names) == {"cloud"}
    assert {n for n in done.stdout.split() if n.startswith("cloud.")} == {
        n for n in done.stdout.split() if n.startswith("cloud.vendors")
    }


def test_no_other_code_tells_vendors_by_name():
    names = "|".join(VENDORS)
    asked = re.compile(
        rf"""(?:[=!]=|\bin)\s+\(?["'](?:{names})["']|startswith\(["'](?:{names})/|["'](?:{names})["']:"""
    )
    rooms = ("orchestrator", "experiments", "cloud", "metrics", "analysis", "orch")
    paths = [p for room in rooms for p in sorted((ROOT / room).rglob("*.py"))]
    found = [
        f"{path.relative_to(ROOT)}: {line.strip()}"
        for path in paths
        if ROOT / "cloud" / "vendors" not in path.parents
        for line in path.read_text().splitlines()
        if asked.search(line) and not line.strip().startswith("for ")  # a loop tells nothing apart
    ]
    assert found == []
