"""Finds the checkpoint with which a new run begins, and checks that it fits, before anything is started or rented."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from cloud.targets import TARGETS
from experiments.catalog import models
from experiments.emulation.accelerators import is_padded
from experiments.schema.models import ExperimentSpec
from orchestrator.checkpoints.sources import run_checkpoints
from orchestrator.errors import UsageError
from orchestrator.home import resolve_run, run_folder
from orchestrator.launch.earlier_data import earlier_positions
from orchestrator.launch.rent_checks import STORE_KEYS, aws_buckets, aws_written, reads_by_role
from orchestrator.launch.start_from import StartFrom, differences, training_settings
from orchestrator.launch.store_client import client_options, store_keys

if TYPE_CHECKING:
    from experiments.checkpoints.listing import Listed
    from experiments.checkpoints.manifest import Manifest
    from experiments.checkpoints.store import CheckpointStore, Source

_CONNECT_S, _ATTEMPTS = 5.0, 2
_STATE, _MAX_STATE_BYTES = "state/state.json", 64_000_000


class _Found(NamedTuple):
    manifest: Manifest
    prefix: str
    source: Source
    folder: str | None = None


def find_start(text: str, spec: ExperimentSpec, on: str, home: Path, environ: Mapping[str, str]) -> StartFrom:
    """Find the checkpoint that `--from` names: the newest complete one of a run, or the one whose URL is given.

    Raises UsageError if there is none or it does not fit the experiment, CheckpointError if it cannot be used, StorageError.
    """
    if is_padded(spec):
        raise UsageError(
            f"--from {text}: {spec.name} emulates padded accelerators, which train a stand-in for the model; set "
            "emulation.accelerators: host, or 'emulation: null' for rented VMs"
        )
    embedded = not spec.data.endpoint and not TARGETS[on].rents
    found = (
        _of_url(text, spec, on, environ, embedded=embedded)
        if text.startswith("s3://")
        else _of_run(text, spec, on, home, environ, embedded=embedded)
    )
    _check_fits(text, spec, found.manifest)
    _check_optimizer(text, spec, found)
    before = found.manifest.trained_with
    named = () if before is None else differences(training_settings(spec), before)
    _, anew = earlier_positions(home, found.prefix.rpartition("/")[2], found.manifest.epoch, spec)
    return StartFrom(found.prefix, found.manifest.name, found.manifest.epoch, found.folder, named, anew)


def _of_url(
    text: str, spec: ExperimentSpec, on: str, environ: Mapping[str, str], *, embedded: bool
) -> _Found:
    from experiments.checkpoints.layout import parse_name

    prefix, _, last = text.rstrip("/").rpartition("/")
    name = last if parse_name(last) is not None else ""
    prefix = prefix if name else text.rstrip("/")
    if len(prefix.removeprefix("s3://").split("/")) < 2:
        raise UsageError(
            f"--from {text}: give s3://bucket/prefix/<run id>, or s3://bucket/prefix/<run id>/<name>"
        )
    if embedded:
        raise UsageError(
            f"--from {text}: {spec.name} uses the embedded store of a local run, which is created for it; name a run of this "
            "machine, or set data.endpoint to the store of the checkpoint"
        )
    return _in_store(text, prefix, name, spec, on, environ)


def _of_run(
    text: str, spec: ExperimentSpec, on: str, home: Path, environ: Mapping[str, str], *, embedded: bool
) -> _Found:
    from experiments.checkpoints.folder import CheckpointFolder
    from experiments.checkpoints.layout import run_prefix
    from experiments.schema.shards import shard_urls

    run_id = resolve_run(home, text)
    run = run_checkpoints(run_folder(home, run_id), environ)
    if run.meta.status == "running":
        raise UsageError(
            f"--from {text}: {run_id} still runs, and deletes older checkpoints when it stores newer ones; launch again when it "
            f"has ended (`orch down {run_id}` ends it)"
        )
    if run.source is None:
        raise UsageError(f"--from {text}: {run_id}: {run.gone}; choose another run")
    if isinstance(run.source, CheckpointFolder):
        manifest = _newest(text, run.source.list(), "", run.where)
        folder = Path(run.where).absolute() / manifest.name
        if not embedded:
            raise UsageError(
                f"--from {text}: the checkpoint of {run_id} is in {folder}, not in the store of {spec.name}; copy that folder "
                f"with its name to s3://BUCKET/PREFIX/{run_id}/ there, and use --from s3://BUCKET/PREFIX/{run_id}"
            )
        _verify(folder, manifest)
        bucket = shard_urls(spec.data.shards)[0].removeprefix("s3://").partition("/")[0]
        return _Found(
            manifest, run_prefix(f"s3://{bucket}/checkpoints-from", run_id), run.source, str(folder)
        )
    theirs, ours = (one.data.endpoint.rstrip("/") for one in (run.spec, spec))
    if embedded or theirs != ours:
        raise UsageError(
            f"--from {text}: the checkpoints of {run_id} are in {run.where} of {theirs or 'S3'}, but the store of {spec.name} is "
            f"{'embedded' if embedded else ours or 'S3'}; set data.endpoint to the store of the checkpoint"
        )
    return _in_store(text, run.where, "", spec, on, environ)


def _in_store(
    text: str, prefix: str, name: str, spec: ExperimentSpec, on: str, environ: Mapping[str, str]
) -> _Found:
    """Look in the store of the new run, with the keys of its peers."""
    if TARGETS[on].rents:
        _check_role(text, prefix, spec)
    store = _store(prefix, spec, environ)
    return _Found(_newest(text, store.list(), name, prefix), prefix, store)


def _store(prefix: str, spec: ExperimentSpec, environ: Mapping[str, str]) -> CheckpointStore:
    from experiments.checkpoints.store import CheckpointStore

    settings = {"endpoint": spec.data.endpoint, "connect_timeout_s": _CONNECT_S, "attempts": _ATTEMPTS}
    return CheckpointStore(prefix, settings | client_options(spec, store_keys(spec, environ)))


def _newest(text: str, listed: tuple[Listed, ...], name: str, where: str) -> Manifest:
    """The checkpoint of this name, or the newest complete one. Raises UsageError, CheckpointError."""
    from experiments.checkpoints.errors import CheckpointError

    wanted = [one for one in listed if not name or one.name == name]
    if not wanted:
        there = f"{name} is not in" if name else "no checkpoint is stored in"
        raise UsageError(f"--from {text}: {there} {where}; `orch checkpoints RUN` lists those of a run")
    for one in wanted:
        if one.problem is None and one.manifest is not None:
            return one.manifest
    problems = "; ".join(str(one.problem) for one in wanted)
    raise CheckpointError("none", f"--from {text}: no checkpoint in {where} can be used: {problems}")


def _verify(folder: Path, manifest: Manifest) -> None:
    """Compare a kept checkpoint with its manifest. Raises CheckpointError."""
    from experiments.checkpoints.errors import CheckpointError
    from experiments.checkpoints.upload import describe

    if describe(folder) != dict(manifest.files):
        raise CheckpointError(
            "corrupt", f"{folder} differs from its manifest: files were changed; choose another run"
        )


def _check_fits(text: str, spec: ExperimentSpec, manifest: Manifest) -> None:
    """Whether the run can go on from this checkpoint. Raises UsageError."""
    facts = None if spec.task is None else spec.task.facts
    sha256 = "" if facts is None else facts.sha256
    other_model = spec.model is not None and manifest.ran != _ran(spec.model)
    if manifest.task_sha256 != sha256 or other_model:
        raise UsageError(
            f"--from {text}: {manifest.name} is of {manifest.ran} with the task's SHA-256 {manifest.task_sha256[:12] or 'none'}, "
            f"but {spec.name} trains {spec.trains} with {sha256[:12] or 'none'}; code, requirements and settings of the task "
            "must be those of the checkpoint"
        )
    last = spec.measure.all_epochs
    if manifest.epoch >= last:
        raise UsageError(
            f"--from {text}: {manifest.name} is of epoch {manifest.epoch}, and {spec.name} ends after epoch {last}: measure "
            f"counts the epochs before the checkpoint too; raise measure.epochs, for example --set "
            f"measure.epochs={manifest.epoch + spec.measure.epochs}"
        )


def _check_optimizer(text: str, spec: ExperimentSpec, found: _Found) -> None:
    """Whether the optimizer's statistics are of its kind. Raises UsageError, CheckpointError, StorageError."""
    kind = _optimizer_kind(found)
    if kind is not None and kind != spec.swarm.optimizer.name:
        raise UsageError(
            f"--from {text}: {found.manifest.name} has the statistics of the optimizer {kind}, but swarm.optimizer of {spec.name} "
            f"is {spec.swarm.optimizer.name}; set swarm.optimizer.name={kind}"
        )


