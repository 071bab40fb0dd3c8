"""Studies in a notebook: replayed runs, one table, a temporary folder removed with its last user."""

from __future__ import annotations

import gc
import sqlite3
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Literal

import pandas as pd
import pytest
from made_up_run import write_run

import orch
from analysis.export.tables import export_tables
from analysis.replay import KEYS
from metrics.store.database import RunStore

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def own_temporary_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The temporary folder of imports, so that a test sees what is left there."""
    place = tmp_path / "scratch"
    place.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(place))
    return place


@pytest.fixture
def two_runs(tmp_path: Path) -> Path:
    """A folder with two run folders."""
    for name, peers in (("a-20231114-aaaa", 2), ("b-20231114-bbbb", 4)):
        folder = tmp_path / "runs" / name
        folder.mkdir(parents=True)
        write_run(folder, peers=peers)
        with RunStore.open_writer(folder / "run.db") as store:
            store.set_meta("run_id", name)
            store.set_meta("label", f"<b>{name[0]}</b>")
    return tmp_path / "runs"


def test_a_study_is_its_runs_and_a_table(two_runs: Path):
    with orch.replay(two_runs) as study:
        assert [run.run_id for run in study] == ["a-20231114-aaaa", "b-20231114-bbbb"]
        assert len(study) == 2
        assert study[1].run_id == study["b-20231114-bbbb"].run_id == study["<b>b</b>"].run_id
        table = study.table()
        assert list(table.columns) == list(KEYS)
        assert {c: str(t) for c, t in table.dtypes.items()} == {c.name: c.dtype for c in orch.FRAMES["study"]}
        assert list(table["peers"]) == [2, 4]
        assert table["sps"].iloc[0] == study[0].summary()["sps"]["value"]
        assert pd.isna(table["sps_wall"].iloc[0])
        assert study.problems == ()
        with pytest.raises(orch.OrchError, match="no such run in the study; its runs:"):
            study["c"]


def test_study_html(two_runs: Path):
    html = orch.replay(two_runs)._repr_html_()
    assert html.index("Emulated:") < html.index("<table>")
    assert "<b>" not in html
    assert "&lt;b&gt;a&lt;/b&gt; (a-20231114-aaaa)" in html
    assert "No problem." in html
    assert '<th scope="col">granularity, mean of ratios</th>' in html


def test_only_some_runs_of_several_folders(two_runs: Path):
    assert [run.run_id for run in orch.replay(two_runs, runs=["b-20231114-bbbb"])] == ["b-20231114-bbbb"]
    assert [run.run_id for run in orch.replay(str(two_runs), runs="a-20231114-aaaa")] == ["a-20231114-aaaa"]
    both = [two_runs / "b-20231114-bbbb", two_runs / "a-20231114-aaaa"]
    assert [run.run_id for run in orch.replay(both)] == ["b-20231114-bbbb", "a-20231114-aaaa"]


def test_nothing_to_read_raises_one_sentence(tmp_path: Path, own_temporary_folder: Path):
    for folder in (tmp_path / "not-there", own_temporary_folder):
        with pytest.raises(orch.OrchError, match=str(folder)) as caught:
            orch.replay(folder)
        assert "\n" not in str(caught.value)
    assert list(own_temporary_folder.iterdir()) == []


def test_a_run_that_cannot_be_read_is_a_problem_of_the_study(two_runs: Path):
    (two_runs / "a-20231114-aaaa" / "run.db").write_bytes(b"noise" * 1000)
    study = orch.replay(two_runs)
    assert [run.run_id for run in study] == ["b-20231114-bbbb"]
    assert "is not a run's database" in study.problems[0]
    assert "1 problem" in study._repr_html_()


def test_run_with_torn_records_is_a_problem(two_runs: Path):
    path = two_runs / "a-20231114-aaaa" / "run.db"
    with sqlite3.connect(path) as connection:
        connection.execute("DROP TABLE epochs")
    connection.close()
    study = orch.replay(two_runs)
    assert [row["run_id"] for row in study.rows] == ["b-20231114-bbbb"]
    assert "no such table: epochs" in study.problems[0]
    with pytest.raises(orch.OrchError, match="no such table: epochs"):
        orch.replay(path.parent)


@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_an_exported_run_has_the_same_frames(two_runs: Path, tmp_path: Path, form: Literal["csv", "parquet"]):
    folder = two_runs / "b-20231114-bbbb"
    export_tables(folder / "run.db", tmp_path / "exported", form)
    ours, theirs = orch.open(folder), orch.replay(tmp_path / "exported")[0]
    for name in ("epochs", "peers", "traffic", "costs", "events", "steps"):
        pd.testing.assert_frame_equal(getattr(theirs, name)(), getattr(ours, name)(), check_exact=True)
    assert theirs.summary() == ours.summary()


def test_an_unknown_price_book_is_one_sentence(two_runs: Path, own_temporary_folder: Path):
    with pytest.raises(orch.OrchError, match="no-such-book"):
        orch.replay(two_runs, prices="no-such-book")
    assert list(own_temporary_folder.iterdir()) == []


def test_the_study_report(two_runs: Path, tmp_path: Path):
    page = orch.replay(two_runs).report(tmp_path / "page.html")
    assert page == tmp_path / "page.html"
    assert "2 runs compared" in page.read_text()
    with pytest.raises(orch.OrchError, match="not-there"):
        orch.replay(two_runs).report(tmp_path / "not-there" / "page.html", prices="not-there")


def test_folder_is_removed_with_its_last_user(two_runs: Path, own_temporary_folder: Path):
    def left() -> int:
        gc.collect()
        return len(list(own_temporary_folder.iterdir()))

    run = orch.replay(two_runs)[0]
    assert left() == 1
    assert len(run.epochs()) == 5
    del run
    assert left() == 0
    study = orch.replay(two_runs)
    known = study.table()
    study.close()
    study.close()
    assert left() == 0
    assert study.table().equals(known)
    with pytest.raises(orch.OrchError, match="is closed"):
        study[0].epochs()


def test_folder_is_removed_at_exit(two_runs: Path, own_temporary_folder: Path, tmp_path: Path):
    code = f"import orch; study = orch.replay({str(two_runs)!r}); print(len(study))"
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        capture_output=True, text=True, check=True, cwd=tmp_path, env={"TMPDIR": str(own_temporary_folder)},
    )  # fmt: skip
    assert (done.stdout.strip(), done.stderr) == ("2", "")
    assert list(own_temporary_folder.iterdir()) == []


def test_paper_logs_as_frames(paper_traces: Path):
    runs = ("baseline-75", "hivemind-81", "hivemind-83")
    with orch.replay(paper_traces, index=paper_traces / "INDEX.csv", runs=runs) as study:
        assert study["CV A-1"].run_id == "baseline-75"
        table = study.table().set_index("run_id")
        assert table.loc["baseline-75", "sps_wall"] == pytest.approx(36.8, rel=0.002)
        assert pd.isna(table.loc["baseline-75", "sps"])
        assert table.loc["hivemind-83", "granularity"] > 10
        for run in study:
            for name in ("epochs", "peers", "traffic", "costs", "events", "steps"):
                found = getattr(run, name)()
                assert {c: str(t) for c, t in found.dtypes.items()} == {
                    c.name: c.dtype for c in orch.FRAMES[name]
                }
            assert len(run.steps()) > 300
            dollars = run.peers()[["vm_usd", "egress_usd", "data_usd"]].to_numpy().sum()
            assert dollars == pytest.approx(run.costs()["usd"].sum(skipna=False))
            assert len(run.events()) == 0
            assert run.run_id in run._repr_html_()
        pair = study["hivemind-81"]
        assert len(pair.epochs(by="peer")) == 2 * len(pair.epochs())
        assert set(pair.traffic()["class"]) == {"inter_zone"}
        assert pair.report().is_file()
