"""What object stores bill: nothing within the region, other prices to other regions and to the internet."""

from __future__ import annotations

from decimal import Decimal
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloud.places import places
from cloud.prices.book import PriceBook, PriceBookError, load
from cloud.prices.classes import INTERNET, STORE_CLASSES, egress_class, store_egress_class
from cloud.prices.compare import differences
from cloud.prices.ladder import tiered_usd

LISTED = load("list-2026-11")
HEADER = "provider,product,from,to,item,unit,tier_start,usd,minimum_s,valid_from,source"
ANY = "aws,store_egress,*,*,*,GB,0,0.05,,2026-01-01,here"
VIRGINIA, OHIO, OREGON = "aws/us-east-1", "aws/us-east-2", "aws/us-west-2"
IOWA, BELGIUM, TAIWAN = "gcp/us-central1/us-central1-a", "gcp/europe-west1", "gcp/asia-east1"
SYDNEY, SAO_PAULO = "gcp/australia-southeast1", "gcp/southamerica-east1"
GB, GIB = 10**9, 2**30
LOCATIONS = sorted({p.location for p in places()} | {f"{p.cloud}/{p.region}" for p in places()})


def _book(*rows: str) -> PriceBook:
    return PriceBook.from_text("\n".join((HEADER, *rows)) + "\n", "mine.csv")


@pytest.mark.parametrize(
    ("store", "dst", "kind"),
    [
        (VIRGINIA, "aws/us-east-1/us-east-1a", "same_region"),
        (VIRGINIA, VIRGINIA, "same_region"),
        (VIRGINIA, OREGON, "inter_region"),
        (VIRGINIA, "aws/eu-west-1/eu-west-1a", "inter_continent"),
        (VIRGINIA, "aws/ap-southeast-2", "oceania"),
        (VIRGINIA, "lambda/us-east-1", "between_clouds"),  # the same name of a region, another cloud
        (VIRGINIA, "onprem/eu-dgx2", "internet"),
        (VIRGINIA, INTERNET, "internet"),
        ("b2/us-west-004", IOWA, "internet"),
        ("r2/weur", INTERNET, "internet"),
        ("r2/weur", "aws/mars", None),
        (VIRGINIA, "", None),
        ("aws/mars", IOWA, None),
    ],
)
def test_classes(store: str, dst: str, kind: str | None):
    assert store_egress_class(store, dst) == kind


def test_every_class_of_a_store_can_be_told():
    kinds = {store_egress_class(a, b) for a, b in product(LOCATIONS, [*LOCATIONS, INTERNET])}
    assert kinds == {*STORE_CLASSES}


@pytest.mark.parametrize(
    ("store", "dst", "count", "usd"),
    [
        # S3: nothing within the region, EC2's price to another one, tiers to whatever is outside AWS.
        (VIRGINIA, "aws/us-east-1/us-east-1a", 10**15, "0"),
        (VIRGINIA, OHIO, 100 * GB, "1"),
        (VIRGINIA, OREGON, 100 * GB, "2"),
        (OREGON, "aws/eu-west-1/eu-west-1a", 100 * GB, "2"),
        ("aws/ap-northeast-1", OREGON, 100 * GB, "9"),
        ("aws/sa-east-1", "aws/ap-southeast-2", 100 * GB, "13.8"),
        (VIRGINIA, "lambda/us-east-1", 100 * GB, "9"),
        (VIRGINIA, IOWA, 100 * GB, "9"),
        (VIRGINIA, INTERNET, 11000 * GB, "986.2"),  # 10240 * 0.09 + 760 * 0.085
        # Cloud Storage: by pairs of continents, per GiB; to the internet by destination.
        ("gcp/us-central1", IOWA, 10**15, "0"),
        ("gcp/us-central1", "gcp/us-west1", 100 * GIB, "2"),
        ("gcp/us-central1", BELGIUM, 100 * GIB, "5"),
        ("gcp/us-central1", TAIWAN, 100 * GIB, "8"),
        (TAIWAN, SYDNEY, 100 * GIB, "10"),
        (TAIWAN, SAO_PAULO, 100 * GIB, "14"),
        ("gcp/us-central1", VIRGINIA, 2000 * GIB, "230.24"),  # 1024 * 0.12 + 976 * 0.11
        ("gcp/us-central1", "aws/ap-southeast-2", 100 * GIB, "19"),
        # Blob Storage.
        ("azure/eastus", "azure/eastus", 10**15, "0"),
        ("azure/eastus", "azure/westus", 100 * GB, "2"),
        ("azure/eastus", "azure/japaneast", 100 * GB, "5"),
        ("azure/brazilsouth", INTERNET, 100 * GB, "18.1"),
        # Stores outside the clouds.
        ("r2/weur", IOWA, 10**15, "0"),
        ("r2/weur", INTERNET, 10**15, "0"),
        ("b2/us-west-004", IOWA, 100 * GB, "1"),
    ],
)  # fmt: skip
def test_totals_by_hand(store: str, dst: str, count: int, usd: str):
    assert LISTED.store_egress(store, dst, count) == Decimal(usd)


