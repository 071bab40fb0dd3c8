"""Rows of one's own price file that a plan does not use."""

from __future__ import annotations

from pathlib import Path

import pytest

from analysis.planning.plan import book_quoter, plan_of
from cloud.prices.book import load_for
from cloud.prices.rows import COLUMNS
from experiments.emulation.scales import resolve_emulation
from experiments.parse.load import load

USED = """gcp,vm,us-central1,*,T4:1/n1-standard-8/spot,h,0,0.28,60,1,2026-11-21,mine
gcp,egress,*,*,inter_continent,GB,0,0.05,,,2026-11-21,mine
gcp,egress,*,*,inter_continent,GB,1024,0.04,,,2026-11-21,mine
gcp,egress,*,*,internet,GB,0,0.08,,,2026-11-21,mine
b2,storage,*,*,*,GB-month,0,0.01,,,2026-11-21,mine
"""
MISSPELT = "gcp,vm,us-central,*,T4:1/n1-standard-8/spot,h,0,0.28,60,1,2026-11-21,mine\n"


def notes(folder: Path, rows: str, prices: str = "list-2026-11,{}") -> list[str]:
    file = folder / "mine.csv"
    file.write_text(",".join(COLUMNS) + "\n" + rows)
    spec = load("geo-b2", [f"prices={prices.format(file)}"])
    book = load_for(spec.prices, rented=True)
    plan = plan_of(spec, book, resolve_emulation(spec, 2), on="sky", quote=book_quoter(book))
    return [note for note in plan.notes if note.startswith("no price of this plan comes from ")]


def test_rows_that_price_something_are_not_named(tmp_path: Path):
    assert notes(tmp_path, USED) == []


@pytest.mark.parametrize("before", ["", USED])
def test_a_row_that_prices_nothing_is_named_with_its_line(tmp_path: Path, before: str):
    line = 2 + before.count("\n")
    assert notes(tmp_path, before + MISSPELT) == [
        f"no price of this plan comes from mine.csv:{line} (gcp vm us-central T4:1/n1-standard-8/spot); its places are in "
        "gcp/europe-west1, gcp/us-central1"
    ]


def test_many_rows_are_counted(tmp_path: Path):
    rows = "".join(MISSPELT.replace("us-central", f"region-{n}") for n in range(6))
    (note,) = notes(tmp_path, rows)
    assert "mine.csv:5 " in note
    assert "mine.csv:6" not in note
    assert "; and 2 more; its places" in note


def test_a_whole_book_of_ones_own_may_have_more_than_a_plan_needs(tmp_path: Path):
    assert notes(tmp_path, USED + MISSPELT, "{}") == []
