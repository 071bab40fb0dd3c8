"""Rows of the user's own on top of a book, and the rows that a book lacks."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from pathlib import Path

import pytest

from cloud.prices.book import PriceBook, PriceBookError, book_names, load, load_for
from cloud.prices.missing import MissingPrice, as_csv, missing_egress, missing_store_egress, missing_vms
from cloud.prices.rows import COLUMNS, to_text

HEADER = ",".join(COLUMNS)
IOWA = "gcp/us-central1/us-central1-a"
OREGON = "gcp/us-west1/us-west1-b"
VIRGINIA = "aws/us-east-1/us-east-1a"
TAIWAN = "gcp/asia-east1/asia-east1-a"
TODAY = date(2026, 11, 25)


def book(*rows: str, name: str = "mine.csv") -> PriceBook:
    return PriceBook.from_text("\n".join((HEADER, *rows)) + "\n", name)


BASE = book(
    "gcp,vm,us-central1,*,T4:1/n1-standard-8/spot,h,0,0.28,60,1,2026-11-21,list",
    "gcp,vm,us-west1,*,T4:1/n1-standard-8/spot,h,0,0.29,60,1,2026-11-21,list",
    "gcp,egress,*,*,inter_region,GiB,0,0.02,,,2026-11-21,list",
    "gcp,egress,US,*,internet,GiB,0,0.12,,,2026-11-21,list",
    "gcp,egress,US,*,internet,GiB,1024,0.11,,,2026-11-21,list",
    name="base.csv",
)


def test_a_row_of_ones_own_wins_for_the_same_place_and_narrower_ones_whatever_the_dates():
    own = book(
        "gcp,vm,*,*,T4:1/n1-standard-8/spot,h,0,0.11,60,1,2026-10-12,contract",
        "gcp,egress,US,*,internet,GiB,0,0.06,,,2026-11-21,contract",
    )
    both = BASE.under(own)
    for place in (IOWA, OREGON):
        price = both.vm(place, "T4", True)
        assert price is not None
        assert (price.usd, price.origin) == (Decimal("0.11"), "mine.csv:2")
    assert (
        both.egress(IOWA, VIRGINIA, 2**41) == Decimal("0.06") * 2048
    )  # the base's second tier does not count
    assert both.egress(IOWA, OREGON, 2**30) == Decimal("0.02")


def test_a_row_for_one_region_leaves_the_others():
    both = BASE.under(book("gcp,vm,us-west1,*,T4:1/n1-standard-8/spot,h,0,0.5,60,1,2026-11-01,contract"))
    prices = [both.vm(place, "T4", True) for place in (IOWA, OREGON)]
    assert [price and (str(price.usd), price.origin) for price in prices] == [
        ("0.28", "base.csv:2"),
        ("0.5", "mine.csv:2"),
    ]


def test_the_combination_is_a_book_whose_text_gives_the_same_prices():
    both = BASE.under(book('gcp,egress,*,*,inter_zone,GB,0,0.00000000001,,,2026-11-21,"a, b"'))
    assert both.name == "base.csv+mine.csv"
    assert both.sha256 == hashlib.sha256(both.text.encode()).hexdigest() != BASE.sha256
    stored = PriceBook.from_text(both.text, both.name)
    assert [(p.key, p.usd, p.line, p.source) for p in stored.prices()] == [
        (p.key, p.usd, p.line, p.source) for p in both.prices()
    ]
    assert len(stored.prices()) == len(BASE.prices()) + 1


@pytest.mark.parametrize("name", book_names())
def test_a_book_is_written_as_it_was_read(name: str):
    shipped = load(name)
    again = PriceBook.from_text(to_text(shipped.prices()), shipped.name)
    assert [(p.key, p.unit, p.tier_start, p.usd, p.minimum_s, p.increment_s, p.valid_from, p.source) for p in shipped.prices()] == [
        (p.key, p.unit, p.tier_start, p.usd, p.minimum_s, p.increment_s, p.valid_from, p.source) for p in again.prices()
    ]  # fmt: skip


def test_files_and_names_joined_by_commas_are_one_book(tmp_path: Path):
    for name, usd in (("a.csv", "0.3"), ("b.csv", "0.4")):
        text = f"{HEADER}\nr2,store_egress,*,*,*,GB,0,{usd},,,2026-11-21,contract\n"
        (tmp_path / name).write_text(text)
    both = load(f"list-2026-11, {tmp_path}/a.csv,{tmp_path}/b.csv")
    assert both.name == "list-2026-11.csv+a.csv+b.csv"
    assert both.store_egress("r2/weur", IOWA, 10**9) == Decimal("0.4")
    assert both.vm(IOWA, "T4", True) is not None
    fitting = {rented: load_for(f"auto,{tmp_path}/a.csv", rented=rented).name for rented in (True, False)}
    assert fitting == {True: "list-2026-11.csv+a.csv", False: "study-2023-04.csv+a.csv"}
    with pytest.raises(PriceBookError, match=r"c\.csv: there is no such price book"):
        load(f"list-2026-11,{tmp_path}/c.csv")


@dataclass
class Vm:
    location: str
    accelerator: str
    use_spot: bool
    instance: str


def test_missing_rows_can_be_pasted_and_then_have_the_price():
    empty = book("gcp,egress,US,EU,inter_continent,GiB,0,0.05,,,2026-11-21,list")
    links = [(IOWA, IOWA), (IOWA, OREGON), (IOWA, TAIWAN), (IOWA, VIRGINIA), (VIRGINIA, "onprem/eu-dgx2")]
    missing = [missing_egress(empty, src, dst, public=True) for src, dst in links]
    missing += [missing_store_egress(empty, "aws/us-east-1", dst) for dst in (VIRGINIA, IOWA)]
    missing.append(missing_store_egress(empty, "b2/us-west-1", IOWA))
    missing += missing_vms(empty, [Vm(VIRGINIA, "T4:1", True, "g4dn.2xlarge")])
    assert as_csv([*missing, *missing], TODAY).splitlines() == [
        HEADER,
        "gcp,egress,us-central1,*,inter_zone,GiB,0,,,,2026-11-25,",
        "gcp,egress,us-central1,*,inter_region,GiB,0,,,,2026-11-25,",
        "gcp,egress,us-central1,ASIA,inter_continent,GiB,0,,,,2026-11-25,",
        "gcp,egress,us-central1,*,internet,GiB,0,,,,2026-11-25,",
        "aws,egress,us-east-1,*,internet,GB,0,,,,2026-11-25,",
        "aws,store_egress,us-east-1,*,same_region,GB,0,,,,2026-11-25,",
        "aws,store_egress,us-east-1,*,internet,GB,0,,,,2026-11-25,",
        "b2,store_egress,us-west-1,*,internet,GB,0,,,,2026-11-25,",
        "aws,vm,us-east-1,*,T4:1/g4dn.2xlarge/spot,h,0,,,,2026-11-25,",
    ]
    filled = as_csv(missing, TODAY).replace(",0,,,,", ",0,0.07,,,").replace("25,", "25,the page")
    whole = empty.under(PriceBook.from_text(filled, "mine.csv"))
    assert all(whole.egress(src, dst, 1, public=True) is not None for src, dst in links)
    assert whole.vm(VIRGINIA, "T4", True) is not None
    assert whole.store_egress("aws/us-east-1", IOWA, 10**9) == Decimal("0.07")
    assert [MissingPrice.of(price.as_dict()) for price in missing] == missing


def test_an_instance_type_that_is_unknown_must_be_written():
    (row,) = missing_vms(BASE, [Vm(VIRGINIA, "A100:8", False, "unknown")])
    filled = as_csv([row], TODAY).replace(",0,,,,", ",0,0.07,,,").replace("25,", "25,the page")
    with pytest.raises(
        PriceBookError, match=r"mine\.csv:2: .*write the instance type instead of INSTANCE_TYPE"
    ):
        PriceBook.from_text(filled, "mine.csv")
    (known,) = missing_vms(BASE, [Vm("gcp/us-east1/us-east1-b", "T4:1", False, "unknown")])
    assert known.item == "T4:1/n1-standard-8/on_demand"
