"""`orch plan` and `orch launch --dry-run`: offline, with the source of every price."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from synthetic_runs import epoch, vm

from experiments.parse.load import library, load
from metrics.store.database import RunStore
from orchestrator.cli.app import run
from orchestrator.cli.starting import plan_for
from orchestrator.errors import UsageError
from orchestrator.saved_plan import read_plan

pytestmark = pytest.mark.usefixtures("nothing_of_the_users")

ALONE = "digits-alone"  # has no accelerator: no cloud's VM and no price are known
UNPRICED = (ALONE, "glyphs-2", "stdlib-lm-1", "stdlib-lm-2", "stdlib-lm-4")
LIBRARY = [entry.name for entry in library() if entry.name not in UNPRICED]


RENTABLE = {  # what the study rented; own: its own machines
    "gcp": "n1-standard-8", "aws": "g4dn.2xlarge", "azure": "Standard_NC4as_T4_v3", "lambda": "gpu_1x_a10",
    "onprem": "own",
}  # fmt: skip
ELSEWHERE_PRICED = ("aws", "azure", "onprem")  # the newest book has no T4 spot there; nobody bills one's own


@pytest.fixture
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: Any, **__: Any) -> Any:
        raise AssertionError("a dry run opened a socket")

    for name in ("socket", "create_connection", "getaddrinfo", "socketpair"):
        monkeypatch.setattr(socket, name, refused)


@pytest.mark.usefixtures("no_network")
@pytest.mark.parametrize("name", LIBRARY)
def test_every_experiment_of_the_library_is_planned_without_network_or_credentials(
    name: str, capsys: pytest.CaptureFixture[str], own_home: Path
):
    assert run(["launch", name, "--on", "sky", "--dry-run", "-o", "json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    spec = load(name)
    assert len(plan["peers"]) == spec.peer_count
    for peer in plan["peers"]:
        cloud = peer["location"].partition("/")[0]
        assert peer["instance"] == RENTABLE[cloud]
        assert (Decimal(peer["usd_per_h"]) > 0) == (cloud != "onprem")
        assert "list-2026-11.csv:" in peer["price_source"] or cloud in ELSEWHERE_PRICED
        own = [each["text"] for each in plan["obstacles"] if each["code"] == "own_place"]
        assert any(peer["location"] in text for text in own) == (cloud == "onprem")
        catalog = f"catalog of {cloud} is not on this machine"
        assert any(catalog in note for note in plan["notes"]) == (cloud != "onprem")
    assert Decimal(plan["usd_per_h"]) == sum(Decimal(peer["usd_per_h"]) for peer in plan["peers"])
    assert not own_home.exists()  # nothing was begun


@pytest.mark.usefixtures("no_network")
def test_a_vm_without_a_price_is_planned_as_unknown(capsys: pytest.CaptureFixture[str]):
    elsewhere = "peers.us.resources.infra=gcp/europe-west6/europe-west6-a"  # CPU:1 has no price there
    assert run(["launch", ALONE, "--on", "sky", "--dry-run", "-o", "json", "--set", elsewhere]) == 0
    plan = json.loads(capsys.readouterr().out)
    (peer,) = plan["peers"]
    assert (peer["instance"], peer["usd_per_h"], plan["usd_per_h"]) == ("unknown", None, None)
    assert any("the price of a VM is unknown" in obstacle["text"] for obstacle in plan["obstacles"])


@pytest.mark.usefixtures("no_network")
def test_dry_run_lists_all_places(capsys: pytest.CaptureFixture[str]):
    assert run(["launch", "geo-b2", "--on", "sky", "--dry-run"]) == 0
    shown = capsys.readouterr()
    assert "2 peers" in shown.out
    assert "T4:1 on n1-standard-8 spot" in shown.out
    assert "all VMs $0.5445/h" in shown.out  # by hand: 0.27946 + 0.26502
    assert "nothing was contacted" in shown.err
    assert run(["launch", "geo-b2", "--dry-run"]) == 0
    assert "Emulated cloud" in capsys.readouterr().out


def test_a_dry_run_imports_nothing_that_could_rent_or_run(tmp_path: Path):
    code = (
        "import sys; from orchestrator.cli.app import run; "
        "code = run(['launch', 'geo-b2', '--on', 'sky', '--dry-run', '-o', 'json']); "
        "print(sorted({'sky', 'boto3', 'botocore', 'ray', 'torch', 'hivemind'} & set(sys.modules)), file=sys.stderr); "
        "sys.exit(code)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).parents[3],
    )
    assert done.stderr.splitlines()[-1] == "[]"


ELSEWHERE = ["data.location=b2/us-west-1", "emulation=null"]


@pytest.mark.parametrize(
    ("infra", "accelerator", "spot", "instance", "usd"),
    [
        ("aws/us-east-1/us-east-1a", "T4:1", "false", "g4dn.2xlarge", "0.752"),
        ("aws/us-east-1/us-east-1a", "T4:1", "true", "g4dn.2xlarge", "0.395"),  # the study's book, of 2023
        ("azure/eastus", "T4:1", "true", "Standard_NC4as_T4_v3", "0.134"),
        ("lambda/us-west-1", "A10:1", "false", "gpu_1x_a10", "1.29"),
    ],
)
def test_the_other_clouds_have_instance_types_and_dated_prices(
    infra: str, accelerator: str, spot: str, instance: str, usd: str
):
    wished = [
        f"peers[0].resources.{k}={v}"
        for k, v in (("infra", infra), ("accelerators", accelerator), ("use_spot", spot))
    ]
    plan = plan_for(load("geo-b2", [*ELSEWHERE, *wished]), "sky").document
    first = plan["peers"][0]
    assert (first["instance"], first["usd_per_h"]) == (instance, usd)
    assert "valid from 20" in first["price_source"]
    assert plan["duration_s"] is not None  # a step of it was measured on each of them
    assert any("duration" in note for note in plan["notes"])


def test_missing_price_is_unknown_with_the_reason():
    wished = ["peers[0].resources.infra=lambda/us-west-1", "peers[0].resources.accelerators=A10:1"]
    plan = plan_for(load("geo-b2", [*ELSEWHERE, *wished, "peers[0].resources.use_spot=true"]), "sky").document
    assert (plan["peers"][0]["usd_per_h"], plan["usd_per_h"], plan["dearest_usd_per_h"]) == (None, None, None)
    assert any("Lambda rents no spot VMs" in note for note in plan["notes"])
    assert "lambda/us-west-1|A10:1|spot" not in plan["ceilings"]


def test_a_plan_of_a_real_model_has_a_duration_a_reserve_and_its_limits():
    limits = ["budget_usd=50", "max_usd_per_h=3", "max_wall_time_s=7200", "min_peers=2"]
    plan = plan_for(load("geo-b2", ["emulation=null", *limits]), "sky", Decimal("0.2")).document
    assert not plan["emulated"]
    assert plan["duration_s"] == plan["raw_duration_s"]  # nothing is scaled
    assert plan["limits"] == {
        "min_peers": 2, "max_usd_per_h": "3", "max_wall_time_s": 7200.0, "lease_s": 600.0,
        "vms_per_min": 30, "replacements_per_h": 60,
    }  # fmt: skip
    budget = plan["budget"]
    # by hand: both VMs at their ceilings, (0.27946 + 0.26502) x 1.2
    assert Decimal(budget["burn_usd_per_h"]) == Decimal("0.653376")
    seconds = Decimal(str(budget["metering_period_s"] + budget["decision_s"] + budget["teardown_s"]))
    rates = Decimal(budget["burn_usd_per_h"]) + Decimal(budget["egress_usd_per_h"])
    assert abs(Decimal(budget["reserve_usd"]) - rates * seconds / 3600) < Decimal("0.01")
    assert "ends within 1020 s" in budget["overshoot"]
    assert plan["labels"].keys() == {"orch-run", "orch-slot", "orch-owner", "orch-vm", "orch-lease-until"}


def test_limits_that_leave_slots_without_a_vm_are_noted():
    wished = ["max_usd_per_h=0.3", "budget_usd=0.5", "peers.us.resources.max_usd_per_h=0.2"]
    notes = plan_for(load("geo-b2", wished), "sky").document["notes"]
    assert any("us-central1-a costs $0.27946/h, above its max_usd_per_h" in note for note in notes)
    assert any("more than max_usd_per_h ($0.3): not every slot gets a VM" in note for note in notes)
    assert any("is not below the budget of $0.5" in note for note in notes)


def test_an_unknown_price_counts_as_its_ceiling():
    wished = ["peers[0].resources.infra=lambda/us-west-1", "peers[0].resources.accelerators=H200:1"]
    plan = plan_for(
        load("geo-b2", [*ELSEWHERE, *wished, "peers[0].resources.use_spot=false"]), "sky"
    ).document
    assert plan["usd_per_h"] is None
    ceiling = ["peers[0].resources.use_spot=false", "peers[0].resources.max_usd_per_h=4"]
    spec = load("geo-b2", [*ELSEWHERE, *wished, *ceiling])
    capped = plan_for(spec, "sky").document
    assert Decimal(capped["usd_per_h"]) == 4 + Decimal("0.26502")
    assert capped["ceilings"]["lambda/us-west-1|H200:1|on_demand"] == "4"
    raised = plan_for(spec, "sky", Decimal(1), approved=capped).document
    assert Decimal(raised["ceilings"]["lambda/us-west-1|H200:1|on_demand"]) == 4


def test_cheapest_place_is_first_for_cheapest_place_policy():
    places = "[{infra: gcp/us-central1/us-central1-a, use_spot: true}, {infra: gcp/asia-east1/asia-east1-a, use_spot: true}]"
    wished = [
        "peers.us.resources=null",
        f"peers.us.any_of={places}",
        "peers.us.replace.policy=cheapest_place",
    ]
    (peer, _) = plan_for(load("geo-b2", wished), "sky").document["peers"]
    assert peer["location"] == "gcp/asia-east1/asia-east1-a"  # 0.20956 against 0.27946
    assert peer["alternatives"] == ["gcp/us-central1/us-central1-a"]


def test_unwritable_plan_file_is_a_usage_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert run(["plan", "geo-b2", "-o", str(tmp_path / "no" / "plan.json")]) == 2
    assert "cannot write the plan" in capsys.readouterr().err
    assert run(["plan", "geo-b2", "-o", "yaml"]) == 2
    assert "is not table, json" in capsys.readouterr().err


def test_launch_on_sky_without_credentials_names_the_next_step(
    capsys: pytest.CaptureFixture[str], own_home: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("orchestrator.launch.machine_checks.package_there", lambda name: True)
    monkeypatch.setattr("orchestrator.launch.machine_checks.missing_packages", lambda vendor: ())
    store = ["--set", "data.endpoint=https://s3.us-west-004.backblazeb2.com"]
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        store += ["--set", f"secrets.{name}=null"]
        monkeypatch.setenv(f"ORCH_SECRET_{name}", "the store's")
    assert run(["launch", "geo-b2", "--on", "sky", "--yes", *store]) == 2
    assert capsys.readouterr().err == (
        "orch: geo-b2 can be launched on rented VMs, but not yet from here: 1 obstacle\n"
        "  on this machine:\n"
        "  - gcp: no credentials; run `gcloud auth application-default login`, or remove its places\n"
    )
    assert not own_home.exists()


def test_without_anything_all_obstacles_are_listed_at_once(
    capsys: pytest.CaptureFixture[str], own_home: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("orchestrator.launch.machine_checks.package_there", lambda name: False)
    monkeypatch.setattr("orchestrator.launch.machine_checks.missing_packages", lambda vendor: vendor.packages)
    settings = ["secrets.TOKEN=null", "peers.eu.resources.infra=azure/eastus"]
    arguments = [word for setting in settings for word in ("--set", setting)]
    assert run(["launch", "geo-b2", "--on", "sky", "--yes", *arguments]) == 2
    refused = capsys.readouterr().err.removeprefix("orch: ")
    assert refused.startswith("geo-b2 cannot be launched on rented VMs as it is: 6 obstacles\n")
    for part in (
        "data.endpoint is empty",
        "add 'secrets: {AWS_ACCESS_KEY_ID: null, AWS_SECRET_ACCESS_KEY: null}'",
        "secrets TOKEN: not set",
        "'.[local,sky]' 'skypilot[aws,gcp,azure]'` in a clone of orch",
        "- azure: no credentials; run `az login`",
        "- gcp: no credentials",
    ):
        assert refused.count(part) == 1, part
    assert run(["plan", "geo-b2", "--on", "sky", *arguments]) == 3
    assert capsys.readouterr().out.startswith(refused), "the plan says the same"
    assert not own_home.exists()


def test_what_only_this_machine_lacks_is_no_obstacle_of_the_plan(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("orchestrator.launch.machine_checks.package_there", lambda name: False)
    settings = [
        "data.location=aws/us-east-1",
        "secrets.AWS_ACCESS_KEY_ID=null",
        "secrets.AWS_SECRET_ACCESS_KEY=null",
    ]
    arguments = ["plan", "geo-b2", "--on", "sky", *(word for each in settings for word in ("--set", each))]
    assert run([*arguments, "-o", "json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert (plan["launchable"], plan["obstacles"]) == (True, [])
    assert run(arguments) == 0
    said = capsys.readouterr().out
    assert said.startswith("geo-b2 can be launched on rented VMs, but not yet from here: 3 obstacles\n")


def test_obstacles_of_an_experiment_without_emulation_have_codes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    text = tmp_path / "text.yaml"
    assert run(["show", "geo-b2", "--set", "model=RoBERTaBase", "--set", "emulation=null"]) == 0
    text.write_text(capsys.readouterr().out)
    codes = {"local": ["emulation_null"], "sky": ["store_unreachable", "store_keys", "model_data"]}
    for on, expected in codes.items():
        assert run(["plan", str(text), "--on", on, "-o", "json"]) == 3
        plan = json.loads(capsys.readouterr().out)
        assert plan["launchable"] is False
        assert [obstacle["code"] for obstacle in plan["obstacles"]] == expected
    assert run(["validate", str(text), "-o", "json"]) == 3
    (file,) = json.loads(capsys.readouterr().out)["files"]
    targets = file["experiments"][0]["targets"]
    assert file["ok"]
    assert {at["on"]: [one["code"] for one in at["obstacles"]] for at in targets} == codes
    assert run(["validate", str(text)]) == 3
    verdict, *obstacles = capsys.readouterr().out.splitlines()
    assert verdict.endswith(
        "; cannot be launched on this machine as it is: 1 obstacle; cannot be launched on rented VMs as it is: 3 obstacles"
    )
    assert sum(line.startswith("  - ") for line in obstacles) == 4
    assert run(["validate", "geo-b2", "--on", "local"]) == 0
    assert capsys.readouterr().out == "geo-b2: ok (geo-b2, 2 peers); can be launched on this machine\n"
    assert run(["validate", "geo-b2", "--on", "sky"]) == 3


def test_place_without_known_price_is_not_rented(capsys: pytest.CaptureFixture[str], own_home: Path):
    wished = ["peers[0].resources.infra=azure/eastus", "peers[0].resources.accelerators=H100:1"]
    arguments = [word for override in [*wished, "emulation=null"] for word in ("--set", override)]
    assert run(["launch", "geo-b2", "--on", "sky", "--yes", *arguments]) == 3
    assert "the price of a VM is unknown at azure/eastus" in capsys.readouterr().err
    assert not own_home.exists()
    assert (
        run(
            [
                "launch",
                "geo-b2",
                "--on",
                "sky",
                "--yes",
                *arguments,
                "--set",
                "peers[0].resources.max_usd_per_h=9",
            ]
        )
        == 2
    )
    refused = capsys.readouterr().err
    assert "embedded store" in refused
    assert "the price of a VM is unknown" not in refused


def test_launch_without_experiment_is_a_usage_error(capsys: pytest.CaptureFixture[str]):
    assert run(["launch", "--dry-run"]) == 2
    assert "Missing argument" in capsys.readouterr().err
    with pytest.raises(UsageError):
        read_plan(Path("/nonexistent/plan.json"), "0")


def _kept(home: Path, name: str, prediction: dict[str, Any] | None) -> None:
    """Keep a run with one peer, two epochs of 10 s of calculation and 2 s of communication, and a prediction."""
    folder = home / "runs" / name
    folder.mkdir(parents=True)
    (folder / "experiment.yaml").write_text("name: mine\n")
    with RunStore.open_writer(folder / "run.db") as store:
        meta = {
            "run_id": name,
            "experiment": {"name": "mine"},
            "target": "local",
            "plan": {"prediction": prediction},
        }
        for key, value in {
            **meta,
            "scales": {"bytes": 1, "time": 1, "samples": 1},
            "warmup_epochs": 0,
        }.items():
            store.set_meta(key, value)
        store.append("vms", [vm("a-0")])
        store.append("epochs", [epoch("a-0", k, 12.0 * k, samples=64) for k in (1, 2)])


def test_accuracy_shows_the_errors_of_all_kept_predictions(
    own_home: Path, capsys: pytest.CaptureFixture[str]
):
    for name, seconds in (("one", 2.2), ("two", 1.0)):
        _kept(own_home, name, {"comm_s": {"value": seconds, "low": 1.9, "high": 2.5}})
    _kept(own_home, "three", None)
    broken = own_home / "runs" / "broken"
    broken.mkdir()
    (broken / "experiment.yaml").write_text("name: mine\n")
    assert run(["plan", "--accuracy", "-o", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    (row,) = found["accuracy"]
    assert (row["figure"], row["n"], row["inside"]) == ("comm_s", 2, 2)
    assert row["median"] == pytest.approx(0.3)  # of 10 % and 50 %
    assert row["worst"] == pytest.approx(-0.5)
    assert [each["run_id"] for each in found["unreadable"]] == ["broken"]
    assert run(["plan", "--accuracy"]) == 0
    shown = capsys.readouterr()
    assert "communication  2" in shown.out
    assert "left out: broken" in shown.err


def test_accuracy_without_a_prediction_says_so(own_home: Path, capsys: pytest.CaptureFixture[str]):
    assert run(["plan", "--accuracy"]) == 0
    assert "no run on this machine has both" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "said"),
    [([], "an experiment is missing"), (["geo-b2", "--accuracy"], "--accuracy takes no FILE")],
)
def test_plan_wants_an_experiment_or_accuracy(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
):
    assert run(["plan", *words]) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("setup", "noted"),
    [("", True), ("sudo apt-get install -y g++", False), ("apt-get install build-essential", False)],
)
def test_cpu_vms_that_compile_need_a_compiler_in_their_setup(setup: str, noted: bool):
    changes = ["swarm.compile=true", f"setup={json.dumps(setup)}"]
    for on, said in (("sky", noted), ("local", False)):
        notes = plan_for(load("stdlib-lm-2", changes), on).document["notes"]
        assert any("needs a C++ compiler on CPU VMs" in note for note in notes) is said


def test_preemptions_are_in_the_prediction_and_without_histories_none_are_assumed(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    trace = tmp_path / "trace.json"
    trace.write_text(json.dumps({"metadata": {"gap_seconds": 600}, "data": [1, 1, 0, 1] * 200}))
    assert run(["plan", "geo-b2"]) == 0
    assert "no preemptions assumed" in capsys.readouterr().out
    long = ["--set", "measure.epochs=100"]
    assert run(["plan", "geo-b2", *long, "--spot", f"*={trace}", "--restart-s", "60"]) == 0
    printed = capsys.readouterr()
    assert "no preemptions assumed" not in printed.out
    assert "preemptions leave 7" in printed.out
    assert "500 stretches of the histories" in printed.out
    assert "they lose and get capacity at the same moments" in printed.err
    assert run(["plan", "geo-b2", *long, "--spot", f"*={trace}", "-o", "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    taken = document["prediction"]["preemptions"]
    assert (taken["restart_s"], taken["windows"]) == (390.0, 500)
    assert [history["availability"] for history in taken["histories"]] == [0.75, 0.75]
    saved = tmp_path / "plan.json"
    assert run(["plan", "geo-b2", *long, "--spot", f"*={trace}", "-o", str(saved)]) == 0
    capsys.readouterr()
    assert run(["launch", "--plan", str(saved), "--dry-run"]) == 0
    assert "preemptions leave 59" in capsys.readouterr().out  # with a restart of 390 s


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["geo-b2", "--restart-s", "60"], "--restart-s: only with --spot"),
        (["geo-b2", "--spot", "*=missing.json"], "missing.json cannot be read"),
        (["digits-alone", "--spot", "*=missing.json"], "uses no spot VM"),
        (["--accuracy", "--spot", "*=missing.json"], "takes neither --spot nor --restart-s"),
    ],
)
def test_options_for_preemptions_that_fit_nothing_are_refused(
    arguments: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["plan", *arguments]) == 2
    assert sentence in capsys.readouterr().err
