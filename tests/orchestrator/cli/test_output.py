"""Rows as table, JSON, YAML and CSV; formatted numbers."""

from __future__ import annotations

import csv
import io
import json
from decimal import Decimal

import pytest
import yaml

from orchestrator.cli.render.output import Format, rows_text
from orchestrator.cli.render.words import duration, interval, number, place

ROWS = [
    {"run": "a", "usd": Decimal("0.10"), "sps": 68.4321, "more": [1, 2], "on": True},
    {"run": "longer, name", "usd": None, "sps": float("nan"), "more": [], "on": False},
]


def test_table():
    assert rows_text("runs", ROWS, ("run", "usd", "sps"), Format.table) == (
        "RUN           USD      SPS\na             0.10     68.43\nlonger, name  unknown  nan\n"
    )


def test_json_and_yaml_have_the_same_content():
    document = json.loads(rows_text("runs", ROWS, ("run",), Format.json))
    assert document == {
        "schema_version": 1,
        "runs": [
            {"run": "a", "usd": 0.1, "sps": 68.4321, "more": [1, 2], "on": True},
            {"run": "longer, name", "usd": None, "sps": None, "more": [], "on": False},
        ],
    }
    assert yaml.safe_load(rows_text("runs", ROWS, ("run",), Format.yaml)) == document


def test_csv_has_the_columns_and_quotes():
    read = list(csv.DictReader(io.StringIO(rows_text("runs", ROWS, ("run", "usd"), Format.csv))))
    assert read == [{"run": "a", "usd": "0.1"}, {"run": "longer, name", "usd": ""}]


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        (duration(59.4), "59 s"),
        (duration(200), "3 min 20 s"),
        (duration(7500), "2 h 5 min"),
        (duration(None), "unknown"),
        (number(0.0123), "0.0123"),
        (number(12345.6), "12,346"),
        (place("gcp/us-central1/us-central1-a"), "gcp/us-central1-a"),
        (place("b2/us-west-1"), "b2/us-west-1"),
        (
            interval({"value": 68.4, "low": 60.0, "high": 76.8, "n": 2}, "s"),
            "68.4 s (95 %: 60 to 76.8, n = 2)",
        ),
        (interval({"value": 68.4, "low": None, "high": None, "n": 1}), "68.4 (n = 1: no interval)"),
        (interval(None), "unknown"),
    ],
)
def test_words(said: str, expected: str):
    assert said == expected
