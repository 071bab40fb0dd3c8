"""Costs in a plan: traffic, its price book, and what `orch launch` would refuse."""

from __future__ import annotations

import csv
import json
import re
import shlex
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from cloud.prices.book import PriceBook
from cloud.prices.rows import COLUMNS
from experiments.parse.load import find, load
from metrics.store.database import RunStore
from orchestrator.cli.app import run
from orchestrator.cli.render.summary import rent_question
from orchestrator.cli.starting import plan_for, today
from orchestrator.launch.obstacles import ObstacleGroup
from orchestrator.launch.plan_run import RunPlan, approved_plan
from orchestrator.launch.prepare import prepare

ROOT = Path(__file__).parents[3]
STORE = ["data.endpoint=https://s3.example.org"]
FIRST = "peers[0].resources."
NO_PRICE = "data.location=lambda/us-west-1"  # Lambda has no object store
KEYS = ["secrets.AWS_ACCESS_KEY_ID=null", "secrets.AWS_SECRET_ACCESS_KEY=null"]


@pytest.fixture(autouse=True)
def no_catalogs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Prices are the books'."""
    monkeypatch.delenv("SKY_RUNTIME_DIR", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "nobody"))


def saved(tmp_path: Path, *settings: str) -> Path:
    path = tmp_path / "plan.json"
    arguments = [word for setting in settings for word in ("--set", setting)]
    assert run(["plan", "geo-b2", "--on", "sky", "-o", str(path), *arguments]) in (0, 3)
    return path


def lines_of(capsys: pytest.CaptureFixture[str], *settings: str, name: str = "geo-b2") -> list[str]:
    capsys.readouterr()
    arguments = [word for setting in settings for word in ("--set", setting)]
    assert run(["plan", name, "--on", "sky", *arguments]) in (0, 3)
    return [line.strip() for line in capsys.readouterr().out.splitlines()]


def test_traffic_is_part_of_the_price_with_or_without_a_budget(capsys: pytest.CaptureFixture[str]):
    budget = plan_for(load("geo-b2"), "sky").document["budget"]
    for settings in ((), ("budget_usd=50",)):
        shown = f"traffic at most ${float(budget['egress_usd_per_h']):.4g}/h, by list-2026-11.csv (prices of 2026-11-21)"
        assert shown in lines_of(capsys, *settings)
    asked = rent_question(plan_for(load("geo-b2"), "sky").document)
    assert (
        asked == f"Rent 2 VMs for $0.5445 per hour, with traffic of at most ${budget['egress_usd_per_h']}/h?"
    )
    unknown = plan_for(load("geo-b2", [NO_PRICE]), "sky").document
    assert rent_question(unknown).endswith("with traffic of unknown cost?")


def test_a_budget_holds_for_traffic_between_the_us_and_asia():
    plan = plan_for(load("geo-c8", ["budget_usd=200", *STORE, *KEYS]), "sky")
    assert not plan.obstacles
    assert float(plan.document["budget"]["egress_usd_per_h"]) > 0


def test_real_traffic_uses_the_newest_book_unless_another_is_named(
    capsys: pytest.CaptureFixture[str],
):
    assert plan_for(load("geo-b2"), "sky").document["price_book"] == "list-2026-11.csv"
    assert plan_for(load("geo-b2")).document["price_book"] == "study-2023-04.csv"
    old = lines_of(capsys, "prices=study-2023-04")
    assert any(line.endswith("by study-2023-04.csv (prices of 2023-04-01)") for line in old)
    assert any(line.startswith("note: traffic is priced by study-2023-04.csv of 2023-04-01") for line in old)
    assert not any("is counted at the prices of" in line for line in lines_of(capsys))


def test_a_rented_run_keeps_the_book_of_its_plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "x")
    spec = load("geo-b2", [*STORE, *KEYS])
    plan = plan_for(spec, "sky").document
    folder = prepare(
        approved_plan(spec, "sky", plan, cores=2), find("geo-b2"), "r-1", tmp_path / "orch", now_s=1.0
    )
    with RunStore.open_reader(folder / "run.db") as store:
        assert store.meta("price_book")["name"] == plan["price_book"] == "list-2026-11.csv"


def test_a_local_plan_also_shows_refusals():
    (network,) = plan_for(load("geo-b2", ["emulation.network=none"])).obstacles
    assert (network.code, network.text[:28]) == ("network_none", "emulation.network is 'none',")
    (budget,) = plan_for(load("geo-b2", ["budget_usd=0.01"])).document["obstacles"]
    assert (budget["code"], budget["text"][:10]) == ("dollar_limit", "the budget")
    assert not plan_for(load("geo-b2", ["budget_usd=5"])).obstacles


