"""A plan in a file: what was approved, whole, so that `orch launch --plan` starts exactly that or nothing.

The file is the plan (`analysis.planning.plan.Plan.as_dict`) with the resolved experiment in it, when it was made and by which
orch, and two hashes (SHA-256 of JSON with sorted keys and no spaces): of the experiment and of all the rest.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

from analysis.planning.plan import place_key
from experiments.parse.load import from_document, to_document
from experiments.schema.models import ExperimentSpec
from orchestrator.errors import StalePlanError, UsageError

PLAN_SCHEMA = 1

_OWN = (
    "schema_version",
    "orch_version",
    "created_at",
    "experiment_document",
    "experiment_sha256",
    "plan_sha256",
)
_MAX_BYTES = 10_000_000


@dataclass(frozen=True)
class SavedPlan:
    """A plan that was read and is as it was written."""

    path: Path
    created_at: str
    spec: ExperimentSpec
    plan: dict[str, Any]

    @property
    def on(self) -> str:
        """What its VMs are: "local" or "sky"."""
        return str(self.plan["on"])


def plan_document(
    plan: Mapping[str, Any], spec: ExperimentSpec, created_at: str, orch_version: str
) -> dict[str, Any]:
    """What is written: JSON types only."""
    document = to_document(spec)
    whole = {
        "schema_version": PLAN_SCHEMA,
        "orch_version": orch_version,
        "created_at": created_at,
        **plan,
        "experiment_document": document,
        "experiment_sha256": _digest(document),
    }
    return {**whole, "plan_sha256": _digest(whole)}


def read_plan(path: Path, orch_version: str) -> SavedPlan:
    """A saved plan. Raises UsageError (no plan, or changed since it was written), StalePlanError (of another orch)."""
    again = "`orch plan FILE -o plan.json` makes one"
    try:
        if path.stat().st_size > _MAX_BYTES:
            raise UsageError(f"{path}: larger than any plan; {again}")
        whole = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"{path}: cannot read the plan ({error.strerror}); {again}") from error
    except ValueError as error:
        raise UsageError(f"{path}: not a saved plan, since it is not JSON ({error}); {again}") from error
    missing = _OWN if not isinstance(whole, dict) else [key for key in _OWN if key not in whole]
    if missing:
        raise UsageError(f"{path}: not a saved plan, since it has no {', '.join(missing)}; {again}")
    made_by = whole["orch_version"]
    if whole["schema_version"] != PLAN_SCHEMA or made_by != orch_version:
        raise StalePlanError(
            f"{path}: made by orch {made_by} (form {whole['schema_version']}), and this is orch {orch_version} (form "
            f"{PLAN_SCHEMA}); make the plan again by `orch plan`"
        )
    rest = {key: value for key, value in whole.items() if key != "plan_sha256"}
    if (
        _digest(rest) != whole["plan_sha256"]
        or _digest(whole["experiment_document"]) != whole["experiment_sha256"]
    ):
        raise UsageError(
            f"{path}: was changed after it was made (its hash does not fit); change the experiment and make the plan "
            "again by `orch plan`"
        )
    plan = {key: value for key, value in whole.items() if key not in _OWN}
    return SavedPlan(path, str(whole["created_at"]), from_document(whole["experiment_document"]), plan)


def refuse_if_stale(saved: SavedPlan, now: Mapping[str, Any], tolerance: Decimal) -> None:
    """Compare the plan with the same experiment's plan of now, place by place.

    A lower price is no reason. Raises StalePlanError with every place that moved.
    """
    moved = [
        f"{slot}: {reason}"
        for slot, approved, current in _slots(saved.plan, now)
        for reason in _moved(approved, current, tolerance)
    ]
    if moved:
        shown = "; ".join(moved[:5]) + (f"; {len(moved) - 5} more" if len(moved) > 5 else "")
        raise StalePlanError(
            f"{saved.path}: the plan of {saved.created_at} does not hold any more: {shown}; make the plan again by "
            "`orch plan`, or allow more with --price-tolerance"
        )


def _slots(
    approved: Mapping[str, Any], now: Mapping[str, Any]
) -> list[tuple[str, list[dict[str, Any]], list[dict[str, Any]]]]:
    current = {peer["slot"]: peer["places"] for peer in now["peers"]}
    return [(peer["slot"], peer["places"], current.get(peer["slot"], [])) for peer in approved["peers"]]


def _moved(approved: list[dict[str, Any]], current: list[dict[str, Any]], tolerance: Decimal) -> list[str]:
    there = {_key(place): place for place in current}
    reasons: list[str] = []
    for place in approved:
        key, before = _key(place), place["usd_per_h"]
        if key not in there:
            reasons.append(f"{key} is not among its places any more")
            continue
        after = there[key]["usd_per_h"]
        if there[key]["instance"] != place["instance"]:
            reasons.append(f"{key} is {there[key]['instance']} now, not {place['instance']}")
        elif before is not None and after is None:
            reasons.append(f"{key} cost ${before}/h and has no price now ({there[key]['price_source']})")
        elif before is not None and Decimal(after) > Decimal(before) * (1 + tolerance):
            reasons.append(f"{key} costs ${after}/h now, more than ${before} + {tolerance:.0%}")
    return reasons


def _key(place: Mapping[str, Any]) -> str:
    return place_key(place["location"], place["accelerator"], place["use_spot"])


def _digest(value: Any) -> str:
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()
