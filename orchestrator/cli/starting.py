"""Plans and run ids: the steps of `launch` and `plan` before a controller exists."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime
from decimal import Decimal
from importlib.metadata import version
from random import SystemRandom
from typing import Any

from analysis.planning.plan import TOLERANCE, Quoter
from analysis.planning.preemptions import SpotHistories
from cloud.targets import TARGETS
from experiments.schema.models import ExperimentSpec
from orchestrator.cli.render.assumed import assumed_paths
from orchestrator.errors import StalePlanError, UsageError
from orchestrator.home import home_folder, new_run_id
from orchestrator.launch.default_checkpoints import (
    default_note,
    unaffordable_words,
    with_default_checkpoints,
    with_warning,
)
from orchestrator.launch.machine_checks import machine_obstacles
from orchestrator.launch.obstacles import verdict_lines
from orchestrator.launch.plan_run import RunPlan, host_cores, plan_run
from orchestrator.launch.start_from import StartFrom
from orchestrator.launch.task_facts import resolve_task

_RUN_ID = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")


def today() -> date:
    """The day on which prices are compared with their dates (UTC)."""
    return datetime.now(UTC).date()


def plan_for(
    spec: ExperimentSpec,
    on: str = "local",
    price_tolerance: Decimal = TOLERANCE,
    approved: Mapping[str, Any] | None = None,
    check_prices: Callable[[Quoter], None] | None = None,
    *,
    build: bool = True,
    start: StartFrom | None = None,
    spot: SpotHistories | None = None,
) -> RunPlan:
    """Plan a run from this machine; see `orchestrator.launch.plan_run.plan_run`.

    `build`: whether a task may be built to learn its size (`orchestrator.launch.task_facts`). `start`: the checkpoint with
    which it begins. `spot`: histories of spot capacity. Raises StalePlanError if the task of an approved plan has
    changed.
    """
    spec, warning = with_default_checkpoints(spec, on)
    spec, task_obstacles = resolve_task(spec, home_folder(), build=build)

    def planned(spec: ExperimentSpec) -> RunPlan:
        return plan_run(
            spec,
            on,
            cores=host_cores(),
            price_tolerance=price_tolerance,
            approved=approved,
            check_prices=check_prices,
            notes=default_note(spec) if TARGETS[on].rents else assumed_paths(spec),
            today=today(),
            task_obstacles=task_obstacles,
            start=start,
            spot=spot,
        )

    plan = planned(spec)
    if spec.checkpoint is not None and not spec.checkpoint.required and plan.obstacles:
        without = planned(spec.model_copy(update={"checkpoint": None}))
        if len(without.obstacles) < len(plan.obstacles):  # those in dollars
            plan, warning = without, unaffordable_words(spec)
    return with_warning(plan, warning)


def plan_from(
    plan: RunPlan,
    start: str,
    price_tolerance: Decimal,
    approved: Mapping[str, Any] | None = None,
    spot: SpotHistories | None = None,
) -> RunPlan:
    """Plan the same run again, beginning with a checkpoint. `start`: as `orchestrator.checkpoints.start.find_start` takes it.

    Raises the errors of `find_start`, and StalePlanError if the approved plan begins with another checkpoint.
    """
    from orchestrator.checkpoints.start import find_start

    found = find_start(start, plan.spec, plan.on, home_folder(), os.environ)
    planned = (approved or {}).get("start_from")
    if planned is not None and planned["name"] != found.name:
        raise StalePlanError(
            f"the plan begins with the checkpoint {planned['name']}, but that of {start} is {found.name} now; create the plan "
            "again with `orch plan --from`"
        )
    again = plan_for(plan.spec, plan.on, price_tolerance, approved, start=found, spot=spot)
    for warning in plan.warnings:
        again = again if warning in again.warnings else with_warning(again, warning)
    return again


def saved_start(document: Mapping[str, Any]) -> str:
    """The checkpoint with which a saved plan begins, as `find_start` takes it; "" if it begins from scratch."""
    start = document.get("start_from")
    if start is None:
        return ""
    prefix = str(start["prefix"])
    return prefix.rpartition("/")[2] if start["folder"] else f"{prefix}/{start['name']}"


def plan_verdict(plan: RunPlan) -> list[str]:
    """Say whether the plan can be launched, followed by every obstacle, those on this machine included."""
    against = (*plan.obstacles, *machine_obstacles(plan.spec, plan.on, os.environ))
    return verdict_lines(plan.spec.name, plan.on, against)


def plan_json(plan: RunPlan) -> str:
    """Serialise a plan as JSON, in the form in which it is saved."""
    from orchestrator.cli.render.output import as_json
    from orchestrator.saved_plan import plan_document

    created_at = f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}"
    return as_json(plan_document(plan, created_at, version("orch"))).rstrip("\n")


def new_id(name: str) -> str:
    """Generate a run id that is not in use."""
    return new_run_id(name, datetime.now(UTC), SystemRandom())


def checked_id(run_id: str) -> str:
    """Validate a run id chosen by the user, which becomes a folder name and the prefix of VM names. Raises UsageError."""
    if not _RUN_ID.fullmatch(run_id):
        raise UsageError(
            f"--run-id {run_id[:80]!r}: invalid run id; use at most 63 of the characters a-z, 0-9 and '-', not starting with '-'"
        )
    return run_id
