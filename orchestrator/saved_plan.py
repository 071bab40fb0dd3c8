"""A plan in a file: what was approved, whole, so that `orch launch --plan` starts exactly that or nothing.

The file is the plan (`analysis.planning.plan.Plan.as_dict`) with the resolved experiment in it, when it was made and by which
orch, and two hashes (SHA-256 of JSON with sorted keys and no spaces): of the experiment and of all the rest.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Container, Mapping
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

from analysis.planning.plan import Quoter, place_key
from experiments.parse.load import from_document, to_document
from experiments.schema.models import ExperimentSpec
from experiments.schema.slots import slots
from orchestrator.errors import StalePlanError, UsageError
from orchestrator.launch.plan_run import RunPlan

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


def plan_document(plan: RunPlan, created_at: str, orch_version: str) -> dict[str, Any]:
    """What is written: JSON types only."""
    document = to_document(plan.spec)
    whole = {
        "schema_version": PLAN_SCHEMA,
        "orch_version": orch_version,
        "created_at": created_at,
        **plan.document,
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


def refuse_if_stale(saved: SavedPlan, tolerance: Decimal, today: Quoter) -> None:
    """Compare the plan's prices with today's, place by place.

    A lower price is no reason. `tolerance`: accepted rise, 0.1 = 10 %. Raises StalePlanError with every place that moved.
    """
    wished = {
        slot.name: {(r.infra, r.accelerators, r.use_spot) for r in slot.places} for slot in slots(saved.spec)
    }
    moved = [
        f"{peer['slot']}: {reason}"
        for peer in saved.plan["peers"]
        for place in peer["places"]
        if (reason := _moved(place, wished.get(peer["slot"], set()), tolerance, today))
    ]
    if moved:
        shown = "; ".join(moved[:5]) + (f"; {len(moved) - 5} more" if len(moved) > 5 else "")
        raise StalePlanError(
            f"{saved.path}: the plan of {saved.created_at} does not hold any more: {shown}; make the plan again by "
            "`orch plan`, or allow more with --price-tolerance"
        )


def _moved(
    place: Mapping[str, Any], wished: Container[tuple[str, str, bool]], tolerance: Decimal, today: Quoter
) -> str:
    """Why an approved place does not hold any more; "" where it does."""
    at = place["location"], place["accelerator"], place["use_spot"]
    key, before = place_key(*at), place["usd_per_h"]
    if at not in wished:
        return f"{key} is not among its places any more"
    now = today(*at)
    if now.instance != place["instance"]:
        return f"{key} is {now.instance} now, not {place['instance']}"
    if before is None:
        return ""
    if now.usd_per_h is None:
        return f"{key} cost ${before}/h and has no price now ({now.source})"
    if now.usd_per_h > Decimal(before) * (1 + tolerance):
        return f"{key} costs ${now.usd_per_h}/h now, more than ${before} + {tolerance:.0%}"
    return ""


def _digest(value: Any) -> str:
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()
