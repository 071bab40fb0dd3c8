"""The paper's logs: imported, exported and imported again without change; their costs as FOCUS rows."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from focus_rules import findings

from analysis.export.focus import focus_csv, focus_rows
from analysis.export.tables import export_tables
from analysis.importers.orch_export import OrchExport
from analysis.sources import opened
from cloud.prices.book import load
from metrics.records import TABLES
from metrics.run import RunNumbers
from metrics.store.database import RunStore
from metrics.summary import summarise


@pytest.mark.parametrize("run_id", ["baseline-75", "hivemind-354", "hivemind-80"])
def test_a_run_of_the_study(run_id: str, paper_traces: Path, tmp_path: Path):
    book = load("study-2023-04")
    with (
        opened([paper_traces], index=paper_traces / "INDEX.csv", only=[run_id], book=book) as found,
        RunStore.open_reader(found.runs[0].folder / "run.db") as before,
    ):
        for form in ("csv", "parquet"):
            export_tables(before.path, tmp_path / form, form)
            (folder,) = OrchExport().import_runs(tmp_path / form, tmp_path / f"{form}-back").folders
            with RunStore.open_reader(folder / "run.db") as after:
                assert after.all_meta() == before.all_meta()
                assert all(after.columns(table) == before.columns(table) for table in TABLES)
                assert json.dumps(summarise(after)) == json.dumps(summarise(before))
        made = focus_rows(RunNumbers.of(before))
    assert made.rows
    assert findings(focus_csv(made.rows)) == []
    assert {row["x_Emulated"] for row in made.rows} == {"false"}
