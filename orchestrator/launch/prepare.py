"""Creation of a run's folder from its plan, and start of its emulated cloud, before the controller."""

from __future__ import annotations

import errno
import json
import os
import platform
import shutil
import time
from collections.abc import Mapping
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from analysis.planning.checkpoints import upload_usd
from analysis.planning.reserve import epoch_egress_usd
from cloud import targets
from cloud.durable_file import sync_folder
from cloud.prices.book import PriceBook
from cloud.targets import Target
from experiments.catalog import Model, step_time
from experiments.emulation.accelerators import is_padded
from experiments.emulation.scales import EmulationPlan
from experiments.emulation.windows import windows_of
from experiments.parse.load import from_document, to_document
from experiments.schema.models import ExperimentSpec
from experiments.schema.shards import shard_urls
from experiments.schema.slots import slots
from experiments.schema.trained_model import model_of
from experiments.study_file.basis import paper_basis
from metrics.records import EventRecord
from metrics.store.database import DiskFullError, RunStore
from metrics.store.meta import (
    EgressCeiling,
    EmulationMeta,
    ModelMeta,
    NetworkMeta,
    PriceBookMeta,
    RunMeta,
    RunScales,
)
from orchestrator.core.events import Fact
from orchestrator.core.journal import created
from orchestrator.disk_reserve import keep_reserve
from orchestrator.errors import RunFailedError, UsageError
from orchestrator.home import make_home
from orchestrator.home import run_folder as folder_of
from orchestrator.launch.checkpoint_config import CHECKPOINTS, checkpoint_prefix
from orchestrator.launch.earlier_data import earlier_positions
from orchestrator.launch.local_store import dataset_of, store_place
from orchestrator.launch.plan_run import RunPlan
from orchestrator.launch.preemptions import preempt_options
from orchestrator.launch.rented import sky_meta
from orchestrator.launch.secret_values import secret_values
from orchestrator.launch.start_lock import start_lock
from orchestrator.launch.task_code import ship_task
from orchestrator.metrics_address import chosen_address

LOCAL = targets.LOCAL.provider

_DATASET_S = 180.0
_PASSED_ON = (
    "AWS_ACCESS_KEY_ID",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_SESSION_TOKEN",
    "AWS_PROFILE",
    "AWS_CA_BUNDLE",
)
_PACKAGES = ("orch", "hivemind", "torch", "ray", "webdataset")


def prepare(
    plan: RunPlan, file: Path, run_id: str, home: Path, *, now_s: float, provider: str = LOCAL
) -> Path:
    """Create the run's folder with the experiment file, the meta and the first journal row.

    `provider` is "module:callable", called with the run's folder; it is ignored for rented VMs. Raises
    UsageError if the run exists or the folder cannot be written, HeldError while another process creates it,
    RefusedError if the budget cannot be kept, StalePlanError if the task's code is not that of the plan, SpecError,
    PriceBookError, StoreError (DiskFullError). After an error, no new folder is left.
    """
    spec, rented, folder = plan.spec, plan.target.rents, folder_of(home, run_id)
    if (folder / "run.db").exists():
        raise UsageError(f"{run_id}: this run exists; continue it with `orch attach {run_id}`")
    emulation, run = plan.launchable(run_id)
    try:
        make_home(home)
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        with start_lock(folder):
            if (folder / "run.db").exists():
                raise UsageError(f"{run_id}: this run exists; continue it with `orch attach {run_id}`")
            try:
                (folder / "experiment.yaml").write_bytes(file.read_bytes())
                ship_task(spec, folder)
                write_environment(folder, spec, plan.target)
                ceiling = _egress_ceiling(spec, plan.book, emulation, rented=rented)
                meta = _meta(plan, emulation, run_id, now_s, provider, ceiling)
                if rented:
                    meta = sky_meta(meta, spec, home)
                keep_reserve(folder)
                _write_store(folder / "run.db", meta, created(run), now_s, _positions(home, meta, spec))
            except BaseException:
                shutil.rmtree(folder, ignore_errors=True)  # an incomplete run, with secrets in it
                raise
    except (OSError, DiskFullError) as error:
        if isinstance(error, DiskFullError) or error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise DiskFullError(
                f"{folder}: no space left on the disk; free some, or set ORCH_HOME to a folder on another disk"
            ) from error
        raise UsageError(
            f"{folder}: cannot write the run's folder ({error.strerror}); choose another place with ORCH_HOME"
        ) from error
    return folder


