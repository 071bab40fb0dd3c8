"""`orch spot`: what is stored, listed, shown, removed and refused."""

from __future__ import annotations

import json
import os
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloud.spot.sources import FORMATS
from cloud.spot.stored import stored_bytes
from cloud.spot.text import LARGEST_BYTES, HistoryError
from orchestrator.cli.app import run
from orchestrator.cli.commands.spot import FormatName
from orchestrator.errors import UsageError
from orchestrator.home import spot_folder
from orchestrator.spot_store import load, read_imports, stored_names, write_import

NODES = "0,add,a\n3600000,add,b\n7200000,remove,b\n10800000,remove,a\n14400000,add,c\n"
ADVISOR = json.dumps(
    {
        "ranges": [{"index": 0, "label": "<5%"}, {"index": 1, "label": "5-10%"}],
        "spot_advisor": {
            "us-east-1": {"Linux": {"g4dn.xlarge": {"s": 57, "r": 1}, "p3.2xlarge": {"s": 60, "r": 0}}}
        },
    }
)
CATALOG = (
    "InstanceType,AcceleratorName,AcceleratorCount,Price,SpotPrice,Region\n"
    "g4dn.xlarge,T4,1,0.526,0.1578,us-east-1\np3.2xlarge,V100,1,3.06,0.918,us-east-1\n"
)


@pytest.fixture
def nodes(tmp_path: Path) -> Path:
    (tmp_path / "Two Nodes.csv").write_text(NODES)
    return tmp_path / "Two Nodes.csv"


