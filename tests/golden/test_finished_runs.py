"""The numbers, costs, stories and exports of three finished runs, to the last digit (`runs` in conftest.py)."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest

from tests.golden.goldens import check, orch, orch_json

pytestmark = pytest.mark.slow


def _anywhere(found: Any, folder: Path) -> Any:
    return json.loads(json.dumps(found).replace(str(folder), "<folder>"))


@pytest.mark.parametrize("command", ["report", "cost", "replay", "audit", "why", "status"])
def test_numbers(command: str, runs: list[str], any_machine: Path):
    found = {run: _anywhere(orch_json(command, run), any_machine) for run in runs}
    check(f"runs_{command}.json", found)


def test_the_list_and_the_comparison(runs: list[str], any_machine: Path):
    found = {"ls": orch_json("ls"), "compare": orch_json("compare", *runs)}
    check("runs_together.json", _anywhere(found, any_machine))


def test_exports_and_the_bill(runs: list[str], any_machine: Path):
    found: dict[str, Any] = {}
    for run in runs:
        for form in ("csv", "parquet", "focus"):
            code, out, err = orch("export", run, "--to", form, "--known-only")
            assert code == 0, err
            found[f"{run} --to {form}"] = {
                path.name: _columns(path) for path in sorted(Path(out.strip()).iterdir())
            }
        found[f"bill {run}"] = orch_json("bill", run, "--against", f"{run}-focus/focus.csv")
    check("runs_exports.json", _anywhere(found, any_machine))


def _columns(path: Path) -> Any:
    """A table's columns and number of rows; of a JSON document its keys."""
    if path.suffix == ".parquet":
        table = pyarrow.parquet.read_table(path)
        return {"rows": table.num_rows, "columns": {f.name: str(f.type) for f in table.schema}}
    if path.suffix == ".csv":
        with path.open(newline="") as file:
            header, *rows = csv.reader(file)
        return {"rows": len(rows), "columns": header}
    return sorted(json.loads(path.read_text()))


def test_simulated_runs():
    chosen = ["--epochs", "0", "--seed", "1", "--seeds", "4", "--days", "0.5"]
    check("simulated.json", orch_json("simulate", "geo-c8", *chosen, codes=[1]))  # one of them is lost