@pytest.mark.parametrize(
    ("name", "settings", "code", "says"),
    [
        (
            "geo-b2",
            f"budget_usd=20 {NO_PRICE}",
            "dollar_limit",
            "list-2026-11.csv has no price for the traffic of",
        ),
        ("geo-b2", "budget_usd=0.1", "dollar_limit", "the budget allows not even the first VM"),
        ("geo-b2", "max_usd_per_h=0.1", "dollar_limit", "cost at least"),
        (
            "geo-b2",
            f"emulation=null {FIRST}infra=azure/eastus {FIRST}accelerators=H100:1",
            "vm_price_unknown",
            "the price of a VM is unknown",
        ),
    ],
)
def test_money_refusals_are_in_the_verdict_and_come_before_the_prompt(
    name: str,
    settings: str,
    code: str,
    says: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    own_home: Path,
):
    lines = lines_of(capsys, *settings.split(), name=name)
    assert lines[0].startswith(f"{name} cannot be launched on rented VMs as it is: ")
    assert says in lines[lines.index("prices and limits in dollars:") + 1]
    assert not any("cannot be launched" in line for line in lines[1:])
    plan = plan_for(load(name, settings.split()), "sky").document
    assert code in [obstacle["code"] for obstacle in plan["obstacles"]]

    def asked(*_: Any, **__: Any) -> None:
        raise AssertionError("was asked")

    monkeypatch.setattr("orchestrator.cli.commands.launch.confirm", asked)
    arguments = [word for setting in settings.split() for word in ("--set", setting)]
    assert run(["launch", name, "--on", "sky", *arguments]) == 3
    assert says in capsys.readouterr().err
    assert not own_home.exists()


