"""What `launch` and `plan` do before a controller exists: the plan, the run's id."""

from __future__ import annotations

import os
import re
from datetime import UTC, datetime
from decimal import Decimal
from importlib.metadata import version
from random import SystemRandom
from typing import Any

from analysis.plan import TOLERANCE, book_quoter, plan_of
from cloud.prices.book import load as load_book
from experiments.spec.emulation import EmulationPlan, resolve_emulation
from experiments.spec.schema import ExperimentSpec
from orchestrator.errors import UsageError
from orchestrator.home import new_run_id

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
        quote, emulation = book_quoter(book), resolve_emulation(spec, cores())
    else:
        from orchestrator.quotes import sky_quoter

        quote, emulation = sky_quoter(book, os.environ), _unscaled(spec)
    return plan_of(spec, book, emulation, on=on, quote=quote, price_tolerance=price_tolerance).as_dict()


def plan_json(plan: dict[str, Any], spec: ExperimentSpec) -> str:
    """A plan as it is saved."""
    from orchestrator.cli.output import as_json
    from orchestrator.saved_plan import plan_document

    created_at = f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}"
    return as_json(plan_document(plan, spec, created_at, version("orch"))).rstrip("\n")


def _unscaled(spec: ExperimentSpec) -> EmulationPlan | None:
    """On real VMs nothing is shrunk: an emulated model is padded to the real one's size and time."""
    if spec.emulation is None:
        return None
    scales = {"bytes_scale": 1.0, "time_scale": 1.0, "samples_scale": 1.0}
    return resolve_emulation(
        spec.model_copy(update={"emulation": spec.emulation.model_copy(update=scales)}), cores()
    )


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