def _positions(home: Path, meta: RunMeta, spec: ExperimentSpec) -> Mapping[str, Any]:
    """Where the slots go on in the data: with a checkpoint of an earlier run, where they were in that run."""
    start = meta.start_from
    if start is None:
        return {}
    return earlier_positions(home, str(start["prefix"]).rpartition("/")[2], int(start["epoch"]), spec)[0]


def _write_store(path: Path, meta: RunMeta, fact: Fact, now_s: float, positions: Mapping[str, Any]) -> None:
    """Create the database atomically: another launch of this id must not find one without a run in it."""
    new = path.with_name("run.db.new")
    for left in path.parent.glob("run.db.new*"):  # left by a launch that was killed here
        left.unlink()
    with RunStore.open_writer(new) as store, store.transaction():
        for key, value in meta.to_json().items():
            store.set_meta(key, value)
        if positions:
            store.set_meta("epoch_positions", positions)
        row = EventRecord(0, now_s, fact.kind, "", -1, "", "", "", fact.cause, fact.data_json)
        store.append("events", [row])
    new.rename(path)  # a closed SQLite database is this one file
    sync_folder(path.parent)


def _meta(
    planned: RunPlan,
    emulation: EmulationPlan,
    run_id: str,
    now_s: float,
    provider: str,
    egress_ceiling: EgressCeiling | None,
) -> RunMeta:
    spec, book = planned.spec, planned.book
    model, task = model_of(spec), spec.task
    figures = paper_basis(spec).published
    start_epoch = 0 if planned.start is None else int(planned.start["epoch"])
    warmup_epochs, epochs = spec.measure.after(start_epoch)
    return RunMeta(
        run_id=run_id,
        experiment=to_document(spec),
        plan=dict(planned.document),
        provider=provider,
        target=planned.on,
        emulated=True,
        emulation=EmulationMeta.from_json(asdict(emulation)),
        scales=RunScales(
            bytes=emulation.bytes_scale, time=emulation.time_scale, samples=emulation.samples_scale
        ),
        network=NetworkMeta(
            tuning=spec.network_tuning, windows=emulation.windows, window_bytes=emulation.window_bytes
        ),
        status="running",
        error="",
        started_s=now_s,
        price_book=PriceBookMeta(name=book.name, sha256=book.sha256, csv=book.text),
        model=ModelMeta(
            name=model.name,
            parameters=model.parameters,
            bytes_per_sample=model.bytes_per_sample,
            ran=_ran(spec, model),
            sha256=None if task is None or task.facts is None else task.facts.sha256,
        ),
        start_from=planned.start,
        warnings=planned.warnings,
        warmup_epochs=warmup_epochs,
        epochs=epochs,
        target_batch_size=spec.swarm.target_batch_size,
        raw_target_batch_size=emulation.raw_target_batch_size,
        training_shards=len(set(shard_urls(spec.data.shards))),
        sync_work_s=_sync_work(spec) if is_padded(spec) else {},
        published=None if figures is None else asdict(figures),
        versions={"python": platform.python_version(), **{p: _version(p) for p in _PACKAGES}},
        metrics_address=chosen_address(os.environ),
        egress_ceiling=egress_ceiling,
    )


def _egress_ceiling(
    spec: ExperimentSpec, book: PriceBook, emulation: EmulationPlan, *, rented: bool
) -> EgressCeiling | None:
    """Upper bound of an epoch's traffic cost by the plan, and an epoch's duration on this machine; None: unknown."""
    usd, checkpoint_usd = epoch_egress_usd(spec, book, rented=rented), upload_usd(spec, book)
    if usd is None or checkpoint_usd is None:
        return None
    expected_s = emulation.reckoned_epoch_s if emulation.epoch_s is None else emulation.epoch_s
    return EgressCeiling(usd=str(usd + checkpoint_usd), raw_epoch_s=max(1.0, expected_s))


def _ran(spec: ExperimentSpec, model: Model) -> str:
    """Description of what the peers train."""
    if model.kind == "digits":
        return "digits network"
    if spec.task is not None or not is_padded(spec):
        return model.name
    return "digits network (emulates the model)"


def _sync_work(spec: ExperimentSpec) -> dict[str, float]:
    """Seconds, at full scale, of a VM's own work around an averaging round, by accelerator."""
    requested = {r.accelerators for slot in slots(spec) for r in slot.places}
    known = {a: step_time(spec.timed_as, a, plain=spec.swarm.plain) for a in sorted(requested)}
    return {a: times.sync_work_s for a, times in known.items() if times is not None}


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def write_environment(folder: Path, spec: ExperimentSpec, target: Target = targets.LOCAL) -> None:
    """Write the peers' environment (mode 0600): the experiment's `secrets` and the user's AWS_* variables.

    Rented VMs get AWS_* only if `secrets` lists them, because the user's own may rent VMs. The values
    are in this file and the peers' configs only; the file is removed when the run ends. Raises UsageError for
    a secret that is not in the environment.
    """
    passed_on = _PASSED_ON if spec.data.endpoint and not target.rents else ()
    values = {n: os.environ[n] for n in passed_on if n in os.environ} | secret_values(spec)
    path = folder / "keys" / "environment.key"
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(fd, "w") as file:
        json.dump(values, file)