def test_the_documented_examples_can_be_launched(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    example = (ROOT / "docs" / "sky.md").read_text().split("```yaml\n")[1].split("```")[0]
    monkeypatch.chdir(tmp_path)
    Path("two-continents.yaml").write_text(example)  # the name that the README gives it
    plan = plan_for(load("two-continents.yaml"), "sky")
    assert not plan.obstacles
    assert plan.document["budget"]["reserve_usd"] is not None
    command = re.search(r"^orch (plan two-continents[^#\n]*)", (ROOT / "README.md").read_text(), re.MULTILINE)
    assert command
    assert run(shlex.split(command[1])) == 0
    assert "launch it with `orch launch --plan plan.json`" in capsys.readouterr().err


def test_each_documented_store_has_all_prices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    page = (ROOT / "docs" / "sky.md").read_text()
    monkeypatch.chdir(tmp_path)
    Path("mine.yaml").write_text(page.split("```yaml\n")[1].split("```")[0])
    rows = (
        page.partition("| store | `endpoint` | `region` | `location`")[2]
        .partition("\n\n")[0]
        .splitlines()[2:]
    )
    assert len(rows) == 4
    for row in rows:
        name, *cells = (cell.strip() for cell in row.strip("|").split("|"))
        endpoint, region, location = (cell.split("`")[1] if "`" in cell else "" for cell in cells)
        settings = [f"data.endpoint={endpoint}", f"data.region={region}", f"data.location={location}"]
        plan = plan_for(load("mine.yaml", settings), "sky")
        assert not plan.obstacles, name
        assert plan.document["budget"]["egress_usd_per_h"] is not None, name


def test_an_unknown_reserve_promises_no_overshoot_of_0():
    budget = plan_for(load("geo-b2", ["budget_usd=20", NO_PRICE]), "sky").document["budget"]
    assert (budget["reserve_usd"], budget["egress_usd_per_h"]) == (None, None)
    assert budget["overshoot"].startswith("unknown")


def test_only_launchable_plans_are_shown_as_launchable(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    path = saved(tmp_path)
    said = capsys.readouterr().err
    assert said.startswith("geo-b2 cannot be launched on rented VMs as it is: ")
    assert f"{path} cannot be launched" in said
    saved(tmp_path, *STORE, *KEYS)
    said = capsys.readouterr().err
    assert f"launch it with `orch launch --plan {path}`" in said
    assert "cannot be launched" not in said


def test_own_machines_have_no_market_and_no_tolerance(capsys: pytest.CaptureFixture[str]):
    lines = lines_of(capsys, name="geo-f-a-1-nlp")
    own, rented, *rest = lines[lines.index("") + 2 :]
    assert own.split() == ["own-0", "1", "onprem/eu-dgx2", "own", "V100:8", "own", "0", "0"]
    assert rented.split()[-3] == "spot"
    assert "1 x onprem/eu-dgx2  V100:8 own  $0.00/h each" in rest


def test_singular_peer_and_vm(capsys: pytest.CaptureFixture[str]):
    assert any(line.startswith("geo-a1: ConvNextLarge, 1 peer, ") for line in lines_of(capsys, name="geo-a1"))
    assert rent_question(plan_for(load("geo-a1"), "sky").document).startswith(
        "Rent 1 VM for $0.2795 per hour"
    )
    assert run(["validate", "geo-a1"]) == 0
    assert capsys.readouterr().out.startswith(
        "geo-a1: ok (geo-a1, 1 peer); can be launched on this machine; "
    )


HEADER = ",".join(COLUMNS)


def money(plan: RunPlan) -> str:
    """Text of the plan's obstacle about prices or dollars; "" if there is none."""
    return "\n".join(o.text for o in plan.obstacles if o.group is ObstacleGroup.MONEY)


def own_rows(folder: Path, usd: str = "0.11") -> Path:
    path = folder / "mine.csv"
    path.write_text(f"{HEADER}\ngcp,vm,*,*,T4:1/n1-standard-8/spot,h,0,{usd},60,1,2026-10-12,contract\n")
    return path


@pytest.mark.parametrize("on", ["local", "sky"])
def test_rows_of_ones_own_are_on_top_of_the_book_in_the_plan_and_stored_with_the_run(
    on: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "x")
    own_rows(tmp_path)
    monkeypatch.chdir(tmp_path)
    where = [*STORE, *KEYS] if on == "sky" else []
    plan = plan_for(load("geo-b2", [*where, "prices=auto,mine.csv", "budget_usd=50"]), on)
    name = {"local": "study-2023-04.csv+mine.csv", "sky": "list-2026-11.csv+mine.csv"}[on]
    assert plan.document["price_book"] == name
    places = [place for peer in plan.document["peers"] for place in peer["places"]]
    assert {place["usd_per_h"] for place in places} == {"0.11"}  # older than the other books' rows, and wins
    assert all("mine.csv:2" in place["price_source"] for place in places)
    folder = prepare(plan, find("geo-b2"), "r-1", tmp_path / "orch", now_s=1.0)
    with RunStore.open_reader(folder / "run.db") as store:
        meta = store.run_meta()
    assert meta.price_book is not None
    stored = PriceBook.from_text(meta.price_book.csv or "", meta.price_book.name or "")
    assert (stored.name, stored.sha256) == (name, meta.price_book.sha256) == (name, plan.book.sha256)
    (tmp_path / "mine.csv").unlink()  # the run has its text
    known = stored.vm("gcp/us-west1/us-west1-a", "T4", True)
    assert known is not None
    assert str(known.usd) == "0.11"


def test_one_row_of_ones_own_changes_nothing_said_of_the_book_below_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("orchestrator.cli.starting.today", lambda: date(2026, 11, 25))
    rows = own_rows(tmp_path)
    rented = lines_of(capsys, f"prices=study-2023-04,{rows}")
    note = next(line for line in rented if line.startswith("note: traffic is priced by study-2023-04.csv of"))
    assert note.endswith(f"use them with --set prices=auto,{rows}")
    assert run(["plan", "geo-b2", "--set", f"prices=auto,{rows}"]) == 0
    assert "warning" not in capsys.readouterr().out  # the paper's prices are old on purpose


@pytest.mark.parametrize(("change", "code"), [("0.11", 0), ("0.10", 7), ("", 2)])
def test_a_saved_plan_is_launched_with_the_price_book_it_was_made_with(
    change: str, code: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    own = own_rows(tmp_path)
    path = saved(tmp_path, *STORE, f"prices=auto,{own}")
    own_rows(tmp_path, change)
    assert run(["launch", "--plan", str(path), "--dry-run"]) == code
    said = capsys.readouterr().err
    assert ("the price book list-2026-11.csv+mine.csv has changed since the plan was made" in said) == (
        code == 7
    )
    assert ("mine.csv:2: usd '' is not an amount" in said) == (code == 2)


def test_the_commands_that_name_a_book_take_several(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    own_rows(tmp_path)
    monkeypatch.chdir(tmp_path)
    assert (
        run(
            [
                "prices",
                "--prices",
                "list-2026-11,mine.csv",
                "--provider",
                "gcp",
                "--product",
                "vm",
                "-o",
                "csv",
            ]
        )
        == 0
    )
    rows = list(csv.DictReader(capsys.readouterr().out.splitlines()))
    assert [row["usd"] for row in rows if row["item"] == "T4:1/n1-standard-8/spot"] == ["0.11"]
    assert run(["simulate", "--days", "0.05", "geo-b2", "--faults", "none", "-o", "json"]) == 0
    listed = json.loads(capsys.readouterr().out)["runs"][0]
    Path("mine.yaml").write_text(find("geo-b2").read_text() + "prices: [auto, mine.csv]\n")
    assert run(["simulate", "--days", "0.05", "mine.yaml", "--faults", "none", "-o", "json"]) == 0
    (mine,) = json.loads(capsys.readouterr().out)["runs"]
    assert mine["vm_hours"] == listed["vm_hours"]
    assert float(mine["spent_usd"]) < 0.5 * float(listed["spent_usd"])


def test_a_refusal_for_traffic_names_the_rows_and_never_advises_against_the_budget(
    capsys: pytest.CaptureFixture[str],
):
    settings = ["--set", "budget_usd=20", "--set", NO_PRICE]
    assert run(["launch", "geo-b2", "--on", "sky", "--yes", *settings]) == 3
    said = capsys.readouterr().err
    assert "into mine.csv, used with `--set prices=auto,mine.csv`" in said
    assert said.partition(f"{HEADER}\n")[2].splitlines()[0] == (
        f"lambda,store_egress,us-west-1,*,internet,GB,0,,,,{today().isoformat()},"
    )
    assert "without" not in said


def test_a_file_that_lacks_prices_is_advised_to_be_put_on_top_of_a_book(tmp_path: Path):
    own = own_rows(tmp_path)
    refusal = money(plan_for(load("geo-b2", ["budget_usd=20", f"prices={own}"]), "sky"))
    assert f"use a book that has them (--set prices=list-2026-11,{own}), or write these rows" in refusal


def test_a_vm_without_a_price_names_its_row_and_the_rows_of_its_traffic():
    at = ["emulation=null", f"{FIRST}infra=azure/eastus", f"{FIRST}accelerators=H100:1"]
    row = f"azure,vm,eastus,*,H100:1/INSTANCE_TYPE/spot,h,0,,,,{today().isoformat()},"
    plan = plan_for(load("geo-b2", at), "sky")
    assert money(plan).splitlines()[1:] == [HEADER, row]
    assert "'usd' and 'source' filled in and INSTANCE_TYPE replaced" in money(plan)
    both = plan_for(load("geo-b2", [*at, "budget_usd=9", NO_PRICE]), "sky")
    assert [line.partition(",us")[0] for line in money(both).splitlines()[2:]] == [
        row.partition(",us")[0],
        "lambda,store_egress",
        "lambda,storage",  # of the checkpoints that rented VMs store by default
    ]
    assert len(both.document["missing_prices"]) == 3


def test_a_price_that_no_row_could_give_is_not_asked_for():
    """Lambda rents no spot VMs."""
    at = ["emulation=null", f"{FIRST}infra=lambda/us-west-1", f"{FIRST}accelerators=A10:1"]
    plan = plan_for(load("geo-b2", at), "sky")
    assert money(plan).endswith("set 'max_usd_per_h' for the place, or remove it")
    assert plan.document["missing_prices"] == []


def test_old_prices_are_warned_of_before_the_notes(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("orchestrator.cli.starting.today", lambda: date(2026, 11, 25))
    at = ["emulation=null", f"{FIRST}infra=aws/us-east-1/us-east-1a"]
    lines = lines_of(capsys, *at)
    warned = [line for line in lines if line.startswith("warning: ")]
    assert warned[0].startswith(
        "warning: the spot price of T4:1 at aws/us-east-1/us-east-1a is of 2023-04-01, 1,334 days old (study-2023-04.csv:"
    )
    first_note = next(n for n, line in enumerate(lines) if line.startswith("note: "))
    assert lines.index(warned[-1]) < first_note
    assert run(["plan", "geo-b2"]) == 0
    local = capsys.readouterr().out
    assert "by study-2023-04.csv, the paper's own prices of 2023 (" in local
    assert "warning" not in local


def test_a_simulation_without_a_price_names_its_row(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    experiment = tmp_path / "e.yaml"
    text = find("geo-a1").read_text().replace("accelerators: T4", "accelerators: A10")
    text = text.replace("emulation: auto", "emulation: null")
    experiment.write_text(re.sub(r"infra: \S+", "infra: aws/us-east-1/us-east-1a", text))
    assert run(["simulate", str(experiment)]) == 2
    said = capsys.readouterr().err.splitlines()
    assert said[-2:] == [HEADER, "aws,vm,us-east-1,*,A10:1/INSTANCE_TYPE/spot,h,0,,,,,"]
    assert "aws/us-east-1/us-east-1a cannot be simulated: unknown: " in said[-3]
