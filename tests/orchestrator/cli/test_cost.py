"""`orch cost` from the command line: both bases, output formats, another price book, invalid input."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from made_up_run import write_run

from cloud.prices.book import load
from metrics.store.database import RunStore
from orchestrator.cli.app import run

Output = Callable[[], tuple[str, str]]


@pytest.fixture
def output(capsys: pytest.CaptureFixture[str]) -> Output:
    def read() -> tuple[str, str]:
        shown = capsys.readouterr()
        return shown.out, shown.err

    return read


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A run of eight peers on four continents."""
    made = tmp_path / "geo-c8-20231114-aaaa"
    made.mkdir()
    write_run(made)
    return made


def test_both_bases_are_shown_with_their_difference(folder: Path, output: Output):
    assert run(["cost", str(folder)]) == 0
    text, _ = output()
    lines = text.splitlines()
    assert lines[0].split("  ")[0].strip() == "RUN"
    assert [line.split()[2] for line in lines[1:3]] == ["measured", "published"]
    (difference,) = [line for line in lines if "published $" in line]
    for figure in ("2^30", "in the paper 1.024e9", "in the paper 2/5", "start-up", "of the bytes) is free"):
        assert figure in difference
    assert "  between continents  " in text
    assert "the data set is not billed" in text.lower()


def test_the_table_has_amounts_that_a_person_reads(folder: Path, output: Output):
    assert run(["cost", str(folder)]) == 0
    runs, links, *_ = output()[0].split("\n\n")
    measured, published = (re.split(r"  +", row) for row in runs.splitlines()[1:3])
    assert all(re.fullmatch(r"\$[\d.,]+|< \$0\.01", cell) for cell in (*measured[3:11], *published[3:9]))
    assert published[9:11] == ["-", "-"]
    header, *rows = links.splitlines()
    assert header.split()[-2:] == ["SENT", "USD"]
    sent = [re.split(r"  +", row)[-2:] for row in rows if row.startswith("geo-c8-20231114-aaaa  ")]
    assert sent
    assert all(re.fullmatch(r"[\d.,]+ (GB|MB|kB|B)", size) for size, _ in sent)
    assert all(re.fullmatch(r"\$[\d.,]+|< \$0\.01", usd) for _, usd in sent)


def test_json_matches_the_help(folder: Path, output: Output):
    assert run(["cost", str(folder), "-o", "json"]) == 0
    document = json.loads(output()[0])
    assert document.keys() == {"schema_version", "runs", "problems"}
    (row,) = document["runs"]
    assert row.keys() == {
        "run_id", "label", "model", "peers", "target", "emulated", "scales", "host_contended", "measured", "published",
        "difference", "warnings",
    }  # fmt: skip
    ours, theirs = row["measured"], row["published"]
    assert ours.keys() == {"price_book", "price_book_sha256", "run", "steady", "links", "unknown"}
    usd = ours["run"]["usd"]
    assert usd.keys() == {"vm", "egress", "data", "storage", "controller", "total"}
    assert usd["total"] == pytest.approx(sum(usd[k] for k in ("vm", "egress", "data")))
    assert len(ours["links"]) == 8 * 7 + 8
    assert theirs["split"] == {"inside": "2/5", "between": "3/10", "oceania": "3/10"}
    assert theirs["price_book_sha256"] == load("study-2023-04").sha256
    assert theirs["usd"]["total"] == pytest.approx(sum(v for k, v in theirs["usd"].items() if k != "total"))


def test_csv_has_one_row_per_run_and_basis(folder: Path, output: Output):
    assert run(["cost", str(folder), "-o", "csv"]) == 0
    measured, published = csv.DictReader(io.StringIO(output()[0]))
    assert (measured["basis"], published["basis"]) == ("measured", "published")
    assert float(measured["steady_usd_per_vm_h"]) > 0
    assert published["storage_usd"] == published["steady_usd_per_vm_h"] == ""
    assert {measured["run_id"], published["run_id"]} == {"geo-c8-20231114-aaaa"}
    for row in (measured, published):
        assert (row["target"], row["emulated"], row["host_contended"]) == ("local", "True", "False")
        assert row["scales"] == "bytes 100, time 1, samples 8"


