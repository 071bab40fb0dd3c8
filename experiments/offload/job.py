"""What a server of offloading works on: one experiment's pipeline, plan, shards and peers."""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from experiments.offload.errors import PlanError
from experiments.offload.plan import OffloadPlan
from experiments.pipeline.load import load_pipeline
from experiments.pipeline.pipeline import Pipeline

_SHORTEST_TOKEN = 16


@dataclass(frozen=True)
class Work:
    """What a process that runs operations needs to know of a job: no tokens. As `Job`."""

    where: str
    plan: OffloadPlan
    settings: Mapping[str, Any]
    folder: Path | None

    def pipeline(self) -> Pipeline:
        """Load the pipeline. Raises PipelineError; PlanError if the plan was made for another one."""
        pipeline = load_pipeline(self.where, self.settings, self.folder)
        self.plan.check(pipeline)
        return pipeline


@dataclass(frozen=True)
class Job:
    """An experiment that the server works for. `where`, `settings` and `folder` are those of `load_pipeline`.

    `shards`: URLs of the only objects that it reads. `tokens`: each slot's secret, which its peer shows. Raises PlanError
    without shards or tokens, and for a token that is short or that two slots have.
    """

    where: str
    plan: OffloadPlan
    shards: frozenset[str]
    tokens: Mapping[str, str] = field(repr=False)
    settings: Mapping[str, Any] = field(default_factory=dict)
    folder: Path | None = None

    def __post_init__(self) -> None:
        if not self.shards:
            raise PlanError("the server has no shards to offer; name the experiment's")
        if not self.tokens or min(map(len, self.tokens.values())) < _SHORTEST_TOKEN:
            raise PlanError(
                f"each slot needs a token of at least {_SHORTEST_TOKEN} characters; make them at random"
            )
        if not all(token.isascii() and token.isprintable() for token in self.tokens.values()):
            raise PlanError("a token may have printable ASCII characters only; make it at random")
        if len(set(self.tokens.values())) < len(self.tokens):
            raise PlanError("two slots have the same token; give each one of its own")

    @property
    def work(self) -> Work:
        """The part of it for processes that run operations."""
        return Work(self.where, self.plan, self.settings, self.folder)

    def slot_of(self, token: str) -> str | None:
        """The slot with this token, found in a time that does not depend on how much of a wrong token is right."""
        shown, found = token.encode("utf-8", "surrogateescape"), None
        for slot, expected in self.tokens.items():
            if hmac.compare_digest(shown, expected.encode()):
                found = slot
        return found
