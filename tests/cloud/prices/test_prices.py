"""The price books: what they hold, what they do not, and how a wrong one is refused."""

from __future__ import annotations

import csv
import hashlib
import io
from datetime import date
from decimal import Decimal

import pytest

from cloud.prices.book import PriceBook, PriceBookError, book_names, load
from cloud.prices.classes import INTERNET, egress_class

IOWA = "gcp/us-central1/us-central1-a"
IOWA_B = "gcp/us-central1/us-central1-b"
OREGON = "gcp/us-west1/us-west1-b"
BELGIUM = "gcp/europe-west1/europe-west1-b"
TAIWAN = "gcp/asia-east1/asia-east1-a"
OWN = "onprem/eu-rtx8000"
SYDNEY = "gcp/australia-southeast1/australia-southeast1-b"
HEADER = "provider,product,from,to,item,unit,tier_start,usd,minimum_s,valid_from,source"
ROW = "gcp,egress,*,*,internet,GB,0,0.12,,2023-04-01,here"


def _book(*rows):
    return PriceBook.from_text("\n".join((HEADER, *rows)) + "\n", "mine.csv")


@pytest.mark.parametrize(
    ("src", "dst", "kind"),
    [
        (IOWA, IOWA, "same_zone"),
        (IOWA, IOWA_B, "inter_zone"),
        (IOWA, OREGON, "inter_region"),
        (IOWA, BELGIUM, "inter_continent"),
        (TAIWAN, SYDNEY, "oceania"),
        (SYDNEY, BELGIUM, "oceania"),
        (IOWA, "aws/us-west-2/us-west-2a", "between_clouds"),
        (IOWA, "b2/us-west-004", "internet"),
        (IOWA, INTERNET, "internet"),
        (IOWA, "gcp/mars-north1/a", None),
        ("b2/us-west-004", IOWA, None),
        ("", IOWA, None),
        (OWN, BELGIUM, "internet"),
        (BELGIUM, OWN, "internet"),
        (OWN, "b2/us-west-004", "internet"),
        ("onprem/mars", BELGIUM, None),
    ],
)
def test_classes(src, dst, kind):
    assert egress_class(src, dst) == kind


@pytest.mark.parametrize("name", book_names())
def test_ones_own_machine_costs_nothing_and_what_is_sent_to_it_does(name):
    book = load(name)
    assert book.vm(OWN, "RTX8000:1", False).usd == book.vm(OWN, "H100:8", True).usd == 0
    assert book.egress(OWN, BELGIUM, 10**15) == book.egress(OWN, INTERNET, 1) == 0
    assert (book.egress(BELGIUM, OWN, 10**9) or 0) > 0
    assert (book.vm("onprem/mars", "RTX8000:1", False), book.egress("onprem/mars", BELGIUM, 1)) == (
        None,
        None,
    )


@pytest.mark.parametrize(
    ("src", "dst", "usd"),
    [
        (IOWA, IOWA, "0"),
        (IOWA, IOWA_B, "0.01"),
        (IOWA, OREGON, "0.01"),
        (BELGIUM, "gcp/europe-west4/europe-west4-a", "0.02"),
        (TAIWAN, "gcp/asia-northeast1/asia-northeast1-a", "0.05"),
        (IOWA, BELGIUM, "0.08"),
        (BELGIUM, SYDNEY, "0.15"),
        ("aws/us-west-2/us-west-2a", "aws/eu-west-1/eu-west-1a", "0.02"),
        ("azure/eastus", "azure/japaneast", "0.02"),
    ],
)
def test_the_study_s_egress_prices(src, dst, usd):
    unit = 2**30 if src.startswith("gcp") else 10**9
    assert load("study-2023-04").egress(src, dst, unit) == Decimal(usd)


def test_the_study_s_vm_prices():
    book = load("study-2023-04")
    found = {
        (where, spot): price.usd
        for where in (IOWA, "aws/us-east-1/us-east-1a", "azure/eastus")
        for spot in (True, False)
        if (price := book.vm(where, "T4:1", spot))
    }
    assert sorted(found.values()) == [
        Decimal(x) for x in ("0.134", "0.180", "0.395", "0.489", "0.572", "0.802")
    ]
    price = book.vm(IOWA, "T4", True)
    assert price is not None
    assert (price.instance, price.minimum_s, price.unit) == ("n1-standard-8", 60, "h")
    assert book.store_egress("b2/us-west-004", IOWA, 10**9) == Decimal("0.01")
    assert book.store_providers() == ("b2",)


def test_what_is_not_in_the_book_is_unknown_and_never_0():
    book = load("study-2023-04")
    assert book.vm(IOWA, "H100:8", True) is None
    assert book.vm("nowhere/x", "T4:1", True) is None
    assert book.egress("gcp/mars-north1/a", IOWA, 1) is None
    assert book.egress("aws/us-west-2/us-west-2a", INTERNET, 1) is None
    assert book.store_egress("gcp/us-central1", IOWA, 1) is None


