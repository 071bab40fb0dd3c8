"""`orch export` and `orch bill` from the command line."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from made_up_run import write_run

from experiments.parse.load import find, load
from metrics.records import EgressRecord
from metrics.store.database import RunStore
from orchestrator.cli.app import run
from orchestrator.cli.starting import plan_for
from orchestrator.home import run_folder
from orchestrator.launch.prepare import prepare

RUN = "geo-c8-20231114-aaaa"


@pytest.fixture
def made_up(own_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run in ORCH_HOME and an empty working folder; yields the run's folder."""
    folder = run_folder(own_home, RUN)
    write_run(folder, peers=4, epochs=3)
    (folder / "experiment.yaml").write_text("")
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    return folder


def _json(capsys: pytest.CaptureFixture[str]) -> dict:
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_an_export_replays_to_the_same_numbers(made_up: Path, form: str, capsys: pytest.CaptureFixture[str]):
    assert run(["export", "geo", "--to", form]) == 0
    assert capsys.readouterr().out == f"{RUN}-{form}\n"
    assert run(["replay", str(made_up), "-o", "json"]) == 0
    before = _json(capsys)
    assert run(["replay", f"{RUN}-{form}", "-o", "json"]) == 0
    assert _json(capsys) == before


def test_run_can_be_given_as_folder(made_up: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert run(["export", str(made_up), "--to", "csv", "--out", str(tmp_path / "there")]) == 0
    assert (tmp_path / "there" / "manifest.json").is_file()
    assert capsys.readouterr().out == f"{tmp_path / 'there'}\n"


def test_nothing_is_replaced_without_force(made_up: Path, capsys: pytest.CaptureFixture[str]):
    assert run(["export", RUN, "--to", "csv"]) == 0
    assert run(["export", RUN, "--to", "csv"]) == 2
    printed = capsys.readouterr().err
    assert "already exists; use --force" in printed
    assert printed.count("\n") == 1
    assert run(["export", RUN, "--to", "csv", "--force"]) == 0


def test_focus_with_an_unknown_cost(made_up: Path, capsys: pytest.CaptureFixture[str]):
    with RunStore.open_writer(made_up / "run.db") as store:
        store.upsert_vm(replace(store.records("vms")[0], usd_per_h=None))
    assert run(["export", RUN, "--to", "focus"]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "--known-only" in shown.err
    assert not list(Path().iterdir())
    assert run(["export", RUN, "--to", "focus", "--known-only"]) == 0
    shown = capsys.readouterr()
    assert shown.out == f"{RUN}-focus\n"
    assert shown.err.startswith("omitted, cost unknown: ")
    assert run(["replay", f"{RUN}-focus"]) == 2
    assert "contains the run's costs, not its records" in capsys.readouterr().err


def test_charges_of_one_unknown_price_are_named_once(
    own_home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    folder = run_folder(own_home, RUN)
    write_run(folder, peers=8)
    (folder / "experiment.yaml").write_text("")
    with RunStore.open_writer(folder / "run.db") as store:
        one, *others = store.records("vms")
        pair = [one, next(vm for vm in others if vm.location == one.location)]
        sent = [EgressRecord(vm.vm, 2, "203.0.113.9", "leaving", 1.0, 5_000, None) for vm in pair]
        store.append("egress", sent)
    out = ["--out", str(tmp_path / "out")]
    assert run(["export", RUN, "--to", "focus", *out]) == 2
    assert capsys.readouterr().err.count("203.0.113.9") == 1
    assert run(["export", RUN, "--to", "focus", "--known-only", *out]) == 0
    named = [line for line in capsys.readouterr().err.splitlines() if "203.0.113.9" in line]
    assert [line.endswith(" (2 charges)") for line in named] == [True]


@pytest.mark.parametrize("form", ["table", "csv", "json"])
def test_bill_is_compared_with_the_estimate(made_up: Path, form: str, capsys: pytest.CaptureFixture[str]):
    run(["export", RUN, "--to", "focus"])
    capsys.readouterr()
    assert run(["bill", RUN, "--against", f"{RUN}-focus/focus.csv", "-o", form]) == 0
    shown = capsys.readouterr()
    if form == "json":
        document = json.loads(shown.out)
        assert document["selected_by"] == "tag"
        assert document["total"]["difference_usd"] == 0
        assert {row["service"] for row in document["services"]} >= {"vm", "data", "egress oceania"}
        assert document["unmatched"] == {"estimate": [], "bill": []}
        assert "emulated" in document["warnings"][0]
        return
    assert "emulated" in shown.err
    header = shown.out.splitlines()[0].replace(",", " ").split()
    assert header[0].casefold() == "provider"
    if form == "table":
        assert "$0.00" in shown.out.splitlines()[-1]


def test_invalid_bill(made_up: Path, capsys: pytest.CaptureFixture[str]):
    run(["export", RUN, "--to", "focus"])
    text = Path(f"{RUN}-focus/focus.csv").read_text()
    Path("bill.csv").write_text(text.replace("USD", "EUR"))
    assert run(["bill", RUN, "--against", "bill.csv"]) == 2
    assert run(["bill", RUN, "--against", "nowhere.csv"]) == 2
    assert run(["bill", "nobody", "--against", "bill.csv"]) == 2
    printed = capsys.readouterr().err.splitlines()
    assert printed[0].startswith("orch: bill.csv:2: BillingCurrency: 'EUR' is not USD")
    assert printed[1].startswith("orch: nowhere.csv: cannot be read (No such file or directory)")
    assert "no such run" in printed[2]
    assert len(printed) == 3


def test_no_secret_is_exported(own_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The secrets of a run, which are kept next to run.db, are not exported."""
    file = tmp_path / "secret.yaml"
    file.write_text(Path(find("local-2")).read_text() + "\nsecrets:\n  HF_TOKEN: null\n")
    monkeypatch.setenv("HF_TOKEN", "hunter2")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hunter2")
    spec = load(str(file))
    folder = prepare(plan_for(spec), file, "secret-1", own_home, now_s=1.7e9)
    assert "hunter2" in "".join(f.read_text() for f in (folder / "keys").iterdir())
    for form in ("csv", "parquet", "focus"):
        assert run(["export", str(folder), "--to", form, "--out", str(tmp_path / form)]) == 0
        for written in (tmp_path / form).iterdir():
            assert b"hunter2" not in written.read_bytes()
