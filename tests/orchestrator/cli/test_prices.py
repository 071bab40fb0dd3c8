"""`orch prices`: what is printed, compared and refused."""

from __future__ import annotations

import csv
import io
import json

import pytest

from cloud.prices.book import AUTO, load, load_for
from experiments.schema.models import ExperimentSpec
from orchestrator.cli.app import run
from orchestrator.cli.commands.prices import DEFAULT_BOOK


def _json(capsys, *arguments):
    assert run(["prices", *arguments, "-o", "json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_default_book_is_that_of_emulated_experiments(capsys):
    assert ExperimentSpec.model_fields["prices"].default == AUTO
    assert load_for(AUTO, rented=False).name == f"{DEFAULT_BOOK}.csv"
    document = _json(capsys)
    assert document["schema_version"] == 1
    rows = document["prices"]
    assert len(rows) == len(load(DEFAULT_BOOK).prices())
    assert rows[0] == {
        "provider": "gcp", "product": "vm", "from": "*", "to": "*", "item": "T4:1/n1-standard-8/spot", "unit": "h",
        "tier_start": 0, "usd": 0.18, "minimum_s": 60, "increment_s": 1, "valid_from": "2023-04-01", "line": 2,
        "source": "Erben et al. 2023 (arXiv 2306.03163) Table 1; price of the whole VM",
    }  # fmt: skip


def test_table_and_hash_of_the_book(capsys):
    assert run(["prices", "--provider", "b2"]) == 0
    done = capsys.readouterr()
    assert len(done.out.splitlines()) == 3
    assert "unknown" not in done.out
    assert done.err == f"study-2023-04.csv, sha256 {load(DEFAULT_BOOK).sha256}\n"


def test_csv_has_every_column_of_a_book(capsys):
    assert run(["prices", "--book", "list-2026-11", "--product", "egress", "-o", "csv"]) == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert {row["product"] for row in rows} == {"egress"}
    assert all(row["source"] for row in rows)
    assert {(row["tier_start"], row["usd"]) for row in rows if row["from"] == "sa-east-1" and row["item"] == "internet"} == {
        ("0.0", "0.15"), ("10240.0", "0.138"), ("51200.0", "0.126"), ("153600.0", "0.114"),
    }  # fmt: skip


def test_list_of_books(capsys):
    rows = {row["book"]: row for row in _json(capsys, "--books")["books"]}
    assert [name for name, row in rows.items() if row["default"]] == ["study-2023-04"]
    assert rows["study-2023-04"]["sha256"] == load("study-2023-04").sha256
    assert rows["list-2026-11"]["last_date"] == "2026-11-21"


def test_prices_of_a_day(tmp_path, capsys):
    header = "provider,product,from,to,item,unit,tier_start,usd,minimum_s,increment_s,valid_from,source"
    row = "gcp,egress,*,*,internet,GB,0,{},,,{},contract"
    path = tmp_path / "contract.csv"
    path.write_text(
        "\n".join([header, row.format("0.12", "2023-04-01"), row.format("0.05", "2025-04-01")]) + "\n"
    )
    own = ["--prices", str(path)]
    assert [row["usd"] for row in _json(capsys, *own)["prices"]] == [0.12, 0.05]
    assert [row["usd"] for row in _json(capsys, *own, "--at", "2024-06-01")["prices"]] == [0.12]
    assert [row["usd"] for row in _json(capsys, *own, "--at", "2025-04-01")["prices"]] == [0.05]
    assert run(["prices", *own, "--at", "2020-01-01"]) == 2
    words = " ".join(capsys.readouterr().err.split())
    assert "contract.csv has no price on 2020-01-01; it has prices of gcp from 2023-04-01 on" in words


def test_difference_and_missing_price(capsys):
    rows = _json(capsys, "--diff", "list-2026-11", "--provider", "b2")["differences"]
    assert rows == [
        {
            "provider": "b2", "product": "storage", "from": "*", "to": "*", "item": "*", "tier_start": 0, "usd": 0.005,
            "unit": "GB-month", "other_usd": 0.006, "other_unit": "GB-month", "change": pytest.approx(0.2),
        }
    ]  # fmt: skip
    assert run(["prices", "--diff", "list-2026-11", "--provider", "azure", "--product", "vm"]) == 0
    table = capsys.readouterr().out
    assert "NC4as_T4_v3/spot" in table
    assert "unknown" in table
    assert _json(capsys, "--diff", "study-2023-04")["differences"] == []


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--book", "stduy"], "there is no such price book; the books are list-2026-11, study-2023-04"),
        (["--diff", "stduy"], "there is no such price book"),
        (["--at", "yesterday"], "--at 'yesterday' is not a date like 2026-11-21"),
        (["--at", "2020-01-01"], "from 2023-04-01 on"),
        (["--provider", "hetzner"], "has no hetzner price; it has prices of aws, azure, b2, gcp, lambda"),
        (["--book", "list-2026-11", "--prices", "x.csv"], "give only one of them"),
    ],
)
def test_invalid_options_are_refused(arguments, words, capsys):
    assert run(["prices", *arguments]) == 2
    done = capsys.readouterr()
    assert done.out == ""
    assert words in " ".join(done.err.split())


def test_invalid_file_gives_one_sentence_and_exit_2(tmp_path, capsys):
    path = tmp_path / "mine.csv"
    path.write_text(load(DEFAULT_BOOK).text.replace("0.180", "€0.18", 1))
    assert run(["prices", "--prices", str(path)]) == 2
    assert capsys.readouterr().err.startswith("orch: mine.csv:2: usd '€0.18' is not an amount in US dollars")


def test_the_table_of_an_own_book_shows_its_prices_and_counts_the_others(tmp_path, capsys):
    mine = tmp_path / "mine.csv"
    mine.write_text(
        "provider,product,from,to,item,unit,tier_start,usd,minimum_s,increment_s,valid_from,source\n"
        "gcp,vm,us-central1,*,T4:1/n1-standard-8/spot,h,0,0.13973,60,1,2026-11-01,contract\n"
    )
    own = ["--prices", str(mine), "--diff", "list-2026-11"]
    assert run(["prices", *own]) == 0
    done = capsys.readouterr()
    head, *rows = done.out.splitlines()
    assert head.endswith("CHANGE")
    assert [row.split()[2:] for row in rows] == [
        ["us-central1", "*", "T4:1/n1-standard-8/spot", "0", "0.13973", "h", "0.27946", "h", "+100.0%"]
    ]
    others = [row for row in _json(capsys, *own)["differences"] if row["usd"] is None]
    assert done.err == f"{len(others)} more prices are in list-2026-11.csv only: `-o csv` lists them\n"


def test_book_has_no_differences_from_itself(capsys: pytest.CaptureFixture[str]):
    assert run(["prices", "--diff", "study-2023-04"]) == 0
    assert capsys.readouterr().out.startswith(
        "no differences between study-2023-04.csv and study-2023-04.csv"
    )
    assert run(["prices", "--diff", "study-2023-04", "-o", "json"]) == 0
    assert '"differences": []' in capsys.readouterr().out
