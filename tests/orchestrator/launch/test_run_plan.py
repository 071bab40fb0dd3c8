"""Plan, scales, limits and refusal of a launch are computed once, by `plan_run`."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from experiments.parse import find
from experiments.parse.load import load
from metrics.store.database import RunStore
from orchestrator.cli.app import run
from orchestrator.controller import client
from orchestrator.core.journal import replay
from orchestrator.errors import RefusedError
from orchestrator.launch import plan_run as planning
from orchestrator.launch.plan_run import approved_plan, plan_run
from orchestrator.launch.prepare import prepare

DECIDED = ("load_for", "plan_of", "resolve_emulation", "run_spec", "check_money")


@pytest.fixture
def counts(monkeypatch: pytest.MonkeyPatch, own_home: Path) -> Counter[str]:
    """How often each decision was computed."""
    found: Counter[str] = Counter()

    def counted(name: str):
        original = getattr(planning, name)

        def call(*args, **kwargs):
            found[name] += 1
            return original(*args, **kwargs)

        return call

    for name in DECIDED:
        monkeypatch.setattr(planning, name, counted(name))
    monkeypatch.setattr(client, "launch", lambda run_id, home: client.RunConnection(run_id, own_home))
    return found


def test_a_launch_plans_once(counts: Counter[str], tmp_path: Path):
    saved = str(tmp_path / "plan.json")
    for arguments in (
        ["launch", "geo-b2", "--dry-run"],
        ["launch", "geo-b2", "--yes", "--detach"],
        ["plan", "geo-b2", "-o", saved],
        ["launch", "--plan", saved, "--dry-run"],
        ["launch", "--plan", saved, "--yes", "--detach"],
    ):
        counts.clear()
        assert run(arguments) == 0
        assert counts == dict.fromkeys(DECIDED, 1), arguments


def test_the_run_is_created_from_the_plan(tmp_path: Path):
    plan = plan_run(load("geo-b2", ["budget_usd=5"]), cores=2)
    folder = prepare(plan, find("geo-b2"), "r-1", tmp_path, now_s=1.0)
    with RunStore.open_reader(folder / "run.db") as store:
        meta, core = store.run_meta(), replay(store.records("events")).spec
    assert meta.plan == plan.document
    assert core == plan.launchable("r-1")[1]
    assert approved_plan(plan.spec, "local", plan.document, cores=2).launchable("r-1")[1] == core


def test_a_refused_plan_is_shown_and_creates_no_run(tmp_path: Path):
    plan = plan_run(load("geo-b2", ["budget_usd=0.01"]), cores=2)
    assert plan.core is None
    assert [obstacle.code for obstacle in plan.obstacles] == ["dollar_limit"]
    with pytest.raises(RefusedError, match="budget"):
        plan.launchable("r-1")
    with pytest.raises(RefusedError, match="budget"):
        prepare(plan, find("geo-b2"), "r-1", tmp_path, now_s=1.0)
    assert not (tmp_path / "runs").exists()