def test_many_runs_show_where_they_ran(folder: Path, tmp_path: Path, output: Output):
    folders = [folder, *(tmp_path / name for name in ("b", "c", "d"))]
    for number, one in enumerate(folders):
        if one is not folder:
            one.mkdir()
            write_run(one)
        with RunStore.open_writer(one / "run.db") as store:
            store.set_meta("run_id", f"r{number}")
            store.set_meta("host", {"contended": True, "reasons": ["late"]} if number == 1 else None)
    assert run(["cost", *map(str, folders)]) == 0
    lines = output()[0].splitlines()
    assert lines[0].endswith("HOST")
    assert lines[1].endswith("unknown")
    assert lines[3].endswith("emulated  TOO BUSY")


def test_single_basis(folder: Path, output: Output):
    assert run(["cost", str(folder), "--basis", "published", "-o", "json"]) == 0
    (row,) = json.loads(output()[0])["runs"]
    assert "published" in row
    assert not row.keys() & {"measured", "difference"}
    assert run(["cost", str(folder), "--basis", "measured"]) == 0
    assert "published" not in output()[0]


def test_another_book_bills_the_run_again(folder: Path, output: Output, tmp_path: Path):
    mine = tmp_path / "mine.csv"
    mine.write_text(load("study-2023-04").text.replace(",0.180,", ",0.360,"))
    totals: list[float] = []
    for more in ([], ["--prices", str(mine)]):
        assert run(["cost", str(folder), "-o", "json", *more]) == 0
        (row,) = json.loads(output()[0])["runs"]
        totals.append(row["measured"]["run"]["usd"]["vm"])
    assert totals[1] == pytest.approx(2 * totals[0])
    assert row["measured"]["price_book"] == row["published"]["price_book"] == "mine.csv"


def test_unreadable_run_is_named_and_the_others_are_computed(folder: Path, output: Output, tmp_path: Path):
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "run.db").write_bytes(b"not a database at all" * 50)
    assert run(["cost", str(folder), str(tmp_path / "broken"), "-o", "json"]) == 0
    text, told = output()
    assert len(json.loads(text)["runs"]) == 1
    assert "problem:" in told
    assert "broken" in told
    assert "Traceback" not in told


def test_run_without_prices_exits_with_2_and_reasons(folder: Path, output: Output, tmp_path: Path):
    bare = tmp_path / "bare.csv"
    text = load("study-2023-04").text.splitlines()
    bare.write_text("\n".join(line for line in text if line.startswith(("provider", "azure"))) + "\n")
    assert run(["cost", str(folder), "--prices", str(bare)]) == 2
    shown, told = output()
    assert shown == ""
    assert "no cost could be computed" in told
    assert "no price for T4:1 spot" in told


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["cost", "nothing-here"], "nothing-here"),
        (["cost", "{folder}", "--prices", "no-such-book"], "there is no such price book"),
        (["cost", "{empty}"], "contains no run"),
    ],
)
def test_invalid_command_gives_one_sentence(
    arguments: list[str], told: str, folder: Path, tmp_path: Path, output: Output
):
    (tmp_path / "empty").mkdir()
    filled = [text.format(folder=folder, empty=tmp_path / "empty") for text in arguments]
    assert run(filled) == 2
    assert told in output()[1]


def test_stored_data_is_billed_if_its_size_is_known(folder: Path, output: Output):
    with RunStore.open_writer(folder / "run.db") as store:
        store.set_meta("dataset_bytes", 10**12)
    assert run(["cost", str(folder), "-o", "json"]) == 0
    (row,) = json.loads(output()[0])["runs"]
    assert row["measured"]["run"]["usd"]["storage"] > 0
    assert not any("data set is not billed" in text for text in row["warnings"])


def test_paper_logs_on_the_command_line(paper_traces: Path, output: Output):
    chosen = ["--run", "hivemind-79", "--run", "hivemind-80"]
    assert run(["cost", str(paper_traces), *chosen, "-o", "json"]) == 0
    document = json.loads(output()[0])
    found = [row["published"]["usd_per_1m_samples_without_loading"] for row in document["runs"]]
    assert [round(usd, 2) for usd in found] == [3.09, 4.44]
    assert document["problems"] == []
