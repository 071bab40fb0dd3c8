"""The checkpoints of a run in the config of its peers, and where they are stored."""

from __future__ import annotations

from typing import Any

from analysis.planning.checkpoints import writers_of
from experiments.checkpoints.layout import run_prefix
from experiments.schema.models import ExperimentSpec
from metrics.run import terms_of
from metrics.store.meta import RunMeta

CHECKPOINTS = "checkpoints"
"""Folder of a run to which the newest checkpoint is copied before its embedded store is removed, under its own name."""


def checkpoint_config(meta: RunMeta, spec: ExperimentSpec) -> dict[str, Any] | None:
    """The peers' config key `checkpoint`; None without checkpoints."""
    wanted = spec.checkpoint
    if wanted is None:
        return None
    return {
        "prefix": checkpoint_prefix(spec, str(meta.run_id)),
        "every_epochs": wanted.every_epochs,
        "every_s": wanted.every_s,
        "keep": wanted.keep,
        "writers": list(writers_of(spec, terms_of(meta)[0].book)),
        "start": getattr(meta, "start_from", None),
    }


def checkpoint_prefix(spec: ExperimentSpec, run_id: str) -> str:
    """URL below which a run stores its checkpoints. The experiment must have the section `checkpoint`."""
    assert spec.checkpoint is not None
    return run_prefix(spec.checkpoint.folder(spec.data.shards), run_id)
