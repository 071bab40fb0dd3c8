"""Costs in a plan: traffic, its price book, and what `orch launch` would refuse."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from experiments.parse.load import find, load
from metrics.store.database import RunStore
from orchestrator.cli.app import run
from orchestrator.cli.render.summary import rent_question
from orchestrator.cli.starting import plan_for
from orchestrator.launch.plan_run import approved_plan
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
    command = re.search(r"^orch (plan [^#\n]*)", (ROOT / "README.md").read_text(), re.MULTILINE)
    assert command
    assert run(shlex.split(command[1])) == 0
    assert "launch it with `orch launch --plan plan.json`" in capsys.readouterr().err


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
