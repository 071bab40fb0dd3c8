"""What the pipeline commands work on: an experiment's input, or a built-in pipeline with a data set made for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from experiments.parse.load import load
from experiments.pipeline.load import BUILT_IN
from experiments.schema.models import ExperimentSpec
from orchestrator.errors import UsageError

_TOKENIZER = Path(__file__).resolve().parents[2] / "experiments" / "library" / "stdlib-tokenizer.json"


@dataclass(frozen=True, slots=True)
class Standalone:
    """A built-in pipeline that can be used without an experiment: its settings, and the data set that is made for it."""

    dataset: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    data_options: Mapping[str, str] = field(default_factory=dict)  # of cloud.datasets.generate.generate


STANDALONE: Mapping[str, Standalone] = {
    "digits": Standalone("digits"),
    "imagenet": Standalone("photos"),
    "imagenet-resize": Standalone("photos", data_options={"sizes": "imagenet"}),
    "images": Standalone("glyphs"),
    "text": Standalone("pages", {"tokenizer": str(_TOKENIZER)}),
    "speech-mel": Standalone("speech", data_options={"sound": "flac"}),
    "power": Standalone("power"),
}


@dataclass(frozen=True, slots=True)
class Target:
    """Exactly one of `spec` and `standalone` is set."""

    name: str
    spec: ExperimentSpec | None = None
    standalone: Standalone | None = None


def find_target(name: str, overrides: Sequence[str] = ()) -> Target:
    """Return the pipeline of that name, or the experiment (file, or name of a shipped one) with `overrides`.

    Raises UsageError, SpecError.
    """
    if name in STANDALONE:
        if overrides:
            raise UsageError(f"--set: {name} is a pipeline, not an experiment; leave the option out")
        return Target(name, standalone=STANDALONE[name])
    if name in BUILT_IN:
        raise UsageError(
            f"{name}: this pipeline needs the settings of an experiment; name an experiment that uses it, or one of "
            f"{', '.join(STANDALONE)}"
        )
    return Target(name, spec=load(name, tuple(overrides), ()))
