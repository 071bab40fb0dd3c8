"""What `launch` and `plan` do before a controller exists: the plan, the run's id."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from importlib.metadata import version
from random import SystemRandom
from typing import Any

from analysis.planning.plan import TOLERANCE, plan_of
from cloud.prices.book import PriceBook, load_for, newest
from cloud.targets import TARGETS
from experiments.catalog import models, step_time
from experiments.emulation.scales import EmulationPlan, resolve_emulation
from experiments.schema.errors import SpecError
from experiments.schema.models import ExperimentSpec
from orchestrator.cli.render.assumed import assumed_paths
from orchestrator.errors import RefusedError, UsageError
from orchestrator.home import new_run_id
from orchestrator.launch.plan_run import planned_run
from orchestrator.launch.rent_checks import obstacles
from orchestrator.launch.rented import planned_quoter, unscaled
from orchestrator.quotes import sky_quoter

_RUN_ID = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")


def cores() -> int:
    """CPUs this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@dataclass(frozen=True, slots=True)
class CheckedPlan:
    """A plan as JSON, and those of its notes, the first ones, that tell why it cannot be launched as it is."""

    document: dict[str, Any]
    obstacles: tuple[str, ...]


def plan_for(
    spec: ExperimentSpec,
    on: str = "local",
    price_tolerance: Decimal = TOLERANCE,
    approved: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """The document of `checked_plan`."""
    return checked_plan(spec, on, price_tolerance, approved).document


def checked_plan(
    spec: ExperimentSpec,
    on: str = "local",
    price_tolerance: Decimal = TOLERANCE,
    approved: Mapping[str, Any] | None = None,
) -> CheckedPlan:
    """The plan of a run on this machine ("local") or on rented VMs ("sky"). Contacts nothing.

    `approved`: an earlier plan of it, whose instance types and prices hold instead of today's.
    Raises SpecError, PriceBookError.
    """
    rented = TARGETS[on].rents
    book = load_for(spec.prices, rented=rented)
    against: list[str] = []
    if rented:
        against, emulation, notes = _expected(spec)
        quote = sky_quoter(book, os.environ)
    else:
        emulation, notes, quote = resolve_emulation(spec, cores()), assumed_paths(spec), None
    if approved is not None:
        quote = planned_quoter(approved)
    plan = plan_of(
        spec, book, emulation, on=on, quote=quote, price_tolerance=price_tolerance, notes=notes
    ).as_dict()
    found = (*_refused(spec, plan, on), *against)
    noted = [*found, *(_outdated(book) if rented else ()), *plan["notes"]]
    return CheckedPlan({**plan, "notes": noted}, found)


def refuse_money(spec: ExperimentSpec, plan: Mapping[str, Any], on: str) -> None:
    """What `prepare` would refuse for its price or its limits, told before anybody is asked.

    Raises RefusedError, UsageError, SpecError, PriceBookError.
    """
    planned_run(spec, plan, "planned", cores=cores(), on=on)


def _refused(spec: ExperimentSpec, plan: Mapping[str, Any], on: str) -> list[str]:
    try:
        refuse_money(spec, plan, on)
    except (RefusedError, UsageError) as error:
        return [f"cannot be launched: {error}"]
    except SpecError:  # there is a note of it where its duration is told
        pass
    return []


def _outdated(book: PriceBook) -> list[str]:
    """Real traffic at prices that are known to be old ones."""
    latest = newest()
    if not book.newest_date or not latest.newest_date or book.newest_date >= latest.newest_date:
        return []
    return [
        f"traffic is counted at the prices of {book.name}, of {book.newest_date}, since 'prices' names it; "
        f"{latest.name} has those of {latest.newest_date}, between clouds some ten times higher: "
        "--set prices=auto counts them"
    ]


def _expected(spec: ExperimentSpec) -> tuple[list[str], EmulationPlan | None, list[str]]:
    """What stands against launching on rented VMs as it is, the epochs to expect there, and notes about them."""
    against, expected = list(obstacles(spec)), None
    try:
        expected = unscaled(spec, cores())
    except SpecError as error:
        against.append(str(error))
        note = "its duration is unknown"
    else:
        note = "the duration counts no distance between the places: averaging may take longer"
        if expected.study_epoch_s is None:
            note = _unknown_duration(spec)
    return [f"cannot be launched on rented VMs as it is: {why}" for why in against], expected, [note]


def _unknown_duration(spec: ExperimentSpec) -> str:
    accelerators = {group.alternatives[0].accelerators for group in spec.peers}
    defined = models()[spec.model].kind == "digits"  # a step is what it is padded to, nobody measured it
    unknown = [a for a in sorted(accelerators) if defined or step_time(spec.model, a) is None]
    return (
        f"its duration is unknown: nobody measured a step of {spec.model} on {', '.join(unknown)}; traffic is reckoned as "
        f"if each epoch took swarm.matchmaking_time_s ({spec.swarm.matchmaking_time_s:g} s), the least it can: "
        "a longer one lowers it, and the reserve with it"
    )


def plan_json(plan: dict[str, Any], spec: ExperimentSpec) -> str:
    """A plan as it is saved."""
    from orchestrator.cli.render.output import as_json
    from orchestrator.saved_plan import plan_document

    created_at = f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}"
    return as_json(plan_document(plan, spec, created_at, version("orch"))).rstrip("\n")


def new_id(name: str) -> str:
    """A run id nobody has yet."""
    return new_run_id(name, datetime.now(UTC), SystemRandom())


def checked_id(run_id: str) -> str:
    """The id the user chose: it names a folder and begins every VM's name. Raises UsageError."""
    if not _RUN_ID.fullmatch(run_id):
        raise UsageError(
            f"--run-id {run_id[:80]!r}: a run's id is made of a-z, 0-9 and '-', at most 63 of them; choose another"
        )
    return run_id
