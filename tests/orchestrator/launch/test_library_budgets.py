"""Budgets that can be used: every experiment of the library on rented VMs, with a bucket in each kind of store."""

from __future__ import annotations

from datetime import date
from pathlib import Path

import pytest

from cloud.prices.book import load as load_book
from cloud.prices.rows import COLUMNS
from experiments.parse.load import library, load, load_all
from experiments.schema.models import ExperimentSpec
from orchestrator.launch.obstacles import ObstacleGroup
from orchestrator.launch.plan_run import RunPlan, plan_run

TODAY = date(2026, 11, 25)
HEADER = ",".join(COLUMNS)
STORES = {"S3": "aws/us-east-1", "B2": "b2/us-west-1", "GCS": "gcp/us-central1", "R2": "r2/weur"}
A10S = "a10-8-rn18"  # reads so much that its reserve alone is above $50 where a store's bytes cost $0.09 a GB


@pytest.fixture(autouse=True)
def no_catalogs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Prices are the books'."""
    monkeypatch.delenv("SKY_RUNTIME_DIR", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "nobody"))


@pytest.fixture(scope="module")
def specs() -> list[ExperimentSpec]:
    overrides = ["budget_usd=50", "data.endpoint=https://store.example.org"]
    return [spec for path in sorted({e.path for e in library()}) for spec in load_all(str(path), overrides)]


def plan(spec: ExperimentSpec) -> RunPlan:
    return plan_run(spec, "sky", cores=2, today=TODAY)


def money(plan: RunPlan) -> str:
    """Text of the plan's obstacle about prices or dollars; "" if there is none."""
    return "\n".join(o.text for o in plan.obstacles if o.group is ObstacleGroup.MONEY)


@pytest.mark.parametrize(
    ("store", "refused"),
    [
        ("S3", {A10S: "raise budget_usd"}),
        ("B2", {}),
        ("GCS", {A10S: "raise budget_usd"}),
        ("R2", {}),
    ],
)
def test_the_library_can_be_launched_with_a_budget_as_far_as_money_goes(
    store: str, refused: dict[str, str], specs: list[ExperimentSpec]
):
    found: dict[str, str] = {}
    for spec in specs:
        data = spec.data.model_copy(update={"location": STORES[store]})
        planned = plan(spec.model_copy(update={"data": data}))
        words = money(planned)
        assert (HEADER in words) == bool(planned.document["missing_prices"]), spec.name
        if words:
            assert "without" not in words  # a budget
            found[spec.name] = words.partition(f"{HEADER}\n")[2] or words.rpartition("; ")[2]
    assert len(specs) > 100
    assert found == refused


@pytest.mark.parametrize("store", ["S3", "R2"])
def test_the_rows_of_a_refusal_make_the_budget_usable_once_they_are_filled_in(
    store: str, specs: list[ExperimentSpec], tmp_path: Path
):
    """Against a book that has next to nothing, so that rows of every product are missing."""
    first = tmp_path / "first.csv"
    first.write_text(f"{HEADER}\naws,storage,*,*,*,GB-month,0,0.023,,,2026-11-21,list\n")
    chosen = [spec for spec in specs if spec.name in ("geo-c8", "geo-d2", "geo-b2-nlp", "digits-alone")]
    elsewhere = "peers.us.resources.infra=gcp/europe-west6/europe-west6-a"  # no book has a VM without accelerator there
    chosen.append(load("digits-alone", ["data.endpoint=https://store.example.org", elsewhere]))
    unnamed: list[str] = []
    for spec in chosen:
        data = spec.data.model_copy(update={"location": STORES[store]})
        spec = spec.model_copy(update={"data": data, "prices": str(first), "budget_usd": 5000})
        missing = plan(spec)
        words = money(missing)
        assert f"into {first} (docs/prices.md):\n{HEADER}\n" in words
        rows = words.partition(f"{HEADER}\n")[2].splitlines()
        unnamed += [row for row in rows if "INSTANCE_TYPE" in row]
        assert len(rows) == len(missing.document["missing_prices"]) > 0
        mine = tmp_path / "mine.csv"
        filled = [
            row.replace(",0,,,,", ",0,0.01,,,").replace("INSTANCE_TYPE", "n2-standard-2") for row in rows
        ]
        mine.write_text("\n".join((HEADER, *(f"{row}the page" for row in filled))) + "\n")
        usable = plan(spec.model_copy(update={"prices": f"{first},{mine}"}))
        assert money(usable) == "", spec.name
        assert usable.document["missing_prices"] == []
        assert (
            usable.book.sha256 == load_book(f"{first},{mine}").sha256 == usable.document["price_book_sha256"]
        )
    assert unnamed == ["gcp,vm,europe-west6,*,CPU:1/INSTANCE_TYPE/on_demand,h,0,,,,2026-11-25,"]
