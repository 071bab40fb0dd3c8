"""The books that come with orch: the paper's book is exactly its table, and every price has a source."""

from __future__ import annotations

import csv
import io
import re
from datetime import date
from decimal import Decimal

import pytest

from cloud.prices.book import PriceBook, book_names, load, load_for, newest
from cloud.prices.compare import differences

# PAPER.md, "Prices of April 2023 (the paper's Table 1, $/h and $/GB)": GC, AWS, Azure.
CLOUDS = ("gcp", "aws", "azure")
TABLE_1 = {
    ("vm", "T4", "spot"): ("0.180", "0.395", "0.134"),
    ("vm", "T4", "on_demand"): ("0.572", "0.802", "0.489"),
    ("inter_zone", "*", "*"): ("0.01", "0.01", "0.00"),
    ("inter_region", "US", "US"): ("0.01", "0.01", "0.02"),
    ("inter_region", "EU", "EU"): ("0.02", "0.01", "0.02"),
    ("inter_region", "ASIA", "ASIA"): ("0.05", "0.01", "0.08"),
    ("inter_region", "AUS", "AUS"): ("0.08", "0.01", "0.08"),
    ("oceania", "*", "*"): ("0.15", "0.02", "0.08"),
    ("inter_continent", "*", "*"): ("0.08", "0.02", "0.02"),
    ("same_zone", "*", "*"): ("0.00", "0.00", "0.00"),  # the sentence under the table
    ("between_clouds", "US", "US"): ("0.01", "0.01", "0.02"),  # its D runs
}
IOWA, IOWA_B = "gcp/us-central1/us-central1-a", "gcp/us-central1/us-central1-b"
OREGON = "gcp/us-west1/us-west1-b"
BELGIUM, SYDNEY = "gcp/europe-west1/europe-west1-b", "gcp/australia-southeast1/australia-southeast1-b"
AWS_OREGON, TEXAS = "aws/us-west-2/us-west-2a", "azure/southcentralus"
GIB = 2**30


def test_the_study_s_book_is_its_table():
    found = {}
    for price in load("study-2023-04").prices():
        if price.product == "vm":
            accelerator, _, market = price.item.split("/")
            if accelerator == "T4:1":
                found["vm", "T4", market, price.provider] = price.usd
        elif price.product == "egress" and price.provider in CLOUDS and price.item != "internet":
            found[price.item, price.src, price.dst, price.provider] = price.usd
    wanted = {
        (*row, cloud): Decimal(usd)
        for row, prices in TABLE_1.items()
        for cloud, usd in zip(CLOUDS, prices, strict=True)
    }
    assert found == wanted


def test_what_the_study_s_book_holds_besides_the_table():
    book = load("study-2023-04")
    rest = {
        (p.provider, p.product, p.item, p.dst): p.usd
        for p in book.prices()
        if p.provider in ("lambda", "b2") or p.item == "internet" or "V100" in p.item
    }
    free = {key for key in rest if key[:2] == ("lambda", "egress")}
    assert {rest.pop(key) for key in free} == {0}
    assert len(free) == 7
    assert {key: str(usd) for key, usd in rest.items()} == {
        ("gcp", "vm", "V100:8/DGX-2/spot", "*"): "6.30",
        ("gcp", "vm", "V100:8/DGX-2/on_demand", "*"): "14.60",
        ("lambda", "vm", "A10:1/A10/on_demand", "*"): "0.60",
        ("b2", "store_egress", "*", "*"): "0.01",
        ("b2", "storage", "*", "*"): "0.005",
        # Not the study's: what a GC VM sends to the store and the monitor; each row's source says so.
        ("gcp", "egress", "internet", "*"): "0.19",
        ("gcp", "egress", "internet", "AUS"): "0.19",
    }
    for price in book.prices():
        assert ("in no table of the study" in price.source) == (
            price.provider == "gcp" and price.item == "internet"
        )


def _usd(book: PriceBook, src: str, dst: str) -> Decimal:
    usd = book.egress(src, dst, GIB if src.startswith("gcp") else 10**9)
    assert usd is not None
    return usd


