"""What the report on an input is made from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from analysis.pipeline.plan import PipelinePlan
from analysis.pipeline.profile_records import Profile
from metrics.run import RunNumbers


@dataclass(frozen=True, slots=True)
class PlanPart:
    """The options of an experiment. `best`: a sentence by number of passes; `assumptions`: what the figures rest on."""

    experiment: str
    plan: PipelinePlan
    best: tuple[str, ...]
    assumptions: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Parts:
    """What was measured of a target; None: nothing.

    `trace` and `map` are the documents that `orch pipeline trace` and `map` wrote; `run` is a run with `data.trace`.
    `missing` says for each part that is not there how to get it.
    """

    target: str
    trace: Mapping[str, Any] | None = None
    run: RunNumbers | None = None
    map: Mapping[str, Any] | None = None
    profile: Profile | None = None
    plan: PlanPart | None = None
    missing: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
