"""Corrupt exports: one sentence with file, line and next step, nothing left behind, other runs are imported."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from made_up_run import write_run

from analysis.export.focus_file import export_focus
from analysis.export.tables import export_tables
from analysis.importers.base import ImportFailed
from analysis.importers.orch_export import OrchExport

RUN = "geo-c8-20231114-aaaa"
IMPORTER = OrchExport()


@pytest.fixture(scope="module")
def exports(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One run's exports: `csv/`, `parquet/` and `focus/`."""
    work = tmp_path_factory.mktemp("exports")
    write_run(work / RUN, peers=2, epochs=2)
    export_tables(work / RUN / "run.db", work / "csv", "csv")
    export_tables(work / RUN / "run.db", work / "parquet", "parquet")
    export_focus(work / RUN / "run.db", work / "focus", known_only=True)
    return work


def _cut(file: Path) -> None:
    data = file.read_bytes()
    file.write_bytes(data[: len(data) - max(len(data.splitlines()[-1]) // 2, 3)])


def _last_row_gone(file: Path) -> None:
    file.write_bytes(b"".join(file.read_bytes().splitlines(keepends=True)[:-1]))


def _replace(old: str, new: str) -> Callable[[Path], None]:
    def change(file: Path) -> None:
        text = file.read_text()
        assert old in text
        file.write_text(text.replace(old, new, 1))

    return change


def _manifest(**changes: object) -> Callable[[Path], None]:
    def change(file: Path) -> None:
        known = json.loads(file.read_text())
        for key, value in changes.items():
            if value is None:
                del known[key]
            else:
                known[key] = value
        file.write_text(json.dumps(known))

    return change


def _only_table(name: str) -> Callable[[Path], None]:
    def change(file: Path) -> None:
        known = json.loads(file.read_text())
        known["tables"] = [entry for entry in known["tables"] if entry["table"] == name]
        file.write_text(json.dumps(known))

    return change


def _doubled_row(file: Path) -> None:
    """Duplicate a row and update the manifest accordingly."""
    lines = file.read_text().splitlines(keepends=True)
    file.write_text("".join([*lines, lines[-1]]))
    manifest = file.parent / "manifest.json"
    known = json.loads(manifest.read_text())
    for entry in known["tables"]:
        if entry["file"] == file.name:
            entry["rows"] += 1
            entry["sha256"] = hashlib.sha256(file.read_bytes()).hexdigest()
    manifest.write_text(json.dumps(known))


AGAIN = "export the run again with `orch export`"


@pytest.mark.parametrize(
    ("form", "file", "damage", "says"),
    [
        ("csv", "epochs.csv", Path.unlink, rf"epochs\.csv: cannot be read \(No such file or directory\); {AGAIN}"),
        ("csv", "epochs.csv", _cut, rf"epochs\.csv:5: \d+ cells, but 19 columns; {AGAIN}"),
        ("csv", "epochs.csv", _last_row_gone, r"epochs\.csv: 3 rows, but the manifest says 4"),
        ("csv", "egress.csv", _replace("calc", "calc\n"), r"egress\.csv:2: 4 cells, but 7 columns"),
        ("csv", "epochs.csv", _replace(",16,", ",16.5,"), r"epochs\.csv:2: steps: '16\.5' is not a whole number"),
        ("csv", "epochs.csv", _replace(",16,", ",\\N,"), r"epochs\.csv:2: steps: '\\N' is not a whole number"),
        ("csv", "epochs.csv", _replace(",6.0,", ",six,"), r"epochs\.csv:2: forward_s: 'six' is not a number"),
        ("csv", "vms.csv", _replace(",0.18,", ",cheap,"), r"vms\.csv:2: usd_per_h: 'cheap' is not an amount"),
        ("csv", "vms.csv", _replace("true", "yes"), r"vms\.csv:2: use_spot: 'yes' is not true or false"),
        ("csv", "vms.csv", _replace("p-0", "p\\x"), r"vms\.csv:2: slot: 'p\\x' is not a text"),
        ("csv", "vms.csv", _replace("usd_per_h", "eur_per_h"), r"vms\.csv:1: the columns are not vm,slot,"),
        ("csv", "vms.csv", _replace(",0.18,", ",0.19,"), r"vms\.csv: changed since the export"),
        ("csv", "vms.csv", _replace("study", '"study'), r"vms\.csv:\d+: "),
        ("csv", "steps.csv", lambda f: f.write_bytes(b"\xff\xfe\x00junk"), r"steps\.csv:1: not UTF-8 text"),
        ("csv", "vms.csv", lambda f: f.write_bytes(f.read_bytes() + b"\xff"), r"vms\.csv:4: not UTF-8 text"),
        ("csv", "steps.csv", lambda f: f.write_bytes(b""), r"steps\.csv:1: the columns are not vm,step,"),
        ("csv", "ingress.csv", _doubled_row, r"ingress\.csv: contains a row twice"),
        ("csv", "meta.json", _cut, r"meta\.json:\d+:\d+: "),
        ("csv", "meta.json", _replace('"done"', '"dead"'), r"meta\.json: changed since"),
        ("csv", "manifest.json", _cut, r"manifest\.json:\d+:\d+: "),
        ("csv", "manifest.json", _manifest(run_id=None), r"manifest\.json: key 'run_id' is missing"),
        ("csv", "manifest.json", _manifest(run_id="../../x"), r"'\.\./\.\./x' is not a valid run id"),
        ("csv", "manifest.json", _manifest(version=2), r"written by a newer orch .*`git pull` in its clone"),
        ("csv", "manifest.json", _manifest(schema_version=99), r"written by a newer orch .*`git pull` in its clone"),
        ("csv", "manifest.json", _manifest(meta={"file": "/etc/passwd", "sha256": ""}), r"not in the export's folder"),
        ("csv", "manifest.json", _manifest(tables=7), r"manifest\.json: cannot be read"),
        ("csv", "manifest.json", _only_table("vms"), r"manifest\.json: table events is missing"),
        ("parquet", "epochs.parquet", _cut, r"epochs\.parquet: cannot be read as Parquet, it may be truncated \("),
        ("parquet", "epochs.parquet", lambda f: shutil.copy(f.with_name("vms.parquet"), f), r"types are not vm,epoch"),
        ("parquet", "vms.parquet", Path.unlink, r"vms\.parquet: cannot be read \(No such file"),
        ("focus", "manifest.json", Path.touch, r"a focus export contains the run's costs, not its records"),
    ],
)  # fmt: skip
def test_corrupt_export_error_is_one_sentence(
    exports: Path, tmp_path: Path, form: str, file: str, damage: Callable[[Path], object], says: str
):
    folder = tmp_path / "given"
    shutil.copytree(exports / form, folder)
    damage(folder / file)
    assert IMPORTER.recognises(folder)
    with pytest.raises(ImportFailed) as failed:
        IMPORTER.import_runs(folder, tmp_path / "into")
    sentence = str(failed.value)
    assert re.search(says, sentence), sentence
    assert str(folder) in sentence
    assert "\n" not in sentence
    assert not list((tmp_path / "into").rglob("run.db"))


def test_the_other_runs_are_imported(exports: Path, tmp_path: Path):
    given = tmp_path / "given"
    shutil.copytree(exports / "csv", given / "a")
    shutil.copytree(exports / "parquet", given / "b")
    shutil.copytree(exports / "csv", given / "c")
    (given / "notes").mkdir()
    _cut(given / "a" / "vms.csv")
    _manifest(run_id="other-1")(given / "b" / "manifest.json")
    found = IMPORTER.import_runs(given, tmp_path / "into")
    assert [folder.name for folder in found.folders] == ["other-1", RUN]
    assert len(found.problems) == 1
    assert "a/vms.csv:3: " in found.problems[0]


def test_one_run_twice_is_read_once(exports: Path, tmp_path: Path):
    found = IMPORTER.import_runs(exports, tmp_path / "into")
    assert [folder.name for folder in found.folders] == [RUN]
    assert any(f"run {RUN} is also in" in problem for problem in found.problems)
    assert any("a focus export" in problem for problem in found.problems)


def test_only_requested_runs_are_imported(exports: Path, tmp_path: Path):
    found = IMPORTER.import_runs(exports / "csv", tmp_path / "into", only=[RUN, "nobody-1"])
    assert len(found.folders) == 1
    assert found.problems == (f"{exports / 'csv'}: no export of run nobody-1",)
    with pytest.raises(ImportFailed, match="no export of run nobody-1"):
        IMPORTER.import_runs(exports / "csv", tmp_path / "again", only=["nobody-1"])


def test_other_folders_are_not_recognised(exports: Path, tmp_path: Path):
    assert not IMPORTER.recognises(tmp_path)
    assert not IMPORTER.recognises(tmp_path / "nowhere")
    assert not IMPORTER.recognises(exports / "csv" / "vms.csv")
    assert not IMPORTER.recognises(exports / RUN)
    (tmp_path / "manifest.json").write_text('{"format": "of somebody else"}')
    assert not IMPORTER.recognises(tmp_path)
    with pytest.raises(ImportFailed, match="contains no export; create one with `orch export`"):
        IMPORTER.import_runs(tmp_path, tmp_path / "into")


def test_existing_run_is_not_overwritten(exports: Path, tmp_path: Path):
    IMPORTER.import_runs(exports / "csv", tmp_path)
    before = (tmp_path / RUN / "run.db").read_bytes()
    with pytest.raises(ImportFailed, match="already contains a run"):
        IMPORTER.import_runs(exports / "csv", tmp_path)
    assert (tmp_path / RUN / "run.db").read_bytes() == before
