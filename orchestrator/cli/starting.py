"""What `launch` and `plan` do before a controller exists: the plan, the run's id."""

from __future__ import annotations

import os
import re
from datetime import UTC, datetime
from decimal import Decimal
from importlib.metadata import version
from random import SystemRandom
from typing import Any

from analysis.plan import TOLERANCE, plan_of
from cloud.prices.book import load as load_book
from experiments.spec.emulation import EmulationPlan, resolve_emulation
from experiments.spec.errors import SpecError
from experiments.spec.schema import ExperimentSpec
from orchestrator.controller.sky_runs import check_store, unscaled
from orchestrator.errors import UsageError
from orchestrator.home import new_run_id
from orchestrator.quotes import sky_quoter

__all__ = ["checked_id", "cores", "new_id", "plan_for", "plan_json"]

_RUN_ID = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")


def cores() -> int:
    """CPUs this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def plan_for(spec: ExperimentSpec, on: str = "local", price_tolerance: Decimal = TOLERANCE) -> dict[str, Any]:
    """The plan of a run on this machine ("local") or on rented VMs ("sky"). Contacts nothing.

    Raises SpecError, PriceBookError.
    """
    book = load_book(spec.prices)
    if on == "local":
        emulation = resolve_emulation(spec, cores())
        return plan_of(spec, book, emulation, on=on, price_tolerance=price_tolerance).as_dict()
    emulation, notes = _expected(spec)
    quote = sky_quoter(book, os.environ)
    return plan_of(
        spec, book, emulation, on=on, quote=quote, price_tolerance=price_tolerance, notes=notes
    ).as_dict()


def _expected(spec: ExperimentSpec) -> tuple[EmulationPlan | None, list[str]]:
    """The epochs to expect on rented VMs, and what stands against launching there as it is."""
    notes: list[str] = []
    try:
        check_store(spec)
    except UsageError as error:
        notes.append(f"cannot be launched on rented VMs as it is: {error}")
    try:
        expected = unscaled(spec, cores())
    except SpecError as error:
        return None, [*notes, f"its duration is unknown: {error}"]
    return expected, [*notes, "the duration counts no distance between the places: averaging may take longer"]


def plan_json(plan: dict[str, Any], spec: ExperimentSpec) -> str:
    """A plan as it is saved."""
    from orchestrator.cli.output import as_json
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
