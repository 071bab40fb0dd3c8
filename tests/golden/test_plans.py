"""The plan of every experiment that ships with orch, on this machine and on rented VMs."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from tests.golden.goldens import check, orch_json

pytestmark = pytest.mark.slow

_LIBRARY = str(Path(__file__).parents[2] / "experiments" / "library")
_FIGURES = (
    "usd_per_h",
    "dearest_usd_per_h",
    "vm_usd",
    "duration_s",
    "raw_duration_s",
    "raw_target_batch_size",
    "experiment_sha256",
)


def _sha256(value: Any) -> str:
    return hashlib.sha256(
        json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()
    ).hexdigest()


def _rounded(value: Any) -> Any:
    match value:
        case dict():
            return {key: _rounded(item) for key, item in value.items()}
        case list():
            return [_rounded(item) for item in value]
        case float():
            return f"{value:.9g}"
        case _:
            return value


def _plan(name: str, on: str, folder: Path) -> dict[str, Any]:
    """Without what depends on the day, the release or the user's folder."""
    plan = orch_json("plan", name, "--on", on, codes=[3 if on == "sky" else 0])  # the library names no store
    stated = plan.pop("plan_sha256")
    assert stated == _sha256(plan), "the plan's hash is not the one that docs/plan.md describes"
    assert plan.pop("created_at")
    assert plan.pop("orch_version")
    text = json.dumps(plan)
    if _LIBRARY in text:  # files that a task ships are named by their place on this machine
        plan = json.loads(text.replace(_LIBRARY, "<library>"))
        plan["experiment_sha256"] = "depends on <library>"
    return json.loads(json.dumps(plan).replace(str(folder), "<folder>"))


@pytest.mark.timeout(300)
def test_plans(any_machine: Path):
    names = [row["name"] for row in orch_json("experiments")["experiments"]]
    plans = {f"{name} --on {on}": _plan(name, on, any_machine) for name in names for on in ("local", "sky")}
    figures = {
        key: {
            "peers": len(plan["peers"]),
            **{name: plan[name] for name in _FIGURES},
            "sha256": _sha256(_rounded(plan)),
        }
        for key, plan in plans.items()
    }
    check("plans.json.gz", plans)  # says which key of which plan differs
    check("plans.json", figures)  # what a reader of the change can see
