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
    wanted, start = spec.checkpoint, meta.start_from
    begin = None if start is None else {key: start[key] for key in ("prefix", "name")}
    if wanted is None:
        return None if begin is None else _only_read(begin, str(meta.run_id))
    return {
        "prefix": checkpoint_prefix(spec, str(meta.run_id)),
        "every_epochs": wanted.every_epochs,
        "every_s": wanted.every_s,
        "keep": wanted.keep,
        "writers": list(writers_of(spec, terms_of(meta)[0].book)),
        "start": begin,
    }


def _only_read(start: dict[str, str], run_id: str) -> dict[str, Any]:
    """The key of a run that begins with a checkpoint and stores none: it looks for its own ones beside the other run's."""
    prefix = run_prefix(start["prefix"].rpartition("/")[0], run_id)
    never = {"every_epochs": None, "every_s": None, "writers": []}
    return {"prefix": prefix, "keep": 1, **never, "start": start}


def checkpoint_prefix(spec: ExperimentSpec, run_id: str) -> str:
    """URL below which a run stores its checkpoints. The experiment must have the section `checkpoint`."""
    assert spec.checkpoint is not None
    return run_prefix(spec.checkpoint.folder(spec.data.shards), run_id)
