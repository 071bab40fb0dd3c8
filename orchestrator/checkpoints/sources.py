"""Where the checkpoints of a run can be read from this machine, and what its journal says about them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from cloud.targets import target_of
from experiments.parse.load import from_document
from experiments.schema.models import ExperimentSpec
from metrics.events.checkpoints import Stored, checkpoints_of
from metrics.store.database import RunStore
from metrics.store.meta import RunMeta
from orchestrator.errors import UsageError
from orchestrator.launch.checkpoint_config import CHECKPOINTS, checkpoint_prefix
from orchestrator.launch.store_client import client_options, store_keys

if TYPE_CHECKING:
    from experiments.checkpoints.listing import Listed
    from experiments.checkpoints.store import Source

_CONNECT_S, _ATTEMPTS = 5.0, 2
_HERE = (
    "127.0.0.1",
    "::1",
    "localhost",
)  # other addresses of embedded stores are those of an emulated network


@dataclass(frozen=True, slots=True)
class RunCheckpoints:
    """A run's checkpoints. `source` None: nothing is left to read, for the reason `gone`."""

    run_id: str
    spec: ExperimentSpec
    meta: RunMeta
    source: Source | None
    kind: str  # "folder" or "store"; "" without a source
    where: str  # folder or URL
    gone: str
    notes: tuple[
        Stored, ...
    ]  # what the journal says was stored, newest first; whether it still exists is not known


def run_checkpoints(folder: Path, environ: Mapping[str, str]) -> RunCheckpoints:
    """Find the checkpoints of the run in `folder`; no store is contacted yet.

    Raises UsageError if the run's experiment stores none.
    """
    with RunStore.open_reader(folder / "run.db") as store:
        meta = store.run_meta()
        events = store.records("events")
    run_id = meta.run_id or folder.name
    if not meta.document.get("checkpoint"):
        raise UsageError(
            f"{run_id}: the experiment has no section 'checkpoint', so no checkpoint was stored; add one and launch again "
            "(docs/checkpoints.md)"
        )
    spec = from_document(meta.document)
    notes = sorted(checkpoints_of(events).stored, key=lambda one: (one.epoch, one.at_s), reverse=True)
    return RunCheckpoints(run_id, spec, meta, *_source(folder, run_id, meta, spec, environ), tuple(notes))


def choose(listed: tuple[Listed, ...], epoch: int | None, run: RunCheckpoints) -> Listed:
    """The newest complete checkpoint, or the one of `epoch`, which may have a problem.

    Raises UsageError if there is none, CheckpointError if none of several can be used.
    """
    from experiments.checkpoints.errors import CheckpointError

    if not listed:
        raise UsageError(f"{run.run_id}: no checkpoint is stored in {run.where}")
    if epoch is not None:
        of_epoch = [one for one in listed if one.epoch == epoch]
        if not of_epoch:
            there = ", ".join(map(str, dict.fromkeys(one.epoch for one in listed)))
            raise UsageError(
                f"{run.run_id}: there is no checkpoint of epoch {epoch} in {run.where}, only of {there}"
            )
        return next((one for one in of_epoch if one.problem is None), of_epoch[0])
    complete = next((one for one in listed if one.problem is None), None)
    if complete is None:
        raise CheckpointError(
            "none",
            f"{run.run_id}: no checkpoint in {run.where} can be used: {'; '.join(str(one.problem) for one in listed)}",
        )
    return complete


def passed_over(listed: tuple[Listed, ...], chosen: Listed) -> list[str]:
    """What is wrong with newer checkpoints than the chosen one; uploads that did not finish are no problem."""
    newer = listed[: listed.index(chosen)]
    return [str(one.problem) for one in newer if one.problem is not None and not one.unfinished]


def _source(
    folder: Path, run_id: str, meta: RunMeta, spec: ExperimentSpec, environ: Mapping[str, str]
) -> tuple[Source | None, str, str, str]:
    from experiments.checkpoints.folder import CheckpointFolder
    from experiments.checkpoints.store import CheckpointStore

    prefix = checkpoint_prefix(spec, run_id)
    if (folder / CHECKPOINTS).is_dir():
        return CheckpointFolder(folder / CHECKPOINTS, run_id), "folder", str(folder / CHECKPOINTS), ""
    options = client_options(spec, store_keys(spec, environ))
    endpoint = spec.data.endpoint
    if not endpoint and not target_of(meta.target).rents:
        embedded = _embedded(folder)
        if not embedded and meta.status != "running":
            return (
                None,
                "",
                prefix,
                "the run's embedded store is gone, and no checkpoint was copied out of it",
            )
        if not embedded or urlsplit(embedded["endpoint"]).hostname not in _HERE:
            return None, "", prefix, (
                "only the run's VMs reach its embedded store; the newest checkpoint is copied out of it when the run ends"
            )  # fmt: skip
        endpoint = embedded["endpoint"]
        options |= {key: embedded[key] for key in ("access_key", "secret_key")}
    settings = {"endpoint": endpoint, "connect_timeout_s": _CONNECT_S, "attempts": _ATTEMPTS, **options}
    return CheckpointStore(prefix, settings), "store", prefix, ""


def _embedded(folder: Path) -> dict[str, str]:
    """Endpoint and keys of the run's embedded store; empty if it is not there."""
    try:
        state = json.loads((folder / "cloud" / "store" / "store.json").read_text())
    except (OSError, ValueError):
        return {}
    known = {key: str(state.get(key) or "") for key in ("endpoint", "access_key", "secret_key")}
    return known if all(known.values()) else {}
