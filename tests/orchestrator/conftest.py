"""The shell's world, and a user without anything, for the tests that ask for them."""

import itertools
from pathlib import Path

import pytest
from study_runs import MadeRuns

from metrics.records import EventRecord
from metrics.store.database import RunStore
from orchestrator.core.journal import created
from tests.orchestrator.shell_world import RUN, World

_STUDY = "name: s\nexperiments: [geo-a2, geo-b2, {experiment: geo-c8, label: x, set: {seed: 1}}]\ncompare: {replay: never}\n"


@pytest.fixture
def quick_keys(monkeypatch):
    """RSA keys take a second each; the shell only passes them on."""
    ids = itertools.count()
    monkeypatch.setattr("orchestrator.launch.keys.generate_identity", lambda: (b"identity", f"id{next(ids)}"))
    monkeypatch.setattr("orchestrator.launch.keys.generate_record_key", lambda: (b"record", "ssh-rsa AAAA"))


@pytest.fixture
def world(tmp_path, quick_keys):
    world = World(tmp_path)
    with RunStore.open_writer(tmp_path / "run.db") as store:
        fact = created(RUN)
        store.append(
            "events", [EventRecord(0, 999.0, fact.kind, "", -1, "", "", "", fact.cause, fact.data_json)]
        )
        for key, value in {
            "status": "running",
            "run_id": "r",
            "started_s": 999.0,
            "warmup_epochs": 1,
        }.items():
            store.set_meta(key, value)
    return world


@pytest.fixture
def nothing_of_the_users(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No catalogs, no credentials, no SkyPilot configuration."""
    for name in (
        "AWS_ACCESS_KEY_ID",
        "AWS_SECRET_ACCESS_KEY",
        "AWS_PROFILE",
        "GOOGLE_APPLICATION_CREDENTIALS",
    ):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.delenv("SKY_RUNTIME_DIR", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "nobody"))


@pytest.fixture
def study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> str:
    """A study file, and runs that need no process."""
    monkeypatch.setattr("orchestrator.cli.commands.study.launcher.RunLauncher", MadeRuns)
    monkeypatch.setattr("orchestrator.launch.preflight.preflight", lambda *_: None)
    if "page" not in request.node.name:  # drawing takes seconds
        monkeypatch.setattr("orchestrator.cli.commands.compare.write_page", lambda _, __, page: page)
    for name, value in (("refused", set()), ("busy", {}), ("interrupt", set()), ("made", [])):
        monkeypatch.setattr(MadeRuns, name, value)
    (tmp_path / "s.yaml").write_text(_STUDY)
    return str(tmp_path / "s.yaml")