@pytest.mark.parametrize(
    ("store", "usd"),
    [
        (VIRGINIA, "23"),
        ("aws/sa-east-1", "40.5"),
        ("azure/westus2", "18.4"),
        ("r2/weur", "15"),
        ("b2/us-west-004", "6"),
    ],
)
def test_a_terabyte_kept_for_a_month(store: str, usd: str):
    ladder = LISTED.storage_ladder(store)
    assert ladder is not None
    assert tiered_usd(ladder, 10**12) == Decimal(usd)


def test_storage_has_a_price_in_every_region_of_s3_and_cloud_storage_but_milan():
    """As docs/prices.md says; Azure's two regions are in the test above."""
    regions = sorted(
        {"/".join(where.split("/")[:2]) for where in LOCATIONS if where.startswith(("aws/", "gcp/"))}
    )
    assert [where for where in regions if LISTED.storage_ladder(where) is None] == ["aws/eu-south-1"]


@pytest.mark.parametrize(("store", "free"), [("aws/", True), ("gcp/", True), ("b2/", False)])
def test_bytes_inside_the_region_are_free_where_the_store_s_cloud_rents_vms(store: str, free: bool):
    for where in (one for one in LOCATIONS if one.startswith(store)):
        assert (LISTED.store_egress(where, where, 10**15) == 0) is free


def test_a_gibibyte_kept_for_a_month():
    ladder = LISTED.storage_ladder("gcp/us-central1")
    assert ladder is not None
    assert tiered_usd(ladder, GIB) == Decimal("0.02")


@pytest.mark.parametrize(
    ("src", "dst", "usd"),
    [
        (IOWA, TAIWAN, "0.08"), (TAIWAN, IOWA, "0.08"), (IOWA, SYDNEY, "0.10"), (SYDNEY, BELGIUM, "0.10"),
        (SYDNEY, "gcp/australia-southeast2", "0.10"), (TAIWAN, "gcp/asia-northeast1", "0.08"),
        (TAIWAN, "gcp/asia-southeast2", "0.10"), ("gcp/asia-southeast2", BELGIUM, "0.10"),
        (SAO_PAULO, SYDNEY, "0.14"), ("gcp/asia-southeast2", SAO_PAULO, "0.14"),
        (TAIWAN, INTERNET, "0.14"), ("gcp/asia-northeast1", INTERNET, "0.14"), (SAO_PAULO, INTERNET, "0.19"),
        ("gcp/asia-northeast1", "aws/ap-southeast-2", "0.19"), (SYDNEY, INTERNET, "0.19"),
    ],
)  # fmt: skip
def test_google_s_vms_between_continents_and_to_the_internet(src: str, dst: str, usd: str):
    assert LISTED.egress(src, dst, GIB) == Decimal(usd)


@pytest.mark.parametrize(
    ("src", "gb", "usd"),
    [
        ("azure/eastus", 20_000, "1701.34"),  # 10335 * 0.087 + 9665 * 0.083 = 899.145 + 802.195
        ("azure/japaneast", 100, "12"),
        ("azure/australiaeast", 100, "12"),
        ("azure/brazilsouth", 100, "18.1"),
    ],
)
def test_azure_s_vms_to_the_internet(src: str, gb: int, usd: str):
    assert LISTED.egress(src, INTERNET, gb * GB) == Decimal(usd)


@pytest.mark.parametrize("product_name", ["egress", "store_egress"])
def test_every_way_from_a_cloud_has_a_price(product_name: str):
    """Stores: of the three clouds that have one."""
    stores = product_name == "store_egress"
    clouds = ("gcp", "aws", "azure") if stores else ("gcp", "aws", "azure", "lambda")
    find = LISTED.store_ladder if stores else LISTED.ladder
    sources = [where for where in LOCATIONS if where.split("/")[0] in clouds]
    assert [
        (src, dst) for src, dst in product(sources, [*LOCATIONS, INTERNET]) if find(src, dst) is None
    ] == []


