"""Runs on rented VMs: their meta and places, their owner, and reaping."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path

import pytest

from cloud import targets
from cloud.provider import Owned, TransientError
from cloud.sky.vm.bootstrap import PEERS_VARIABLE
from experiments.parse.load import load
from metrics.store.database import RunStore
from metrics.store.meta import RunScales
from orchestrator.cli.app import run
from orchestrator.cli.render.summary import plan_lines
from orchestrator.cli.starting import plan_for
from orchestrator.controller import client, reaping
from orchestrator.core.events import RequestVm
from orchestrator.core.journal import replay
from orchestrator.core.machine import advance
from orchestrator.errors import UsageError
from orchestrator.home import owner, stored_owner
from orchestrator.launch import rented as sky_runs
from orchestrator.launch.peer_request import RunRequests
from orchestrator.launch.plan_run import approved_plan
from orchestrator.launch.prepare import prepare, write_environment

TWIN = str(Path(__file__).parents[2] / "cloud_e2e" / "twin.yaml")


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reaping.time, "sleep", lambda _s: None)


def test_an_owner_is_created_once_and_stored(tmp_path: Path):
    made = owner(tmp_path, {})
    assert owner(tmp_path, {}) == made
    assert (tmp_path / "owner").read_text().strip() == made
    assert len(made.rpartition("-")[2]) == 8
    assert owner(tmp_path, {"ORCH_OWNER": "ci-1"}) == "ci-1"


def test_searching_for_vms_never_creates_an_owner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("ORCH_OWNER", raising=False)
    ask = reaping.owners_to_ask_for
    assert ask(tmp_path, [], "", "") == {}, "nothing is rented"
    assert ask(tmp_path, ["me"], "local", "") == {}
    with pytest.raises(UsageError, match="add `--owner NAME`"):
        ask(tmp_path, [], "sky", "")
    with pytest.raises(UsageError, match="--owner 'Me'"):
        ask(tmp_path, [], "sky", "Me")
    assert not (tmp_path / "owner").exists()
    assert ask(tmp_path, [], "sky", "you") == {"you": True}
    made = owner(tmp_path, {})
    assert ask(tmp_path, [], "", "") == {made: True}, "a run's folder may have been removed"
    assert ask(tmp_path, [made], "", "") == {made: True}
    assert ask(tmp_path, ["ci-1", made], "", "") == {"ci-1": False, made: True}, "ci-1: those runs only"
    owner(tmp_path, {"ORCH_OWNER": "ci-2"})
    assert ask(tmp_path, [], "", "") == {"ci-2": False, made: True}, "something was rented under that name"


def test_plan_and_launch_show_the_owner_and_only_launch_creates_one(
    own_home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.delenv("ORCH_OWNER", raising=False)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "x")
    monkeypatch.setenv("HOME", str(own_home))
    did: list[str] = []
    monkeypatch.setattr("orchestrator.launch.preflight.preflight", lambda *_, **__: did.append("looked"))
    monkeypatch.setattr("orchestrator.launch.preflight.make_aws_role", lambda *_: did.append("made the role"))
    monkeypatch.setattr("orchestrator.cli.commands.launch.confirm", lambda *_, **__: did.append("asked"))
    monkeypatch.setattr(
        client, "launch", lambda run_id, home: client.RunConnection(run_id, home / "runs" / run_id)
    )
    monkeypatch.setattr("orchestrator.launch.preflight.machine_obstacles", lambda *_: ())
    assert run(["plan", TWIN, "--on", "sky"]) == 0
    assert "generated and printed by the first launch" in capsys.readouterr().err
    assert not own_home.exists()
    assert run(["launch", TWIN, "--on", "sky", "--yes", "--detach"]) == 0
    assert did == ["looked", "asked", "made the role"]
    made = stored_owner(own_home)
    assert made
    command = f"`orch reap --all --on sky --owner {made}`"
    assert capsys.readouterr().err.count(command) == 1
    assert run(["plan", TWIN, "--on", "sky"]) == 0
    assert command in capsys.readouterr().err


def test_runs_of_other_owners_are_searched_under_their_owner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "x")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("ORCH_OWNER", "ci-1")
    spec, home = load(TWIN), tmp_path / "orch"
    prepare(plan_for(spec, "sky"), Path(TWIN), "twin-1", home, now_s=1000.0)
    monkeypatch.delenv("ORCH_OWNER")
    asked: list[tuple[object, ...]] = []
    monkeypatch.setattr(client, "down", lambda *_: [])
    monkeypatch.setattr(client, "reap_clouds", lambda _home, *given: asked.append(given) or ({}, {}))
    reaped = client.reap(home, everything=True)
    assert (reaped.owners, reaped.left) == (("ci-1",), {})
    assert asked == [("ci-1", {"twin-1"}, set(), False)], "and no other run of ci-1 is touched"


def test_only_clouds_with_credentials_are_searched(monkeypatch: pytest.MonkeyPatch):
    for there in (True, False):
        monkeypatch.setattr(reaping.aws, "has_credentials", lambda there=there: there)
        found = reaping.reach()
        assert found.asks_a_cloud is there
        assert ("aws" in found.not_looked_at) is not there
        assert {"gcp", "azure", "lambda"} <= set(found.not_looked_at)


@pytest.mark.parametrize("wrong", ["Me", "a b", "x" * 64])
def test_an_owner_invalid_as_a_label_is_refused(tmp_path: Path, wrong: str):
    with pytest.raises(UsageError):
        owner(tmp_path, {"ORCH_OWNER": wrong})


def test_a_rented_run_has_the_plans_places_prices_and_ceilings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "x")
    monkeypatch.setenv("HOME", str(tmp_path))
    spec = load(TWIN)
    plan = plan_for(spec, "sky").document
    folder = prepare(
        approved_plan(spec, "sky", plan, cores=2), Path(TWIN), "twin-1", tmp_path / "orch", now_s=1000.0
    )
    with RunStore.open_reader(folder / "run.db") as store:
        meta, state = store.run_meta(), replay(store.records("events"))
    assert (meta.provider, meta.target, meta.emulated) == (sky_runs.SKY, "sky", True)
    assert meta.scales == RunScales()
    assert meta.owner == owner(tmp_path / "orch", {})
    for slot, planned in zip(state.spec.slots, plan["peers"], strict=True):
        assert [(p.location, p.instance, p.usd_per_h, p.max_usd_per_h) for p in slot.places] == [
            (p["location"], p["instance"], Decimal(p["usd_per_h"]), Decimal(p["ceiling_usd_per_h"]))
            for p in planned["places"]
        ]
    labels = sky_runs.labels_of(meta, "us-0", 1000.0)
    assert labels == {
        "orch-run": "twin-1",
        "orch-slot": "us-0",
        "orch-owner": meta.owner,
        "orch-lease-until": "1600",
    }


def test_rented_vms_get_only_named_secrets_and_the_prefix_takes_precedence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    spec = load(TWIN)
    monkeypatch.delenv("AWS_ACCESS_KEY_ID", raising=False)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "the cloud's")
    monkeypatch.setenv("AWS_SESSION_TOKEN", "the cloud's")
    with pytest.raises(UsageError, match="secrets AWS_ACCESS_KEY_ID: not set"):
        write_environment(tmp_path, spec, targets.SKY)
    monkeypatch.setenv("ORCH_SECRET_AWS_ACCESS_KEY_ID", "the store's")
    monkeypatch.setenv("ORCH_SECRET_AWS_SECRET_ACCESS_KEY", "the store's")
    write_environment(tmp_path, spec, targets.SKY)
    import json

    path = tmp_path / "keys" / "environment.key"
    assert path.stat().st_mode & 0o777 == 0o600
    assert json.loads(path.read_text()) == {
        "AWS_ACCESS_KEY_ID": "the store's",
        "AWS_SECRET_ACCESS_KEY": "the store's",
    }


def test_rented_vms_are_requested_at_once_and_get_peers_after_boot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "x")
    monkeypatch.setattr("orchestrator.launch.keys.generate_identity", lambda: (b"identity", "id"))
    monkeypatch.setattr("orchestrator.launch.keys.generate_record_key", lambda: (b"key", "ssh-rsa AAAA"))
    spec = load(TWIN, ["network_tuning=wan"])
    plan, home = plan_for(spec, "sky").document, tmp_path / "orch"
    folder = prepare(approved_plan(spec, "sky", plan, cores=2), Path(TWIN), "twin-1", home, now_s=1000.0)
    (folder / "monitor").mkdir()
    (folder / "monitor" / "orders.bin").write_bytes(b"signed")
    with RunStore.open_reader(folder / "run.db") as store:
        step = advance(replay(store.records("events")), (), 1000.0, lambda: 0.5)
        wished = [i for i in step.instructions if isinstance(i, RequestVm)]
        made = [
            RunRequests(folder, store).peer(w, step.state.slot_spec(w.slot).places[w.place]) for w in wished
        ]
    assert {w.slot for w in wished} == {"us-0", "eu-0"}
    assert {tuple(request.config["initial_peers"]) for request in made} == {(f"env:{PEERS_VARIABLE}",)}
    assert {request.config["barrier_timeout_s"] for request in made} == {step.state.spec.barrier_s}
    assert {request.network_tuning for request in made} == {"wan"}
    assert plan["network_tuning"] == "wan"
    assert any("network_tuning wan: before setup" in line for line in plan_lines(plan))


def owned(number: str, run: str, kind: str = "vm") -> Owned:
    return Owned(kind, number, "", run, "me", "aws/us-west-2", None, f"https://console/{number}")  # type: ignore[arg-type]


class Cloud:
    """Lists what it has; what it will not end stays."""

    def __init__(self, *things: Owned, stubborn: Sequence[str] = (), lists: int = 99) -> None:
        self.things, self.stubborn, self.lists = list(things), stubborn, lists
        self.released: list[str] = []
        self.closed = False

    def list_ours(self, owner: str) -> list[Owned]:
        assert owner == "me"
        self.lists -= 1
        if self.lists < 0:
            raise TransientError("AWS does not answer")
        return list(self.things)

    def release(self, thing: Owned) -> None:
        self.released.append(thing.id)
        if thing.id in self.stubborn:
            raise TransientError("not now")
        self.things.remove(thing)

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def reap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def run(cloud: Cloud, everything: bool = False) -> tuple[dict[str, list[str]], dict[str, list[str]]]:
        monkeypatch.setattr(reaping, "make_provider", lambda *_: cloud)
        monkeypatch.setattr(reaping, "_PATIENCE_S", 0.0)
        return reaping.reap_clouds(tmp_path, "me", {"dead"}, {"live"}, everything)

    return run


def test_reap_ends_vms_of_dead_runs_only(reap):
    cloud = Cloud(
        owned("i-1", "dead"), owned("c-1", "dead", "cluster"), owned("i-2", "live"), owned("i-3", "other")
    )
    assert reap(cloud) == ({}, {"other": ["vm i-3 in aws/us-west-2 https://console/i-3"]})
    assert cloud.released == ["c-1", "i-1"], "a cluster goes first: its VM goes with it"
    assert [o.id for o in cloud.things] == ["i-2", "i-3"]
    assert cloud.closed


def test_reap_all_needs_no_run_of_this_home(reap):
    cloud = Cloud(owned("i-2", "live"), owned("v-3", "other", "volume"))
    assert reap(cloud, everything=True) == ({}, {})
    assert cloud.things == []


def test_vms_that_do_not_end_are_reported_with_their_link(reap):
    cloud = Cloud(owned("i-1", "dead"), stubborn=["i-1"])
    assert reap(cloud) == ({"dead": ["vm i-1 in aws/us-west-2 https://console/i-1 (not now)"]}, {})


def test_an_unlistable_cloud_is_not_proven_empty(reap):
    for lists in range(5):
        left, _ = reap(Cloud(lists=lists))
        assert left == {"sky": ["what is left of owner me is not known: AWS does not answer"]}
    assert reap(Cloud(lists=5)) == ({}, {}), "two lists to end by, two to prove, one for runs not known here"


def test_without_skypilot_nothing_is_proven(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def nothing(*_: object) -> None:
        raise ModuleNotFoundError("No module named 'sky'")

    cloud = Cloud()
    monkeypatch.setattr(cloud, "list_ours", nothing)
    monkeypatch.setattr(reaping, "make_provider", lambda *_: cloud)
    left, _ = reaping.reap_clouds(tmp_path, "me", set(), set(), False)
    assert left == {"sky": ["what is left of owner me is not known: No module named 'sky'"]}
