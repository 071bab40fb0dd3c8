"""Evaluate a checkpoint's model on the experiment's held-out samples, as its peers do."""

from __future__ import annotations

import contextlib
import shutil
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

from experiments.schema.models import ExperimentSpec
from orchestrator.errors import OrchError, UsageError
from orchestrator.first_steps.samples import open_generated_heldout, open_store
from orchestrator.first_steps.trial import as_on_a_peer, copied_code, lone_config, torch_threads
from orchestrator.launch.task_code import CODE, TaskCall, TaskCode

if TYPE_CHECKING:
    from experiments.checkpoints.manifest import Manifest
    from experiments.peer.config import PeerConfig
    from experiments.peer.training.task import TaskRunner


class EvaluationError(OrchError):
    """The checkpoint cannot be evaluated; the message says where, and what to correct."""


@dataclass(frozen=True, slots=True)
class Evaluated:
    """Figures on the held-out samples."""

    figures: Mapping[str, float]  # finite ones
    samples: int
    left_out: int  # bad samples
    shards: tuple[str, ...]
    generated: bool  # the samples were generated here, as the embedded store of a local run has them
    device: str
    ran: str


def evaluate(
    spec: ExperimentSpec,
    manifest: Manifest,
    model: Path,
    *,
    run_folder: Path | None,
    stored: bool,
    on_batch: Callable[[int], None] = lambda samples: None,
) -> Evaluated:
    """Evaluate the model in the folder `model` (the content of a checkpoint's model/).

    `run_folder`: the run's, whose copy of the task's files is used; None: those that the experiment names. `stored`: the
    samples are in a store; otherwise they are generated. `on_batch` gets the number of samples read so far.

    Raises EvaluationError for what is wrong with the task or its samples, UsageError, CheckpointError if the checkpoint
    is of another task, StorageError.
    """
    if not spec.data.heldout:
        raise UsageError(f"{spec.name}: the experiment has no held-out samples; set data.heldout")
    with tempfile.TemporaryDirectory(prefix="orch-evaluate-") as made:
        folder, model = Path(made).resolve(), model.resolve()
        code = _code(spec, folder, run_folder)
        _check_task(spec, manifest, code, run_folder)
        with as_on_a_peer(spec, folder), contextlib.redirect_stdout(sys.stderr):
            from experiments.peer.config import PeerConfigError
            from experiments.pipeline.errors import BadSampleError, PipelineError, describe_error
            from experiments.tasks.errors import TaskError

            try:
                return _evaluated(spec, manifest, model, folder, code, stored, on_batch)
            except (TaskError, PipelineError, BadSampleError, PeerConfigError) as error:
                text = str(error) if code is None else code.with_own_paths(str(error), folder)
                raise EvaluationError(text) from error
            except SystemExit as error:
                raise EvaluationError(
                    f"the code of task {spec.trains} ends the process ({describe_error(error)}); remove the call"
                ) from error


def _code(spec: ExperimentSpec, folder: Path, run_folder: Path | None) -> TaskCode | None:
    """Copy the task's files into `folder`. None: no task."""
    if spec.task is None or run_folder is None:
        return copied_code(spec, folder)
    kept = run_folder / CODE
    if kept.is_dir():
        shutil.copytree(kept, folder / CODE)
    files = (path for path in kept.rglob("*") if path.is_file())
    return TaskCode(
        TaskCall.of(spec, spec.task), {path.relative_to(run_folder).as_posix(): path for path in files}
    )


def _check_task(
    spec: ExperimentSpec, manifest: Manifest, code: TaskCode | None, run_folder: Path | None
) -> None:
    """Check that the checkpoint is of this task. Raises CheckpointError."""
    from experiments.checkpoints.errors import CheckpointError

    facts = None if spec.task is None else spec.task.facts
    if code is None:
        sha256 = ""
    elif run_folder is None or facts is None:
        sha256 = code.sha256()
    else:
        sha256 = facts.sha256
    if sha256 != manifest.task_sha256:
        raise CheckpointError(
            "foreign",
            f"checkpoint {manifest.name} is of {manifest.ran} with the task's SHA-256 {manifest.task_sha256[:12] or 'none'}, "
            f"but {spec.name} trains {spec.trains} with {sha256[:12] or 'none'}; give the experiment as it was launched",
        )


def _evaluated(
    spec: ExperimentSpec,
    manifest: Manifest,
    model: Path,
    folder: Path,
    code: TaskCode | None,
    stored: bool,
    on_batch: Callable[[int], None],
) -> Evaluated:
    import torch

    from experiments.peer.training.bad_samples import LeftOut
    from experiments.peer.training.task_data import held_out

    left_out = 0

    def tell(found: LeftOut) -> None:
        nonlocal left_out
        left_out = found.count

    config = replace(
        lone_config(spec, code, folder, spec.swarm.batch_size),
        bad_samples=spec.data.bad_samples,
        workers=spec.data.workers.model_dump(),
    )
    with torch_threads(config.threads), torch.random.fork_rng(devices=[]):
        runner = _runner(config, code, manifest, model)
        open_shard = open_store(spec) if stored else open_generated_heldout(spec, folder / "data")
        data = held_out(config, cast(Any, SimpleNamespace(open=open_shard)), runner, tell)
        assert data is not None

        def batches() -> Any:
            for batch in data.batches():
                on_batch(data.samples)
                yield batch

        figures = runner.evaluate(batches())
    return Evaluated(
        figures, data.samples, left_out, config.heldout_shards, not stored, str(runner.device), manifest.ran
    )


def _runner(config: PeerConfig, code: TaskCode | None, manifest: Manifest, model: Path) -> TaskRunner:
    """The experiment's own task with the checkpoint's weights. Raises TaskError.

    What the checkpoint says about its task is compared, but never called: every VM of the run may write to the store.
    """
    import torch

    from experiments.peer.training.task import TaskRunner, build_runner
    from experiments.pipeline.load import pipeline_at
    from experiments.tasks import saving
    from experiments.tasks.build import BUILT_IN, build

    if config.task is None:
        runner = build_runner(config)
        saving.load_weights(runner.task, model / saving.WEIGHTS_FILE)
        return runner
    assert code is not None
    call, settings = str(config.task["call"]), dict(config.task["with"])
    if call in BUILT_IN.values():
        settings.pop("weights", None)
        for key, file in (("config", "config.json"), ("tokenizer", "tokenizer.json")):
            if settings.get(key):  # it may be in a store that is gone
                settings[key] = str(model / file)
    task = build(call, settings, 0)
    saving.load_into(task, model, source={"call": call, "with": dict(code.call.settings)})
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    pipeline = pipeline_at(config.pipeline) if config.pipeline else None
    return TaskRunner(
        task, device, manifest.ran, config.batch_size, pipeline=pipeline, precision=config.precision
    )
