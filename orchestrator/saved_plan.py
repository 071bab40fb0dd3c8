"""Approved plans in files, so that `orch launch --plan` starts exactly that plan or nothing.

The file contains the plan (`analysis.planning.plan.Plan.as_dict`), the resolved experiment, the time of
creation, the orch version, and two hashes (SHA-256 of JSON with sorted keys and no spaces): one of the
experiment, one of everything else.
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
    """A plan that was read from a file and is unchanged since it was written."""

    path: Path
    created_at: str
    spec: ExperimentSpec
    plan: dict[str, Any]

    @property
    def on(self) -> str:
        """The target of the plan: "local" or "sky"."""
        return str(self.plan["on"])


def plan_document(plan: RunPlan, created_at: str, orch_version: str) -> dict[str, Any]:
    """The content of the file; JSON types only."""
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
    """Read a saved plan.

    Raises UsageError (not a plan, or modified since it was written), StalePlanError (written by another orch
    version).
    """
    hint = "create one with `orch plan FILE -o plan.json`"
    try:
        if path.stat().st_size > _MAX_BYTES:
            raise UsageError(f"{path}: too large for a saved plan; {hint}")
        whole = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"{path}: cannot read the plan ({error.strerror}); {hint}") from error
    except ValueError as error:
        raise UsageError(f"{path}: not a saved plan: it is not JSON ({error}); {hint}") from error
    missing = _OWN if not isinstance(whole, dict) else [key for key in _OWN if key not in whole]
    if missing:
        raise UsageError(f"{path}: not a saved plan: it has no {', '.join(missing)}; {hint}")
    made_by = whole["orch_version"]
    if whole["schema_version"] != PLAN_SCHEMA or made_by != orch_version:
        raise StalePlanError(
            f"{path}: created by orch {made_by} (format {whole['schema_version']}), but this is orch {orch_version} (format "
            f"{PLAN_SCHEMA}); create the plan again with `orch plan`"
        )
    rest = {key: value for key, value in whole.items() if key != "plan_sha256"}
    if (
        _digest(rest) != whole["plan_sha256"]
        or _digest(whole["experiment_document"]) != whole["experiment_sha256"]
    ):
        raise UsageError(
            f"{path}: was modified after it was created (its hash does not match); edit the experiment instead and create the "
            "plan again with `orch plan`"
        )
    plan = {key: value for key, value in whole.items() if key not in _OWN}
    return SavedPlan(path, str(whole["created_at"]), from_document(whole["experiment_document"]), plan)


def refuse_if_stale(saved: SavedPlan, tolerance: Decimal, today: Quoter) -> None:
    """Compare the plan's prices with today's, place by place.

    Lower prices are accepted. `tolerance`: accepted increase (0.1 = 10 %). Raises StalePlanError, listing the
    places that changed.
    """
    requested = {
        slot.name: {(r.infra, r.accelerators, r.use_spot) for r in slot.places} for slot in slots(saved.spec)
    }
    changed = [
        f"{peer['slot']}: {reason}"
        for peer in saved.plan["peers"]
        for place in peer["places"]
        if (reason := _changed(place, requested.get(peer["slot"], set()), tolerance, today))
    ]
    if changed:
        shown = "; ".join(changed[:5]) + (f"; {len(changed) - 5} more" if len(changed) > 5 else "")
        raise StalePlanError(
            f"{saved.path}: the plan of {saved.created_at} is out of date: {shown}; create the plan again with "
            "`orch plan`, or allow a larger increase with --price-tolerance"
        )


def _changed(
    place: Mapping[str, Any], requested: Container[tuple[str, str, bool]], tolerance: Decimal, today: Quoter
) -> str:
    """Why an approved place is out of date; "" if it is not."""
    at = place["location"], place["accelerator"], place["use_spot"]
    key, before = place_key(*at), place["usd_per_h"]
    if at not in requested:
        return f"{key} is no longer among its places"
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