def _json(capsys: pytest.CaptureFixture[str], *arguments: str):
    capsys.readouterr()
    assert run(["spot", *arguments, "-o", "json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_every_format_can_be_named():
    assert get_args(FormatName) == ("auto", *FORMATS)


def test_import_ls_show_rm(nodes: Path, capsys: pytest.CaptureFixture[str], own_home: Path):
    assert run(["spot", "import", str(nodes), "--place", "aws/us-east-1", "--accelerator", "T4"]) == 0
    done = capsys.readouterr()
    assert (done.out, done.err) == ("two-nodes: imported (bamboo, 4.0 h, 0 to 2 VMs)\n", "")
    (row,) = _json(capsys, "ls")["imports"]
    assert (row["name"], row["kind"], row["place"], row["accelerator"]) == (
        "two-nodes",
        "history",
        "aws/us-east-1",
        "T4:1",
    )
    assert (row["duration_h"], row["availability"], row["interruptions"]) == (4.0, 0.75, 1)
    document = _json(capsys, "show", "two-nodes")
    assert (document["schema_version"], document["source"], document["warnings"]) == (1, "Two Nodes.csv", [])
    assert (document["begins_at"], document["ends_at"]) == (None, None)
    facts = document["facts"]
    assert (facts["nodes_complete"], facts["nodes_censored"]) == (1, 2)
    assert (facts["node_median_lifetime_s"], facts["longest_outage_s"]) == (3600.0, 3600.0)
    assert Path(document["file"]).stat().st_mode & 0o077 == 0
    assert run(["spot", "show", "two-nodes"]) == 0
    page = capsys.readouterr().out
    for line in (
        "source          Two Nodes.csv (bamboo), sha256 ",
        "begins          no date in the source",
        "availability    75.0 % of the time with a VM",
        "spells          lifetime unknown",
        "nodes           lifetime median 1 h, mean 1 h (1 complete; begin or end not seen: 2)",
    ):
        assert line in page
    assert load("two-nodes", own_home).place == "aws/us-east-1"
    assert run(["spot", "rm", "two-nodes"]) == 0
    assert stored_names(own_home) == []
    assert nodes.read_text() == NODES


def test_importing_again_changes_nothing_or_the_place(
    nodes: Path, capsys: pytest.CaptureFixture[str], own_home: Path
):
    assert run(["spot", "import", str(nodes), "--place", "aws/us-east-1"]) == 0
    stored = spot_folder(own_home) / "two-nodes.json"
    before = stored.read_bytes()
    assert run(["spot", "import", str(nodes)]) == 0  # keeps the place
    assert stored.read_bytes() == before
    assert run(["spot", "import", str(nodes), "--accelerator", "V100:2"]) == 0
    assert [line.split()[1] for line in capsys.readouterr().out.splitlines()] == [
        "imported",
        "unchanged",
        "updated",
    ]
    history = load("two-nodes", own_home)
    assert (history.place, history.accelerator) == ("aws/us-east-1", "V100:2")


def test_another_source_never_replaces_an_import(
    nodes: Path, capsys: pytest.CaptureFixture[str], own_home: Path
):
    assert run(["spot", "import", str(nodes)]) == 0
    nodes.write_text(NODES + "18000000,remove,c\n")
    assert run(["spot", "import", str(nodes)]) == 2
    assert (
        "choose another with --name, or remove that one with `orch spot rm two-nodes`"
        in capsys.readouterr().err
    )
    assert run(["spot", "import", str(nodes), "--name", "longer"]) == 0
    assert stored_names(own_home) == ["longer", "two-nodes"]


def test_the_same_data_twice_is_named(nodes: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "copy.csv").write_text(NODES)
    (tmp_path / "counts.csv").write_text("0,1\n3600000,2\n7200000,1\n10800000,0\n14400000,1\n")
    assert run(["spot", "import", str(nodes), str(tmp_path / "copy.csv"), str(tmp_path / "counts.csv")]) == 0
    assert "copy: two-nodes has the same bytes" in capsys.readouterr().err
    codes = {
        name: [w["code"] for w in _json(capsys, "show", name)["warnings"]] for name in ("copy", "counts")
    }
    assert codes == {"copy": ["identical_bytes", "identical_history"], "counts": ["identical_history"]}


def test_prices_and_bands_have_facts_of_their_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "advisor.json").write_text(ADVISOR)
    (tmp_path / "vms.csv").write_text(CATALOG)
    assert run(["spot", "import", str(tmp_path / "advisor.json"), str(tmp_path / "vms.csv")]) == 0
    assert [row["availability"] for row in _json(capsys, "ls")["imports"]] == [None, None]
    bands = _json(capsys, "show", "advisor", "--instance", "g4dn.xlarge")["facts"]
    assert [(row["low_percent"], row["high_percent"]) for row in bands["rows"]] == [(5, 10)]
    prices = _json(capsys, "show", "vms")["facts"]
    assert [row["median_usd_per_h"] for row in prices["series"]] == [0.1578, 0.918]
    for name, says in (
        ("advisor", "nothing of times, lifetimes or capacity"),
        ("vms", "nothing of capacity"),
    ):
        assert run(["spot", "show", name]) == 0
        assert says in capsys.readouterr().out
    assert run(["spot", "show", "vms", "--instance", "g4dn.xlarg"]) == 2
    assert "did you mean 'g4dn.xlarge'?" in capsys.readouterr().err
    with pytest.raises(HistoryError, match="has prices, not a history of capacity"):
        load("vms", tmp_path / "home")


def test_a_history_has_no_instance_types(nodes: Path, capsys: pytest.CaptureFixture[str]):
    assert run(["spot", "import", str(nodes)]) == 0
    assert run(["spot", "show", "two-nodes", "--instance", "g4dn.xlarge"]) == 2
    assert "--instance: only for prices and bands" in capsys.readouterr().err


def test_a_source_whose_end_is_in_the_future_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    days = [datetime.now(UTC) + timedelta(days=n) for n in (-1, 2)]
    (tmp_path / "c.txt").write_text("".join(f"{day:%Y-%m-%d, %H:%M:%S}, 5\n" for day in days))
    assert run(["spot", "import", str(tmp_path / "c.txt")]) == 2
    assert re.search(r"c\.txt:2: .* is in the future", capsys.readouterr().err)


def test_one_bad_file_imports_none(
    nodes: Path, tmp_path: Path, own_home: Path, capsys: pytest.CaptureFixture[str]
):
    (tmp_path / "cut.csv").write_text(NODES[:-4])
    assert run(["spot", "import", str(nodes), str(tmp_path / "cut.csv")]) == 2
    printed = capsys.readouterr()
    assert printed.err == f"{tmp_path / 'cut.csv'}:5: expected 'ms,add,node' or 'ms,remove,node'\n"
    assert printed.out == ""
    assert not own_home.exists()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["import", "none.csv"], "none.csv: no such file"),
        (["import", "."], ".: is not a regular file"),
        (["import", "empty.csv"], "empty.csv:1: the file is empty"),
        (["import", "notes.md"], "notes.md:1: not one of the known formats"),
        (["import", "nodes.csv", "--format", "parcae"], "nodes.csv:1: expected 'ms,nodes'"),
        (["import", "nodes.csv", "--format", "xml"], "'xml'"),
        (["import", "nodes.csv", "empty.csv", "--name", "x"], "--name: only for one file"),
        (["import", "nodes.csv", "sub/nodes.csv"], "nodes: two of the files would have this name"),
        (["import", "nodes.csv", "--name", "../x"], "'../x': the name of an import has"),
        (["import", "nodes.csv", "--name", "X"], "'X': the name of an import has"),
        (
            ["import", "nodes.csv", "--place", "aws/us-est-1"],
            "'us-est-1' is not a region of aws; did you mean",
        ),
        (["import", "nodes.csv", "--accelerator", "T5"], "--accelerator: unknown accelerator 'T5'"),
        (["import", "nodes.csv", "--accelerator", "T4:0"], "a count from 1 to 16"),
        (["import", "zero.csv"], "zero.csv:2: the price must be finite, above 0"),
        (["import"], "Missing argument"),
        (["show", "none"], "none: no such import; `orch spot ls` lists them"),
        (["show", "../../etc/passwd"], "the name of an import has"),
        (["rm", "none"], "none: no such import"),
    ],
)
def test_bad_input_ends_with_2_and_one_sentence(
    arguments: list[str],
    says: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    own_home: Path,
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sub").mkdir()
    for name, text in {
        "nodes.csv": NODES,
        "sub/nodes.csv": NODES,
        "empty.csv": "",
        "notes.md": "# Notes\n",
        "zero.csv": CATALOG.replace("0.1578", "0.0"),
    }.items():
        (tmp_path / name).write_text(text)
    assert run(["spot", *arguments]) == 2
    printed = capsys.readouterr()
    assert says in printed.err
    assert "Traceback" not in printed.err
    assert printed.out == ""
    assert not own_home.exists()


def test_a_file_that_is_too_large_is_not_read_in_full(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    with (tmp_path / "large.csv").open("wb") as file:
        os.truncate(file.fileno(), 100 * LARGEST_BYTES)  # sparse
    assert run(["spot", "import", str(tmp_path / "large.csv")]) == 2
    assert f"large.csv:1: the file is larger than {LARGEST_BYTES} bytes" in capsys.readouterr().err


def test_an_unreadable_import_is_named_and_can_be_removed(
    nodes: Path, own_home: Path, capsys: pytest.CaptureFixture[str]
):
    assert run(["spot", "import", str(nodes)]) == 0
    newer = spot_folder(own_home) / "newer.json"
    newer.write_text('{"schema_version": 99, "spot_format": "bamboo"}')
    assert run(["spot", "ls"]) == 0
    printed = capsys.readouterr()
    assert f"{newer}:1: written by a newer orch (format 99" in printed.err
    document = _json(capsys, "ls")
    assert ([row["name"] for row in document["imports"]], len(document["problems"])) == (["two-nodes"], 1)
    assert run(["spot", "show", "newer"]) == 2
    assert f"{newer}:1: written by a newer orch" in capsys.readouterr().err
    assert run(["spot", "import", str(nodes), "--name", "newer"]) == 2  # never overwrites it
    assert run(["spot", "rm", "newer"]) == 0
    assert stored_names(own_home) == ["two-nodes"]


def test_rm_of_several_is_all_or_nothing(nodes: Path, own_home: Path):
    assert run(["spot", "import", str(nodes)]) == 0
    assert run(["spot", "rm", "two-nodes", "none"]) == 2
    assert stored_names(own_home) == ["two-nodes"]


def test_control_characters_of_a_source_are_not_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "a\x1b[31m.csv").write_text(NODES)
    assert run(["spot", "import", str(tmp_path / "a\x1b[31m.csv"), "--name", "a"]) == 0
    for arguments in (["show", "a"], ["ls", "-o", "csv"], ["ls", "-o", "json"]):
        assert run(["spot", *arguments]) == 0
    assert "\x1b" not in capsys.readouterr().out


@given(places=st.lists(st.sampled_from(["", "aws/us-east-1", "gcp/us-central1"]), min_size=1, max_size=4))
def test_imports_in_a_row_keep_the_last_place_given(
    places: list[str], tmp_path_factory: pytest.TempPathFactory
):
    folder = tmp_path_factory.mktemp("imports")
    (folder / "n.csv").write_text(NODES)
    kept = ""
    for place in places:
        before = kept
        kept = place or kept
        (found,) = read_imports([folder / "n.csv"], "auto", place or None, None, "", 0.0, folder / "home")
        expected = "unchanged" if stored_names(folder / "home") and kept == before else "updated"
        assert found.outcome == (expected if stored_names(folder / "home") else "imported")
        write_import(found, folder / "home")
        assert (spot_folder(folder / "home") / "n.json").read_bytes() == stored_bytes(found.stored)
        assert load("n", folder / "home").place == (kept or None)
    with pytest.raises(UsageError, match="no such import"):
        load("m", folder / "home")


def test_the_real_files_are_imported_and_shown(
    spot_histories: Path, capsys: pytest.CaptureFixture[str], own_home: Path
):
    files = [file for file in sorted(spot_histories.glob("*/*")) if file.suffix in (".csv", ".txt")]
    assert run(["spot", "import", *map(str, files)]) == 0
    assert len(_json(capsys, "ls")["imports"]) == len(files) == 7
    codes = {
        name: [w["code"] for w in _json(capsys, "show", name)["warnings"]] for name in stored_names(own_home)
    }
    assert codes == {
        "a100x1-east1b": ["gaps"],
        "g4dn-trace": [],
        "p3": ["identical_history"],
        "p3-trace": ["identical_history"],
        "trace_hh_55_65": [],
        "trace_ll_10_11": ["no_complete_lifetime"],
        "v100x1-east1c": ["contradictions", "gaps"],
    }
