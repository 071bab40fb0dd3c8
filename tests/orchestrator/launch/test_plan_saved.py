"""`orch launch --plan` starts exactly the approved plan, or refuses it if anything has changed."""

from __future__ import annotations

import json
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from analysis.planning.plan import Quoter, book_quoter
from experiments.parse.load import load, to_document
from metrics.store.database import RunStore
from orchestrator.cli.app import run
from orchestrator.cli.starting import plan_for, plan_json
from orchestrator.controller import client
from orchestrator.errors import StalePlanError
from orchestrator.saved_plan import read_plan, refuse_if_stale

pytestmark = pytest.mark.usefixtures("nothing_of_the_users")


def saved(tmp_path: Path, *overrides: str) -> Path:
    path = tmp_path / "plan.json"
    arguments = [word for override in overrides for word in ("--set", override)]
    assert run(["plan", "geo-b2", "--on", "sky", "-o", str(path), *arguments]) == 3  # it names no store
    return path


def test_a_saved_plan_is_what_json_prints(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    path = saved(tmp_path)
    assert capsys.readouterr().out == f"{path}\n"
    assert run(["plan", "geo-b2", "--on", "sky", "-o", "json"]) == 3
    printed, kept = json.loads(capsys.readouterr().out), json.loads(path.read_text())
    for of_its_moment in ("created_at", "plan_sha256"):
        del printed[of_its_moment], kept[of_its_moment]
    assert printed == kept


def test_a_saved_plan_launches_its_own_experiment_not_the_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    path = saved(tmp_path, "measure.epochs=7")
    capsys.readouterr()
    assert run(["launch", "--plan", str(path), "--dry-run", "-o", "json", "--price-tolerance", "0.5"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert plan["on"] == "sky"
    assert plan["epochs"]["measured"] == 7
    # by hand: 0.27946 x 1.5
    assert Decimal(plan["ceilings"]["gcp/us-central1/us-central1-a|T4:1|spot"]) == Decimal("0.41919")
    assert Decimal(plan["peers"][0]["ceiling_usd_per_h"]) == Decimal("0.41919")


def test_the_whole_saved_plan_is_started(
    tmp_path: Path, own_home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    path = tmp_path / "plan.json"
    assert run(["plan", "local-2", "-o", str(path), "--set", "measure.epochs=5"]) == 0
    folder = own_home / "runs" / "approved"
    monkeypatch.setattr(client, "launch", lambda run_id, home: client.RunConnection(run_id, folder))
    assert run(["launch", "--plan", str(path), "--yes", "--detach", "--run-id", "approved"]) == 0
    with RunStore.open_reader(folder / "run.db") as store:
        plan, document = store.meta("plan"), store.meta("experiment")
    kept = json.loads(path.read_text())
    assert document == kept["experiment_document"]
    assert document["measure"]["epochs"] == 5
    assert plan == {key: value for key, value in kept.items() if key in plan}
    assert to_document(load(str(folder / "experiment.yaml"))) == document
    assert plan["ceilings"] == {}  # nothing is rented


def test_a_launch_killed_during_folder_creation_can_be_repeated(
    own_home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    folder = own_home / "runs" / "again"
    folder.mkdir(parents=True)
    for name in ("run.db.new", "run.db.new-wal"):
        (folder / name).write_bytes(b"half a database")
    monkeypatch.setattr(client, "launch", lambda run_id, home: client.RunConnection(run_id, folder))
    assert run(["launch", "local-2", "--yes", "--detach", "--run-id", "again"]) == 0
    with RunStore.open_reader(folder / "run.db") as store:
        assert store.meta("status") == "running"
    assert not list(folder.glob("run.db.new*"))


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["geo-b2"], "contains its experiment"),
        (["--set", "seed=1"], "contains its experiment"),
        (["--on", "local"], "is a plan for --on sky"),
    ],
)
def test_options_that_contradict_a_plan_exit_with_2(
    arguments: list[str], says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    assert run(["launch", "--plan", str(saved(tmp_path)), "--dry-run", *arguments]) == 2
    assert says in capsys.readouterr().err


def change(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


@pytest.mark.parametrize(
    ("changes", "code", "says"),
    [
        ({"budget_usd": "9999"}, 2, "was modified after it was created"),
        ({"experiment_document": {}}, 2, "was modified after it was created"),
        ({"orch_version": "0.0.1"}, 7, "created by orch 0.0.1"),
        ({"schema_version": 2}, 7, "format 2"),
    ],
)
def test_an_edited_plan_exits_with_2_and_another_versions_with_7(
    changes: dict[str, Any], code: int, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    path = saved(tmp_path)
    change(path, **changes)
    assert run(["launch", "--plan", str(path), "--dry-run"]) == code
    assert says in capsys.readouterr().err


@pytest.mark.parametrize("text", ["", "[]", "{}", "\x00", '{"schema_version": 1}'])
def test_an_invalid_plan_file_exits_with_2(text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    path = tmp_path / "plan.json"
    path.write_text(text)
    assert run(["launch", "--plan", str(path), "--dry-run"]) == 2
    assert "not a saved plan" in capsys.readouterr().err
    assert run(["launch", "--plan", str(tmp_path / "none.json"), "--dry-run"]) == 2
    assert "cannot read the plan" in capsys.readouterr().err


def catalog(home: Path, factor: str) -> None:
    """A catalog of Google's in which the VM in Iowa costs `factor` x $0.2, its T4 included."""
    folder = home / ".sky" / "catalogs" / "v8" / "gcp"
    folder.mkdir(parents=True, exist_ok=True)
    rows = [
        "InstanceType,vCPUs,MemoryGiB,AcceleratorName,AcceleratorCount,GpuInfo,Region,AvailabilityZone,Price,SpotPrice"
    ]
    for zone, usd in (
        ("us-central1-a", Decimal("0.1") * Decimal(factor)),
        ("europe-west1-b", Decimal("0.1")),
    ):
        rows.append(f"n1-standard-8,8.0,30.0,,,,{zone[:-2]},{zone},0.4,{usd}")
        rows.append(f",,,T4,1.0,,{zone[:-2]},{zone},0.35,{usd}")
    (folder / "vms.csv").write_text("\n".join(rows) + "\n")


@pytest.mark.parametrize(("factor", "code"), [("1.05", 0), ("1.1", 0), ("1.2", 7), ("0.5", 0)])
def test_prices_above_the_tolerance_exit_with_7(
    factor: str, code: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    catalog(tmp_path / "nobody", "1")
    path = saved(tmp_path)
    catalog(tmp_path / "nobody", factor)
    assert run(["launch", "--plan", str(path), "--dry-run"]) == code
    if code:
        shown = capsys.readouterr().err
        assert "gcp/us-central1/us-central1-a|T4:1|spot costs $0.24/h now, more than $0.2 + 10%" in shown
        assert run(["launch", "--plan", str(path), "--dry-run", "--price-tolerance", "0.25"]) == 0


def test_a_place_that_lost_its_price_or_its_vm_is_stale(tmp_path: Path):
    spec = load("geo-b2")
    path = tmp_path / "plan.json"
    plan = plan_for(spec, "sky")
    path.write_text(plan_json(plan))
    approved = read_plan(path, json.loads(path.read_text())["orch_version"])
    book = book_quoter(plan.book)

    def today(**changed: Any) -> Quoter:
        return lambda *place: replace(book(*place), **changed)

    refuse_if_stale(approved, Decimal(0), today())
    for key, value, says in (
        ("usd_per_h", None, "has no price now"),
        ("instance", "n1-highmem-8", "is n1-highmem-8 now"),
    ):
        with pytest.raises(StalePlanError, match=says):
            refuse_if_stale(approved, Decimal(10), today(**{key: value}))
    fewer = replace(approved, spec=spec.model_copy(update={"peers": spec.peers[:1]}))
    with pytest.raises(StalePlanError, match="no longer among its places"):
        refuse_if_stale(fewer, Decimal(10), today())


def test_ceiling_and_reserve_use_the_approved_price(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    catalog(tmp_path / "nobody", "1")
    path = saved(tmp_path, "budget_usd=1.22")
    approved = json.loads(path.read_text())
    assert not any("is not below the budget" in note for note in approved["notes"])
    catalog(tmp_path / "nobody", "0.5")
    capsys.readouterr()
    assert run(["launch", "--plan", str(path), "--dry-run", "-o", "json", "--price-tolerance", "3"]) == 0
    plan = json.loads(capsys.readouterr().out)
    # by hand: two VMs of $0.2, each allowed to cost 1 + 3 times that, for 1110 s, beside the same traffic
    assert Decimal(plan["budget"]["burn_usd_per_h"]) == Decimal("1.6")
    assert plan["budget"]["egress_usd_per_h"] == approved["budget"]["egress_usd_per_h"]
    more = Decimal(plan["budget"]["reserve_usd"]) - Decimal(approved["budget"]["reserve_usd"])
    assert abs(more - (Decimal("1.6") - Decimal("0.44")) * 1110 / 3600) <= Decimal("0.01")
    assert any("is not below the budget of $1.22" in note for note in plan["notes"])
    assert {p["usd_per_h"] for p in plan["peers"]} == {"0.2"}  # as approved; one costs half of it today
    assert plan["ceilings"].keys() == approved["ceilings"].keys()
