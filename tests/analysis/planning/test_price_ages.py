"""Old prices that a plan rests on."""

from __future__ import annotations

from datetime import date, timedelta
from decimal import Decimal

import pytest

from analysis.planning.plan import book_quoter, plan_of
from analysis.planning.price_ages import OLD_DAYS
from cloud.prices.book import PriceBook, load
from cloud.prices.rows import COLUMNS
from experiments.emulation.scales import resolve_emulation
from experiments.parse.load import load as load_experiment

DAY = date(2026, 11, 21)
ROWS = """gcp,vm,*,*,T4:1/n1-standard-8/spot,h,0,0.28,60,1,2026-11-21,list
gcp,egress,*,*,inter_continent,GiB,0,0.02,,,2026-11-21,list
gcp,egress,*,*,same_zone,GiB,0,0,,,2020-01-01,list
b2,store_egress,*,*,*,GB,0,0.01,,,2026-11-21,list
b2,storage,*,*,*,GB-month,0,0.01,,,2020-01-01,list
"""
BOOK = PriceBook.from_text(",".join(COLUMNS) + "\n" + ROWS, "mine.csv")
FILE = "write {} into mine.csv, used with `--set prices=list-2026-11,mine.csv`"


def plan(today: date, *settings: str, on: str = "sky", book: PriceBook = BOOK) -> dict:
    spec = load_experiment("geo-b2", ["prices=list-2026-11", *settings])
    emulation = resolve_emulation(spec, 2)
    return plan_of(spec, book, emulation, on=on, quote=book_quoter(book), today=today).as_dict()


def test_prices_are_old_from_the_91st_day_on():
    assert plan(DAY + timedelta(days=OLD_DAYS))["old_prices"] == plan(DAY)["warnings"] == []
    old = plan(DAY + timedelta(days=OLD_DAYS + 1))
    assert [(row["product"], row["age_days"], row["row"]) for row in old["old_prices"]] == [
        ("store_egress", 91, "mine.csv:5"),
        ("egress", 91, "mine.csv:3"),
        ("vm", 91, "mine.csv:2"),
    ]
    vm, traffic = old["warnings"]
    assert vm.startswith(
        "the spot price of T4:1 at gcp/us-central1/us-central1-a, gcp/europe-west1/europe-west1-b is of 2026-11-21, 91 days old "
        "(mine.csv:2), and VMs more than 10% above it are refused, even if that is today's price: "
    )
    assert FILE.format("today's price") in vm
    assert "set max_usd_per_h of the place, or raise --price-tolerance" in vm
    assert traffic == (
        "2 prices of traffic are older than 90 days: b2 store_egress, of 2026-11-21, 91 days old (mine.csv:5); gcp egress "
        f"inter_continent, of 2026-11-21, 91 days old (mine.csv:3); {FILE.format('newer ones')}"
    )


def test_a_place_with_a_limit_of_its_own_refuses_by_the_limit():
    capped = [f"peers.{group}.resources.max_usd_per_h=1" for group in ("us", "eu")]
    vm = plan(DAY + timedelta(days=200), *capped)["warnings"][0]
    assert "is of 2026-11-21, 200 days old" in vm
    assert "refused" not in vm


@pytest.mark.parametrize(("book", "old"), [("study-2023-04", False), ("list-2026-11", True)])
def test_the_papers_prices_are_old_on_purpose_in_an_emulated_run(book: str, old: bool):
    emulated = plan(date(2027, 11, 21), on="local", book=load(book))
    assert bool(emulated["warnings"]) == bool(emulated["old_prices"]) == old
    assert "refused" not in "".join(emulated["warnings"])
    assert plan(date(2027, 11, 21), book=load(book))["warnings"]  # real VMs


def test_without_a_day_no_age_is_known():
    spec = load_experiment("geo-b2", [])
    assert plan_of(spec, BOOK, None, on="sky").as_dict()["warnings"] == []


def test_the_tolerance_of_the_plan_is_in_the_warning():
    spec = load_experiment("geo-b2", [])
    made = plan_of(spec, BOOK, None, on="sky", price_tolerance=Decimal("0.5"), today=date(2027, 11, 21))
    assert "VMs more than 50% above it are refused" in made.warnings[0]