def _optimizer_kind(found: _Found) -> str | None:
    """The optimizer's kind as `swarm.optimizer.name` has it; None: unknown. Older manifests lack it, but not state.json."""
    from experiments.checkpoints.errors import CheckpointError

    manifest = found.manifest
    if manifest.trained_with is not None:
        return str(manifest.trained_with["optimizer"].get("name"))
    stored = manifest.files.get(_STATE)
    if stored is None or stored.size_bytes > _MAX_STATE_BYTES:
        return None
    with contextlib.closing(found.source.open(manifest.name, _STATE, stored.size_bytes)) as file:
        content = b"".join(iter(lambda: file.read(1 << 20), b""))
    try:
        return str(json.loads(content)["optimizer"]).lower()  # the class: Adam, AdamW, SGD, Lamb
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        where = found.source.where(manifest.name, _STATE)
        raise CheckpointError(
            "corrupt", f"{where} cannot be read ({error}); choose another checkpoint"
        ) from error


def _ran(model: str) -> str:
    """What a manifest calls a model of the catalogue."""
    return "digits" if models()[model].kind == "digits" else model


def _check_role(text: str, prefix: str, spec: ExperimentSpec) -> None:
    """Whether VMs that read the store by their role may read the checkpoint. Raises UsageError."""
    if STORE_KEYS[0] in spec.secrets or not reads_by_role(spec):
        return
    place = prefix.removeprefix("s3://")
    written = any(place.startswith(f"{to}/") for to in aws_written(spec))
    if place.partition("/")[0] not in aws_buckets(spec) and not written:
        raise UsageError(
            f"--from {text}: the role of VMs on AWS may not read the bucket {place.partition('/')[0]}, only "
            f"{', '.join(aws_buckets(spec))}; list the keys of the store under secrets, or copy the checkpoint"
        )