def test_the_study_s_figures_between_clouds_and_across_continents():
    """PAPER.md, the cost figures with their inputs; "GB" as the study counts them, at the book's prices."""
    book = load("study-2023-04")
    vm = book.vm(IOWA, "T4", True)
    load_usd = book.store_egress("b2/us-west-004", IOWA, 10**9)
    assert vm is not None
    assert load_usd is not None
    here, away = _usd(book, IOWA, IOWA_B), _usd(book, OREGON, AWS_OREGON)
    assert away == _usd(book, OREGON, TEXAS) == here
    d2 = vm.usd + Decimal("8.6570") * (here + 2 * away) / 3 + Decimal("14.3691") * load_usd
    assert round(d2, 4) == Decimal("0.4103")
    # What the study gets on one basis for GC + Azure (D-3) against GC + AWS (D-2): 22.4 % less.
    others = []
    for place in (AWS_OREGON, TEXAS):
        price = book.vm(place, "T4", True)
        assert price is not None
        inside, outside = _usd(book, place, place.replace("2a", "2b")), _usd(book, place, OREGON)
        others.append(
            price.usd + Decimal("8.6570") * (inside + 2 * outside) / 3 + Decimal("14.3691") * load_usd
        )
    assert round(100 * (1 - (d2 + others[1]) / (d2 + others[0])), 1) == Decimal("22.4")
    c8 = (
        Decimal("62.7432") * (8 * here + 6 * _usd(book, IOWA, BELGIUM) + 6 * _usd(book, IOWA, SYDNEY)) / 20
        + Decimal("4.1508") * load_usd
    )
    assert round(Decimal("0.1825") + c8, 3) == Decimal("4.804")


@pytest.mark.parametrize("name", book_names())
def test_every_price_has_a_source_and_a_date(name):
    for price in load(name).prices():
        assert price.valid_from <= date(2026, 11, 21)
        assert not re.search("recall|not looked up|guess", price.source)
        # A page, a file in a repository, or the study's table.
        assert re.search(r"\.(com|org|ai|cloud|dev|cz)\b|github|arXiv|SKU", price.source), price.source
        if price.provider in ("gcp", "aws") and price.product == "vm":
            assert (price.minimum_s, price.increment_s) == (60, 1)
        if price.provider == "lambda" and price.product == "vm":
            assert (price.minimum_s, price.increment_s) == (None, 60)
    azure = {p.minimum_s for p in load(name).prices() if p.provider == "azure" and p.product == "vm"}
    assert azure == ({None} if name == "study-2023-04" else {300})


def test_a_book_kept_with_an_old_run_is_still_read():
    """Books had no column increment_s; runs keep the text of theirs."""
    new = load("study-2023-04")
    rows = list(csv.DictReader(io.StringIO(new.text)))
    buffer = io.StringIO()
    columns = [column for column in rows[0] if column != "increment_s"]
    writer = csv.DictWriter(buffer, columns, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    old = PriceBook.from_text(buffer.getvalue(), new.name)
    assert {p.increment_s for p in old.prices()} == {1}
    assert [(p.key, p.usd, p.tier_start) for p in old.prices()] == [
        (p.key, p.usd, p.tier_start) for p in new.prices()
    ]


def test_what_could_not_be_sourced_is_unknown():
    book = load("list-2026-11")
    assert book.vm("azure/eastus", "T4", use_spot=True) is None
    assert book.vm("aws/us-east-1", "T4", use_spot=True) is None
    assert book.storage_ladder("aws/eu-south-1") is None
    assert book.store_egress("lambda/us-west-1", IOWA, GIB) is None


def test_differences_between_books():
    study, today = load("study-2023-04"), load("list-2026-11")
    assert differences(study, study) == []
    found = {(row.key, row.tier_start): row for row in differences(study, today)}
    spot = found[("gcp", "vm", "us-central1", "*", "T4:1/n1-standard-8/spot"), Decimal(0)]
    # The study's book says `*`; that is what it would have billed in us-central1.
    assert (spot.usd, spot.other_usd) == (Decimal("0.180"), Decimal("0.27946"))
    assert spot.change is not None
    assert round(spot.change, 4) == Decimal("0.5526")
    dgx = found[("gcp", "vm", "*", "*", "V100:8/DGX-2/spot"), Decimal(0)]
    assert (dgx.usd, dgx.other_usd, dgx.change) == (Decimal("6.30"), None, None)
    second = found[("gcp", "egress", "US", "*", "internet"), Decimal(1024)]
    assert (second.usd, second.other_usd) == (Decimal("0.12"), Decimal("0.11"))
    assert (("b2", "store_egress", "*", "*", "*"), Decimal(0)) not in found


def test_a_difference_of_unit_is_a_difference_of_price():
    row = "gcp,egress,*,*,internet,{},0,0.12,,,2023-04-01,here"
    header = "provider,product,from,to,item,unit,tier_start,usd,minimum_s,increment_s,valid_from,source"
    a, b = (PriceBook.from_text(f"{header}\n{row.format(unit)}\n", f"{unit}.csv") for unit in ("GB", "GiB"))
    (found,) = differences(a, b)
    assert found.change is not None
    assert round(found.change, 4) == Decimal("-0.0687")
    assert differences(a, b, on=date(2020, 1, 1)) == []


def test_auto_uses_newest_book_for_rented_and_paper_book_for_emulated():
    assert load_for("auto", rented=True).newest_date == max(load(name).newest_date for name in book_names())
    assert load_for("auto", rented=False) == load("study-2023-04")
    for rented in (True, False):
        assert load_for("study-2023-04", rented=rented) == load("study-2023-04")
    assert newest().from_text(newest().text.splitlines()[0] + "\n", "empty.csv").newest_date is None
