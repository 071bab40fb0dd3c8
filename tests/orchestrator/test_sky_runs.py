"""Runs on rented VMs: what their meta and places are, who owns them, and what reaping ends."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path

import pytest

from cloud.provider import Owned, TransientError
from experiments.spec.load import load
from orchestrator.cli.starting import plan_for
from orchestrator.controller import reaping, sky_runs
from orchestrator.controller.launching import missing_secrets, prepare, write_environment
from orchestrator.errors import UsageError
from orchestrator.home import owner

TWIN = str(Path(__file__).parents[1] / "cloud_e2e" / "twin.yaml")


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reaping.time, "sleep", lambda _s: None)


def test_an_owner_is_made_once_and_kept(tmp_path: Path):
    made = owner(tmp_path, {})
    assert owner(tmp_path, {}) == made
    assert (tmp_path / "owner").read_text().strip() == made
    assert len(made.rpartition("-")[2]) == 8
    assert owner(tmp_path, {"ORCH_OWNER": "ci-1"}) == "ci-1"


@pytest.mark.parametrize("wrong", ["Me", "a b", "x" * 64])
def test_an_owner_that_no_cloud_takes_as_a_label_is_refused(tmp_path: Path, wrong: str):
    with pytest.raises(UsageError):
        owner(tmp_path, {"ORCH_OWNER": wrong})


def test_a_rented_run_has_the_plans_places_prices_and_ceilings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "x")
    monkeypatch.setenv("HOME", str(tmp_path))
    spec = load(TWIN)
    plan = plan_for(spec, "sky")
    folder = prepare(spec, Path(TWIN), plan, "twin-1", tmp_path / "orch", now_s=1000.0, cores=2, on="sky")
    from metrics.store import RunStore
    from orchestrator.core.journal import replay

    with RunStore.open_reader(folder / "run.db") as store:
        meta, state = store.all_meta(), replay(store.records("events"))
    assert (meta["provider"], meta["target"], meta["emulated"]) == (sky_runs.SKY, "sky", True)
    assert meta["scales"] == {"bytes": 1.0, "time": 1.0, "samples": 1.0}
    assert meta["owner"] == owner(tmp_path / "orch", {})
    for slot, planned in zip(state.spec.slots, plan["peers"], strict=True):
        assert [(p.location, p.instance, p.usd_per_h, p.max_usd_per_h) for p in slot.places] == [
            (p["location"], p["instance"], Decimal(p["usd_per_h"]), Decimal(p["ceiling_usd_per_h"]))
            for p in planned["places"]
        ]
    labels = sky_runs.labels_of(meta, "us-0", 1000.0)
    assert labels == {
        "orch-run": "twin-1",
        "orch-slot": "us-0",
        "orch-owner": meta["owner"],
        "orch-lease-until": "1600",
    }


@pytest.mark.parametrize(
    ("data", "wrong"),
    [
        ({"endpoint": ""}, "do not reach the embedded store"),
        ({"endpoint": "http://127.0.0.1:9000"}, "own loopback"),
        ({"endpoint": "http://localhost:9000"}, "own loopback"),
        ({"endpoint": "", "location": "aws/us-east-1"}, ""),
        ({"endpoint": "https://s3.example.org"}, ""),
    ],
)
def test_a_store_that_rented_vms_do_not_reach_is_refused(data: dict[str, str], wrong: str):
    spec = load(TWIN)
    spec = spec.model_copy(update={"data": spec.data.model_copy(update=data)})
    if not wrong:
        sky_runs.check_store(spec)
        return
    with pytest.raises(UsageError, match=wrong):
        sky_runs.check_store(spec)


def test_only_named_secrets_go_to_rented_vms_and_our_own_name_goes_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    spec = load(TWIN)
    monkeypatch.delenv("AWS_ACCESS_KEY_ID", raising=False)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "the cloud's")
    monkeypatch.setenv("AWS_SESSION_TOKEN", "the cloud's")
    assert missing_secrets(spec) == ["AWS_ACCESS_KEY_ID"]
    monkeypatch.setenv("ORCH_SECRET_AWS_ACCESS_KEY_ID", "the store's")
    monkeypatch.setenv("ORCH_SECRET_AWS_SECRET_ACCESS_KEY", "the store's")
    write_environment(tmp_path, spec, "sky")
    import json

    path = tmp_path / "keys" / "environment.key"
    assert path.stat().st_mode & 0o777 == 0o600
    assert json.loads(path.read_text()) == {
        "AWS_ACCESS_KEY_ID": "the store's",
        "AWS_SECRET_ACCESS_KEY": "the store's",
    }


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
    def run(cloud: Cloud, everything: bool = False) -> dict[str, list[str]]:
        monkeypatch.setattr(reaping, "make_provider", lambda *_: cloud)
        monkeypatch.setattr(reaping, "_PATIENCE_S", 0.0)
        return reaping.reap_clouds(tmp_path, "me", {"dead"}, {"live"}, everything)

    return run


def test_reaping_ends_what_dead_runs_left_and_nothing_of_live_or_unknown_ones(reap):
    cloud = Cloud(
        owned("i-1", "dead"), owned("c-1", "dead", "cluster"), owned("i-2", "live"), owned("i-3", "other")
    )
    assert reap(cloud) == {}
    assert cloud.released == ["c-1", "i-1"], "a cluster goes first: its VM goes with it"
    assert [o.id for o in cloud.things] == ["i-2", "i-3"]
    assert cloud.closed


def test_reaping_everything_needs_no_run_of_this_home(reap):
    cloud = Cloud(owned("i-2", "live"), owned("v-3", "other", "volume"))
    assert reap(cloud, everything=True) == {}
    assert cloud.things == []


def test_what_will_not_end_is_named_with_its_page(reap):
    cloud = Cloud(owned("i-1", "dead"), stubborn=["i-1"])
    assert reap(cloud) == {"dead": ["vm i-1 in aws/us-west-2 https://console/i-1 (not now)"]}


def test_a_cloud_that_cannot_be_listed_is_not_proven_empty(reap):
    for lists in range(4):
        left = reap(Cloud(lists=lists))
        assert left == {"sky": ["what is left is not known: AWS does not answer"]}
    assert reap(Cloud(lists=4)) == {}, "two lists to end by, two to prove"