def start_cloud(folder: Path) -> None:
    """Start the run's emulated cloud with its store and data set, unless it runs.

    Does nothing for other providers. Raises ProviderError (not possible on this machine or with these
    options), StoreError, RunFailedError (no data set).
    """
    with RunStore.open_reader(folder / "run.db") as store:
        meta = store.run_meta()
    if meta.provider != LOCAL:
        return
    from cloud.local import LocalCloud

    spec = from_document(meta.document)
    cloud = LocalCloud.start(folder, _local_options(spec, meta, folder))
    try:
        if not spec.data.endpoint:
            _await_dataset(cloud, folder)
        with RunStore.open_writer(folder / "run.db") as store:
            store.set_meta("target", "loopback" if cloud.mode == "loopback" else "local")
    except BaseException:
        cloud.close()
        raise


def _kept(spec: ExperimentSpec, meta: RunMeta, folder: Path) -> dict[str, Any]:
    """Options of the embedded store with which the newest checkpoint is copied to the run's folder at the end."""
    if spec.checkpoint is None:
        return {}
    prefix, target = checkpoint_prefix(spec, str(meta.run_id)), folder.absolute() / CHECKPOINTS
    return {
        "keep": "experiments.checkpoints.keep:keep_newest",
        "keep_arguments": {"prefix": prefix, "folder": str(target)},
    }


def _restored(meta: RunMeta) -> dict[str, Any]:
    """Options of the embedded store with which the checkpoint of another run is stored in it."""
    start = meta.start_from
    if start is None:
        return {}
    return {
        "restore": "experiments.checkpoints.keep:put_back",
        "restore_arguments": {"prefix": start["prefix"], "folder": start["folder"]},
    }


def _local_options(spec: ExperimentSpec, meta: RunMeta, folder: Path) -> Any:
    from cloud.local import LocalOptions, StoreOptions

    emulation = spec.emulation
    if emulation is None:
        raise UsageError(
            f"{spec.name}: 'emulation: null' requires real VMs; rent them with --on sky, or remove it"
        )
    if spec.data.endpoint:
        store = StoreOptions(
            kind="forward",
            location=store_place(spec.data.location, emulation.network),
            url=spec.data.endpoint,
        )
    else:
        program, arguments = dataset_of(spec)
        store = StoreOptions(
            kind="swift",
            location=store_place(spec.data.location, emulation.network),
            dataset=program,
            dataset_arguments=arguments,
            **_kept(spec, meta, folder),
            **_restored(meta),
        )
    scales = meta.scales or RunScales()
    return LocalOptions(
        network=emulation.network,
        bytes_scale=scales.bytes,
        time_scale=scales.time,
        windows=windows_of(emulation, spec.network_tuning),
        network_tuning=spec.network_tuning,
        path_model=emulation.path_model,
        seed=f"{spec.name}/{spec.seed}",
        run_id=str(meta.run_id),
        boot_s=emulation.boot_s,
        capacity=dict(emulation.capacity),
        preempt=preempt_options(spec, str(meta.run_id)),
        store=store,
        expected_peers=spec.peer_count,
        environment=dict(spec.envs),
    )


def _await_dataset(cloud: Any, folder: Path) -> None:
    """Wait until the embedded store is filled. Raises RunFailedError if it fails, or stops making progress."""
    before: Any = None
    deadline = 0.0
    while True:
        store = cloud.store()
        if store.get("state") == "ready":
            return
        if store.get("state") == "failed" or cloud.fatal:
            raise RunFailedError(
                f"{folder.name}: the embedded store failed: {store.get('error') or cloud.fatal}; "
                "fix that, then launch again"
            )
        now = (store.get("state"), store.get("dataset"))
        if now != before:
            before, deadline = now, time.monotonic() + _DATASET_S
        if time.monotonic() > deadline:
            raise RunFailedError(
                f"{folder.name}: the embedded store was not filled: nothing was added to it for {_DATASET_S:.0f} s; "
                f"see {folder}/cloud/store, then launch again on a machine that is less busy"
            )
        time.sleep(0.1)
