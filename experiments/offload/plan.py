"""The plan of offloading: how many of a sample's first operations run on the server, and how their values are written."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import sha256
from typing import Any, NoReturn, cast

from experiments.offload.errors import PlanError
from experiments.pipeline.pipeline import Pipeline
from experiments.pipeline.stored import STORED_CODECS, StoredCodec, may_hold

SCHEMA_VERSION = 1
_KEYS = {"schema_version", "pipeline", "fingerprint", "seed", "choices"}
_LOSSY = ("jpg", "jpeg", "jpeg2000", "avif", "heic", "webp-lossy", "mp3", "ogg")


@dataclass(frozen=True, slots=True)
class Choice:
    """Run the first `ops` operations on the server, and write their values with `codec`."""

    ops: int
    codec: StoredCodec = "none"


@dataclass(frozen=True)
class OffloadPlan:
    """The choice for each sample that is offloaded, by key; all others are sent as they are stored.

    `fingerprint` is that of the whole pipeline. `seed` is the run's, from which random operations draw.
    """

    pipeline: str
    fingerprint: str
    seed: int
    choices: Mapping[str, Choice] = field(default_factory=dict)

    @classmethod
    def of(cls, pipeline: Pipeline, seed: int, choices: Mapping[str, Choice]) -> OffloadPlan:
        """Make a plan for a pipeline. Raises PlanError, PipelineError."""
        plan = cls(pipeline.name, pipeline.fingerprint(), seed, dict(choices))
        plan.check(pipeline)
        return plan

    def to_json(self) -> str:
        """The plan as a JSON document; equal plans give equal documents."""
        choices = {key: [choice.ops, choice.codec] for key, choice in self.choices.items()}
        document = {
            "schema_version": SCHEMA_VERSION,
            "pipeline": self.pipeline,
            "fingerprint": self.fingerprint,
            "seed": self.seed,
            "choices": choices,
        }
        return json.dumps(document, sort_keys=True)

    @cached_property
    def sha256(self) -> str:
        """SHA-256 (hex) of the document: client and server compare it."""
        return sha256(self.to_json().encode()).hexdigest()

    def offloads(self, key: str) -> bool:
        """Whether operations of this sample run on the server."""
        choice = self.choices.get(key)
        return choice is not None and choice.ops > 0

    @classmethod
    def from_json(cls, text: str, where: str) -> OffloadPlan:
        """Parse a document; `where` names it in messages. Raises PlanError."""
        try:
            found = json.loads(text, parse_constant=_refuse_constant)
        except (ValueError, RecursionError) as error:
            raise PlanError(
                f"{where} is not a plan of offloading ({error}); write it with OffloadPlan.to_json"
            ) from error
        if not isinstance(found, dict) or set(found) != _KEYS:
            raise PlanError(
                f"{where} is not a plan of offloading; its keys must be {', '.join(sorted(_KEYS))}"
            )
        if found["schema_version"] != SCHEMA_VERSION:
            raise PlanError(
                f"{where} has version {found['schema_version']!r}, and this version of orch reads {SCHEMA_VERSION}; make it again"
            )
        for key, kind, what in (
            ("pipeline", str, "a text"),
            ("fingerprint", str, "a text"),
            ("seed", int, "a whole number"),
            ("choices", dict, "an object"),
        ):
            if type(found[key]) is not kind:
                raise PlanError(f"{where}: {key} is {found[key]!r}, not {what}; make the plan again")
        choices = {key: _choice(key, value, where) for key, value in found["choices"].items()}
        return cls(found["pipeline"], found["fingerprint"], found["seed"], choices)

    def check(self, pipeline: Pipeline) -> None:
        """Raises PlanError if the plan was made for another pipeline, or has a choice that it does not allow.

        Raises PipelineError as fingerprints do.
        """
        if self.fingerprint != pipeline.fingerprint():
            raise PlanError(
                f"the plan was made for pipeline {self.pipeline} with fingerprint {self.fingerprint[:12]}, and pipeline "
                f"{pipeline.name} here has {pipeline.fingerprint()[:12]}; make the plan again"
            )
        for key, choice in self.choices.items():
            _check_choice(pipeline, f"sample {key}", choice)


def _refuse_constant(text: str) -> NoReturn:
    raise ValueError(f"it has the number {text}")


def _choice(key: str, value: Any, where: str) -> Choice:
    at = f"{where}: sample {key}"
    if not isinstance(value, list) or len(value) != 2 or not isinstance(value[1], str):
        raise PlanError(f'{at}: {value!r} is not a choice; write [operations, "codec"]')
    ops, codec = value
    if type(ops) is not int or ops < 0:
        raise PlanError(f"{at}: {ops!r} operations cannot be offloaded; give a whole number from 0 on")
    _check_codec(at, codec)
    return Choice(ops, cast(StoredCodec, codec))


def _check_codec(at: str, codec: str) -> None:
    if codec in _LOSSY:
        raise PlanError(f"{at}: codec {codec} loses information; use one of {', '.join(STORED_CODECS)}")
    if codec not in STORED_CODECS:
        raise PlanError(f"{at}: codec {codec!r} is unknown; use one of {', '.join(STORED_CODECS)}")


def _check_choice(pipeline: Pipeline, at: str, choice: Choice) -> None:
    if not 0 <= choice.ops <= len(pipeline.ops):
        raise PlanError(
            f"{at}: {choice.ops} operations cannot be offloaded, because pipeline {pipeline.name} has {len(pipeline.ops)}; "
            f"give 0 to {len(pipeline.ops)}"
        )
    _check_codec(at, choice.codec)
    kinds = pipeline.kinds(choice.ops)
    outputs = {kinds[op.output] for op in pipeline.ops[: choice.ops]}
    if not may_hold(choice.codec, outputs):
        raise PlanError(
            f"{at}: codec {choice.codec} holds images only, and the first {choice.ops} operations give none; use none"
        )