def test_between_clouds_is_billed_as_internet_unless_the_book_says_otherwise():
    away = "aws/us-west-2/us-west-2a"
    assert _book(ROW).egress(IOWA, away, 10**9) == Decimal("0.12")
    assert _book(ROW, ROW.replace("internet", "between_clouds").replace("0.12", "0.05")).egress(
        IOWA, away, 10**9
    ) == Decimal("0.05")


def test_region_price_takes_precedence_and_cheapest_instance_is_chosen():
    rows = [
        "gcp,vm,{},*,T4:1/{}/spot,h,0,{},60,2023-04-01,here".format(*r)
        for r in (("*", "a", "0.1"), ("us-central1", "a", "0.3"), ("us-central1", "b", "0.2"))
    ]
    book = _book(*rows)
    assert [book.vm(where, "T4:1", True).usd for where in (IOWA, BELGIUM)] == [Decimal("0.2"), Decimal("0.1")]


def test_tiers_are_marginal():
    book = _book(ROW, ROW.replace(",0,0.12", ",10,0.08"))
    assert book.egress(IOWA, INTERNET, 12 * 10**9) == Decimal("1.2") + Decimal("0.16")
    assert book.egress(IOWA, INTERNET, 10**9, already_bytes=10 * 10**9) == Decimal("0.08")
    assert book.egress(IOWA, INTERNET, 0) == 0


def test_prices_are_those_of_the_day():
    book = _book(ROW, ROW.replace("0.12", "0.2").replace("2023", "2025"))
    assert book.egress(IOWA, INTERNET, 10**9, on=date(2024, 1, 1)) == Decimal("0.12")
    assert book.egress(IOWA, INTERNET, 10**9) == Decimal("0.2")
    assert book.egress(IOWA, INTERNET, 10**9, on=date(2020, 1, 1)) is None


@pytest.mark.parametrize(
    ("rows", "sentence"),
    [
        ((ROW, ROW), "mine.csv:3: overlaps line 2"),
        ((ROW.replace(",0,0.12", ",5,0.12"),), "mine.csv:2: the first tier begins at 5"),
        ((ROW, ROW.replace("GB,0", "GiB,10")), "mine.csv:3: unit 'GiB' differs from line 2's 'GB'"),
        ((ROW.replace("GB", "TB"),), "mine.csv:2: unit 'TB' of egress is not GB or GiB"),
        ((ROW.replace("0.12", "EUR 0.12"),), "mine.csv:2: usd 'EUR 0.12' is not an amount in US dollars"),
        ((ROW.replace("0.12", "-1"),), "mine.csv:2: usd '-1' is not 0 or more"),
        ((ROW.replace("0.12", "NaN"),), "mine.csv:2: usd 'NaN' is not 0 or more"),
        ((ROW.replace("internet", "moon"),), "mine.csv:2: egress class 'moon'"),
        ((ROW.replace("egress,*", "egress,MARS"),), "mine.csv:2: from 'MARS'"),
        ((ROW.replace("2023-04-01", "April"),), "mine.csv:2: valid_from 'April' is not a date"),
        ((ROW.replace(",here", ","),), "mine.csv:2: the price has no source"),
        ((ROW.replace("egress", "lunch"),), "mine.csv:2: product 'lunch'"),
        (("gcp,vm,*,*,T4,h,0,1,,2023-04-01,here",), "mine.csv:2: item 'T4' of vm"),
        (("gcp,vm,*,*,T4:1/x/spot,h,0,1,soon,2023-04-01,here",), "mine.csv:2: minimum_s 'soon'"),
        (("gcp,vm",), "mine.csv:2: 2 cells, 11 columns"),
    ],
)
def test_a_wrong_book_is_one_sentence_with_its_line(rows, sentence):
    with pytest.raises(PriceBookError) as caught:
        _book(*rows)
    assert str(caught.value).startswith(sentence)
    assert "\n" not in str(caught.value)


def test_a_book_in_another_currency_is_refused():
    with pytest.raises(PriceBookError, match=r"mine.csv:1: prices must be in US dollars"):
        PriceBook.from_text(HEADER.replace("usd", "eur") + "\n", "mine.csv")


def test_no_such_book_names_those_there_are():
    with pytest.raises(PriceBookError, match="study-2023-04"):
        load("stduy")


def test_a_book_of_the_user_s_own(tmp_path):
    path = tmp_path / "own.csv"
    path.write_text(f"{HEADER}\n{ROW}\n")
    book = load(str(path))
    assert book.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
    assert PriceBook.from_text(book.text, book.name) == book


@pytest.mark.parametrize("name", book_names())
def test_every_row_of_our_books_can_be_looked_up_and_has_a_source(name):
    book = load(name)
    rows = list(csv.DictReader(io.StringIO(book.text)))
    assert len(rows) == sum(len(tiers) for tiers in book.tiers.values()) > 20
    for row in rows:
        assert len(row["source"]) > 10
        if row["product"] == "vm":
            accelerator, _, market = row["item"].split("/")
            where = f"{row['provider']}/{row['from']}"
            assert book.vm(where, accelerator, market == "spot") is not None