@given(st.sampled_from(LOCATIONS), st.sampled_from([*LOCATIONS, INTERNET, ""]), st.integers(0, 10**15))
def test_a_row_of_any_class_is_what_it_was_before_there_were_classes(store: str, dst: str, count: int):
    book = _book(*(ANY.replace("aws", cloud) for cloud in ("aws", "gcp", "azure", "lambda", "b2", "r2")))
    if store.startswith("onprem"):
        assert book.store_egress(store, dst, count) is None
    else:
        assert book.store_egress(store, dst, count) == count * Decimal("0.05") / GB


@given(
    st.sampled_from([where for where in LOCATIONS if where.split("/")[0] in ("gcp", "aws", "azure")]),
    st.sampled_from([*LOCATIONS, INTERNET]),
    st.integers(0, 10**12),
)
def test_a_store_never_sends_dearer_within_its_region_than_beyond(store: str, dst: str, count: int):
    here, there, outside = (LISTED.store_egress(store, end, count) for end in (store, dst, INTERNET))
    assert here == 0
    assert there is not None
    assert outside is not None
    assert there >= 0
    if egress_class(store, dst) not in ("between_clouds", "internet"):
        assert there <= outside * 2  # 0.14 between continents, 0.12 to the internet


def test_a_row_of_the_class_counts_before_one_of_any_class_however_near():
    near = ANY.replace("*,*,*", "us-east-1,*,*").replace("0.05", "0.07")
    free = ANY.replace("*,*,*", "*,*,same_region").replace("0.05", "0")
    book = _book(ANY, near, free)
    assert book.store_egress(VIRGINIA, "aws/us-east-1/us-east-1a", GB) == 0
    assert book.store_egress(VIRGINIA, OREGON, GB) == Decimal("0.07")
    assert book.store_egress(OREGON, OHIO, GB) == Decimal("0.05")


def test_to_another_cloud_the_internet_s_price_counts_unless_the_store_has_one():
    internet = ANY.replace("*,*,*", "*,*,internet")
    between = ANY.replace("*,*,*", "*,*,between_clouds").replace("0.05", "0.02")
    assert _book(internet).store_egress(VIRGINIA, IOWA, GB) == Decimal("0.05")
    assert _book(internet, between).store_egress(VIRGINIA, IOWA, GB) == Decimal("0.02")
    assert _book(internet).store_egress(VIRGINIA, OREGON, GB) is None


@pytest.mark.parametrize("item", ["same_zone", "inter_zone", "moon", ""])
def test_another_class_is_refused(item: str):
    with pytest.raises(
        PriceBookError, match=rf"mine\.csv:2: store egress class '{item}' is not one of \*, same"
    ):
        _book(ANY.replace("*,*,*", f"*,*,{item}"))


def test_a_class_is_compared_with_the_other_book_s_price_of_any_class():
    (found,) = differences(
        _book(ANY), _book(ANY, ANY.replace("*,*,*", "*,*,same_region").replace("0.05", "0"))
    )
    assert (found.key[-1], found.usd, found.other_usd) == ("same_region", Decimal("0.05"), Decimal(0))


def test_what_a_vm_sends_to_a_store_of_its_own_region_is_free_as_the_way_back():
    for store, vm in ((OREGON, "aws/us-west-2/us-west-2b"), ("gcp/us-central1", IOWA)):
        assert LISTED.upload(vm, store, 1000 * GB) == 0
        assert LISTED.ladder(vm, store) != LISTED.upload_ladder(vm, store), "between two zones it costs"


@given(st.sampled_from(LOCATIONS), st.sampled_from(LOCATIONS))
def test_all_other_uploads_are_egress(src: str, store: str):
    if store_egress_class(store, src) != "same_region":
        assert LISTED.upload_ladder(src, store) == LISTED.ladder(src, store)


def test_a_book_without_a_price_inside_the_store_s_region_takes_that_between_zones():
    own = _book("aws,egress,*,*,inter_zone,GB,0,0.02,,2026-01-01,here")
    assert own.upload("aws/us-west-2/us-west-2b", OREGON, 100 * GB) == Decimal(2)
