"""What `launch` does before a controller exists: the plan, the run's id, the run's folder."""

from __future__ import annotations

import os
import re
from datetime import UTC, datetime
from random import SystemRandom
from typing import Any

from analysis.plan import plan_of
from cloud.prices.book import load as load_book
from experiments.spec.emulation import resolve_emulation
from experiments.spec.schema import ExperimentSpec
from orchestrator.errors import UsageError
from orchestrator.home import new_run_id

__all__ = ["checked_id", "cores", "new_id", "plan_for"]

_RUN_ID = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")


def cores() -> int:
    """CPUs this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def plan_for(spec: ExperimentSpec) -> dict[str, Any]:
    """The plan of a run on this machine. Raises SpecError, PriceBookError."""
    return plan_of(spec, load_book(spec.prices), resolve_emulation(spec, cores())).as_dict()


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
