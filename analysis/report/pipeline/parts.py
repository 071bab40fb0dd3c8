"""What the report on an input is made from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from analysis.pipeline.offload.compare import PolicyRow
from analysis.pipeline.offload.sample_profile import SampleProfile
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
class OffloadPart:
    """Offloading by a profile of each sample. `setting`: what a pass runs on, as a sentence; `speed`: the server's seconds /
    the client's; `by_cores`: the policies with 0, 1, ... cores next to the storage, empty without times."""

    profile: SampleProfile
    setting: str
    speed: float
    rows: Sequence[PolicyRow]
    by_cores: dict[int, tuple[PolicyRow, ...]]


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
    offload: OffloadPart | None = None
    missing: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
