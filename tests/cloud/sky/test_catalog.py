"""Offers from SkyPilot's catalogs as they lie on a machine, made up here in SkyPilot's own form; and from the books."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

import pytest

from cloud.prices.book import load
from cloud.prices.rows import COLUMNS
from cloud.sky.skypilot.catalog import Catalogs, here
from cloud.sky.skypilot.catalog_files import catalog_folder, read_catalog

BOOKS = (load("study-2023-04"), load("list-2026-11"))
GCP = """InstanceType,vCPUs,MemoryGiB,AcceleratorName,AcceleratorCount,GpuInfo,Region,AvailabilityZone,Price,SpotPrice
n1-standard-4,4.0,15.0,,,,us-central1,us-central1-a,0.19,0.05
n1-standard-8,8.0,30.0,,,,us-central1,us-central1-a,0.38,0.1
n1-standard-8,8.0,30.0,,,,us-central1,us-central1-b,0.38,0.11
n1-highmem-8,8.0,52.0,,,,us-central1,us-central1-a,0.4736,0.13
n2-standard-2,2.0,8.0,,,,us-central1,us-central1-a,0.0971,0.0234
n2-standard-8,8.0,32.0,,,,us-central1,us-central1-a,0.3885,0.0936
n2-highcpu-8,8.0,8.0,,,,us-central1,us-central1-a,0.1,0.01
g2-standard-4,4.0,16.0,,,,us-central1,us-central1-a,0.147,0.05
g2-standard-8,8.0,32.0,,,,us-central1,us-central1-a,0.294,0.1
a2-highgpu-1g,12.0,85.0,,,,us-central1,us-central1-a,0.73948,0.36975
a2-highgpu-2g,24.0,170.0,,,,us-central1,us-central1-a,1.47895,0.7395
,,,T4,1.0,,us-central1,us-central1-a,0.35,0.2
,,,T4,2.0,,us-central1,us-central1-a,0.7,0.4
,,,T4,1.0,,us-central1,us-central1-b,0.35,
,,,L4,1.0,,us-central1,us-central1-a,0.56004,0.2
,,,A100,1.0,,us-central1,us-central1-a,2.933908,1.4
"""
AWS = """InstanceType,AcceleratorName,AcceleratorCount,vCPUs,MemoryGiB,GpuInfo,Price,SpotPrice,Region,AvailabilityZone,Arch
g4dn.xlarge,T4,1.0,4.0,16.0,x,0.526,0.2,us-east-1,use1-az6,x86_64
g4dn.2xlarge,T4,1.0,8.0,32.0,x,0.752,0.3,us-east-1,use1-az6,x86_64
g4dn.2xlarge,T4,1.0,8.0,32.0,x,0.752,0.35,us-east-1,use1-az1,x86_64
g4dn.4xlarge,T4,1.0,16.0,64.0,x,1.204,0.25,us-east-1,use1-az6,x86_64
g4dn.xlarge,T4,1.0,4.0,16.0,x,0.526,0.2,eu-central-1,euc1-az2,x86_64
m6i.large,,,2.0,8.0,,0.096,0.03,us-east-1,use1-az6,x86_64
m6g.large,,,2.0,8.0,,0.01,0.01,us-east-1,use1-az6,arm64
t3.large,,,2.0,8.0,,0.05,0.01,us-east-1,use1-az6,x86_64
"""
AZURE = """InstanceType,AcceleratorName,AcceleratorCount,vCPUs,MemoryGiB,GpuInfo,Price,SpotPrice,Region,Generation
Standard_NC4as_T4_v3,T4,1.0,4.0,28.0,x,0.526,0.0526,eastus,"V1,V2"
Standard_D2s_v5,,,2.0,8.0,,0.096,,eastus,"V1,V2"
"""
LAMBDA = """InstanceType,AcceleratorName,AcceleratorCount,vCPUs,MemoryGiB,Price,Region,GpuInfo,SpotPrice
gpu_1x_a10,A10,1.0,30.0,200.0,0.75,us-west-1,x,
"""
MAPPING = "AvailabilityZone,AvailabilityZoneName\nuse1-az6,us-east-1a\nuse1-az1,us-east-1b\neuc1-az2,eu-central-1a\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for cloud, text in (("gcp", GCP), ("aws", AWS), ("azure", AZURE), ("lambda", LAMBDA)):
        (tmp_path / cloud).mkdir()
        (tmp_path / cloud / "vms.csv").write_text(text)
        dated = datetime(2026, 11, 20, tzinfo=UTC).timestamp()
        os.utime(tmp_path / cloud / "vms.csv", (dated, dated))
    (tmp_path / "aws" / "az_mappings-0123abcd.csv").write_text(MAPPING)
    return tmp_path


@pytest.mark.parametrize(
    ("location", "accelerator", "spot", "expected"),
    [
        # by hand: host and T4 of one zone added; n1-standard-4 has less memory than the study's VMs
        ("gcp/us-central1/us-central1-a", "T4:1", True, [("n1-standard-8", "0.3"), ("n1-highmem-8", "0.33")]),
        (
            "gcp/us-central1/us-central1-a",
            "T4:1",
            False,
            [("n1-standard-8", "0.73"), ("n1-highmem-8", "0.8236")],
        ),
        ("gcp/us-central1/us-central1-a", "T4:2", True, [("n1-standard-8", "0.5"), ("n1-highmem-8", "0.53")]),
        ("gcp/us-central1/us-central1-b", "T4:1", True, [("n1-standard-8", None)]),  # no spot price of its T4
        ("gcp/us-central1/us-central1-b", "T4:1", False, [("n1-standard-8", "0.73")]),
        ("gcp/us-central1", "T4:1", True, [("n1-standard-8", "0.3"), ("n1-highmem-8", "0.33")]),
        ("gcp/us-central1/us-central1-a", "L4:1", False, [("g2-standard-8", "0.85404")]),
        ("gcp/us-central1/us-central1-a", "A100:1", True, [("a2-highgpu-1g", "1.76975")]),
        ("gcp/us-central1/us-central1-a", "CPU:8", True, [("n2-standard-8", "0.0936")]),
        (
            "gcp/us-central1/us-central1-a",
            "CPU:1",
            True,
            [("n2-standard-2", "0.0234"), ("n2-standard-8", "0.0936")],
        ),
        ("aws/us-east-1/us-east-1a", "T4:1", False, [("g4dn.2xlarge", "0.752"), ("g4dn.4xlarge", "1.204")]),
        ("aws/us-east-1/us-east-1a", "T4:1", True, [("g4dn.4xlarge", "0.25"), ("g4dn.2xlarge", "0.3")]),
        ("aws/us-east-1/us-east-1b", "T4:1", True, [("g4dn.2xlarge", "0.35")]),
        ("aws/eu-central-1/eu-central-1a", "T4:1", True, [("g4dn.xlarge", "0.2")]),  # there is no larger one
        ("aws/us-east-1/us-east-1a", "CPU:2", True, [("m6i.large", "0.03")]),  # neither burstable nor ARM
        ("azure/eastus", "T4:1", True, [("Standard_NC4as_T4_v3", "0.0526")]),
        ("azure/eastus", "CPU:2", True, [("Standard_D2s_v5", None)]),
        ("lambda/us-west-1", "A10:1", False, [("gpu_1x_a10", "0.75")]),
    ],
)
def test_offers_are_the_catalogs_cheapest_first_and_unknown_last(
    location: str, accelerator: str, spot: bool, expected: list[tuple[str, str | None]], folder: Path
):
    offers = Catalogs(folder).offers(location, accelerator, spot)
    wished = [(name, None if usd is None else Decimal(usd)) for name, usd in expected]
    assert [(o.instance, o.usd_per_h) for o in offers] == wished
    for offer in offers:
        assert (offer.location, offer.accelerator, offer.use_spot) == (location, accelerator, spot)
        assert f"SkyPilot catalog {location.split('/')[0]} v8, file dated 2026-11-20" in offer.price_source
        assert ("no spot price" in offer.price_source) == (offer.usd_per_h is None)


@pytest.mark.parametrize(
    ("location", "accelerator", "spot", "why"),
    [
        ("gcp/us-central1/us-central1-a", "H100:8", True, "has no H100:8 at gcp/us-central1/us-central1-a"),
        ("gcp/europe-west1/europe-west1-b", "T4:1", True, "has no T4:1"),
        ("lambda/us-west-1", "A10:1", True, "Lambda rents no spot VMs"),
        ("b2/us-west-1", "T4:1", False, "not used for 'b2'"),
    ],
)
def test_missing_offer_has_a_reason(location: str, accelerator: str, spot: bool, why: str, folder: Path):
    found = Catalogs(folder, BOOKS).look(location, accelerator, spot)
    assert found.offers == ()
    assert why in found.why


def test_without_the_accounts_zone_names_the_dearest_zone_counts(folder: Path):
    (folder / "aws" / "az_mappings-0123abcd.csv").unlink()
    offers = Catalogs(folder).offers("aws/us-east-1/us-east-1d", "T4:1", True)
    assert [(o.instance, o.usd_per_h) for o in offers] == [
        ("g4dn.4xlarge", Decimal("0.25")),
        ("g4dn.2xlarge", Decimal("0.35")),
    ]
    assert "no file here says which of them us-east-1d is" in offers[0].price_source
    (on_demand, *_) = Catalogs(folder).offers("aws/us-east-1/us-east-1d", "T4:1", False)
    assert on_demand.usd_per_h == Decimal("0.752")  # one price in all zones


def test_the_newest_row_of_the_books_counts_where_there_is_no_catalog(tmp_path: Path):
    catalogs = Catalogs(tmp_path, BOOKS)
    found = catalogs.look("gcp/us-central1/us-central1-a", "T4:1", True)
    assert [(o.instance, o.usd_per_h) for o in found.offers] == [("n1-standard-8", Decimal("0.27946"))]
    assert "price book list-2026-11.csv:" in found.offers[0].price_source
    assert "is not on this machine" in found.why
    spot = catalogs.offers("aws/us-east-1/us-east-1a", "T4:1", True)  # only the study's book has one
    assert [(o.instance, o.usd_per_h) for o in spot] == [("g4dn.2xlarge", Decimal("0.395"))]
    assert "price book study-2023-04.csv:" in spot[0].price_source
    assert "valid from 2023-04-01" in spot[0].price_source


def test_a_price_in_neither_is_unknown_with_the_vm_it_would_be(tmp_path: Path):
    (offer,) = Catalogs(tmp_path, BOOKS[1:]).offers("aws/us-east-1/us-east-1a", "T4:1", True)
    assert (offer.instance, offer.usd_per_h) == ("g4dn.2xlarge", None)
    assert offer.price_source.startswith("unknown: ")
    assert Catalogs(tmp_path, BOOKS).look("azure/eastus", "H100:8", True).offers == ()


def test_each_book_that_lacks_a_price_is_named_once(tmp_path: Path):
    for book in BOOKS:
        why = here(book, {"HOME": str(tmp_path)}).look("gcp/us-central1/us-central1-a", "H200:8", True).why
        assert all(why.count(other.name) == 1 for other in BOOKS), why


@pytest.mark.parametrize(
    "text",
    [
        "",
        "InstanceType,Price\n",
        GCP.replace("0.38,0.1\n", "0.38\n", 1),
        GCP.replace("8.0,30.0", "eight,30.0", 1),
    ],
)
def test_unreadable_catalog_is_reported_and_price_books_are_used(text: str, tmp_path: Path):
    (tmp_path / "gcp").mkdir()
    (tmp_path / "gcp" / "vms.csv").write_text(text)
    found = Catalogs(tmp_path, BOOKS).look("gcp/us-central1/us-central1-a", "T4:1", True)
    assert found.offers[0].usd_per_h == Decimal("0.27946")
    assert "cannot be read" in found.why


def test_a_catalog_is_read_again_when_it_was_replaced(folder: Path):
    first = read_catalog(folder, "lambda")
    assert read_catalog(folder, "lambda") is first
    (folder / "lambda" / "vms.csv").write_text(LAMBDA.replace("0.75", "0.79"))
    (offer,) = Catalogs(folder).offers("lambda/us-west-1", "A10:1", False)
    assert offer.usd_per_h == Decimal("0.79")


def test_the_folder_is_skypilots_own(tmp_path: Path):
    assert catalog_folder({"HOME": str(tmp_path)}) == tmp_path / ".sky/catalogs/v8"
    runtime = catalog_folder({"HOME": "/elsewhere", "SKY_RUNTIME_DIR": str(tmp_path)})
    assert runtime == tmp_path / ".sky/catalogs/v8"
    (offer,) = here(BOOKS[0], {"HOME": str(tmp_path)}).offers("lambda/us-west-1", "A10:1", False)
    assert offer.usd_per_h == Decimal("1.29")  # of list-2026-11, which is newer than the study's


def test_the_users_own_rows_count_before_newer_ones_of_other_books_and_rows_below_them_do_not(tmp_path: Path):
    own = tmp_path / "mine.csv"
    own.write_text(
        ",".join(COLUMNS)
        + "\ngcp,vm,us-central1,*,T4:1/n1-standard-8/spot,h,0,0.11,60,1,2020-01-01,contract\n"
    )
    catalogs = here(load(f"study-2023-04,{own}"), {"HOME": str(tmp_path)})
    found = {region: catalogs.look(f"gcp/{region}", "T4:1", True) for region in ("us-central1", "us-west1")}
    mine, listed = (found[region].offers[0] for region in ("us-central1", "us-west1"))
    assert mine.usd_per_h == Decimal("0.11")
    assert mine.price_source.startswith("price book mine.csv:2, valid from 2020-01-01 (contract)")
    assert listed.usd_per_h == Decimal("0.27946")  # the newest of the books, as without rows of one's own
    assert [each.price and each.price.origin.partition(":")[0] for each in found.values()] == [
        "mine.csv",
        "list-2026-11.csv",
    ]


def test_only_a_price_that_no_catalog_should_have_is_asked_of_a_book(folder: Path, tmp_path: Path):
    spot = Catalogs(folder).look(
        "gcp/us-central1/us-central1-b", "T4:1", True
    )  # in the catalog, without a price
    assert (spot.offers[0].usd_per_h, spot.row_helps) == (None, False)
    assert not Catalogs(tmp_path / "none").look("lambda/us-west-1", "A10:1", True).row_helps
    assert Catalogs(tmp_path / "none", BOOKS[1:]).look("aws/us-east-1/us-east-1a", "T4:1", True).row_helps
