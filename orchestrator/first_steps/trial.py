"""Try an experiment in this process: read samples, decode, train some steps, evaluate, save, load, compare.

Nothing is launched: no cloud, no network namespaces, no Ray, no averaging. The task gets its files in a copy, as on a
peer.
"""

from __future__ import annotations

import contextlib
import importlib
import math
import os
import resource
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cloud.places import nearest
from experiments.catalog import models
from experiments.parse.task_files import TaskFilesError
from experiments.schema.models import ExperimentSpec
from experiments.tasks.settings import FILE_SETTINGS, stored_files
from metrics.stats import Estimate, mean_interval, ratio_interval
from orchestrator.errors import OrchError, UsageError
from orchestrator.first_steps.samples import OpenShard, first_shard, open_generated, open_store
from orchestrator.launch.task_code import CODE, TaskCall, TaskCode, local_wheels, task_code

if TYPE_CHECKING:
    from cloud.storage.samples import Sample
    from experiments.peer.config import PeerConfig
    from experiments.peer.training.task import TaskRunner
    from experiments.pipeline.errors import BadSampleError
    from experiments.pipeline.pipeline import Item, Pipeline
    from experiments.tasks.protocol import Batch

_EVALUATION_BATCHES = 3
_MOST_GENERATED = 4096  # training samples; more steps repeat them
_ALL_BAD = 100  # samples: with so many at the start and no good one, the pipeline does not fit the data
_HELDOUT_SEED = 0  # as of a peer's held-out samples
_BLOCK_BYTES = 512  # of a tar
_COMPILED = (
    "TORCHINDUCTOR_CACHE_DIR"  # torch makes this folder, by default in the temporary one, and leaves it there
)
_SAME = 1e-5  # relative difference of two evaluations of the same model


class TrialError(OrchError):
    """The trial failed; the message says where, and what to correct."""


@dataclass(frozen=True, slots=True)
class Trial:
    """What a trial measured. Times are wall-clock times of this machine, sizes bytes."""

    experiment: str
    task: str
    device: str
    threads: int  # of torch on the CPU
    parameters: int  # that are trained
    shard: str
    generated: bool  # the samples were generated here, because the embedded store is empty before a launch
    batch_size: int
    samples_read: int  # of both splits
    samples_repeated: bool  # the shard has fewer samples than the steps needed
    stored_bytes: Estimate  # of a training sample in the shard, with the tar's headers
    decoded_bytes: Estimate  # of what the pipeline makes of it
    decode_s: Estimate  # a sample, with one worker; without the first, if there are more
    step_s: Estimate  # without the first step, if there are more
    samples_per_s: Estimate  # of these steps
    compile_s: (
        float | None
    )  # of the step that compiled the model, which is not among those; None: it is not compiled
    losses: tuple[float, ...]
    evaluated: str  # the shard of the evaluation
    evaluated_samples: int
    metrics: Mapping[str, float]
    saved_bytes: int
    peak_rss_bytes: int  # of this process, Python and torch included
    peak_gpu_bytes: int | None  # None: no GPU
    bad_samples: int
    first_bad: BadSampleError | None


@dataclass(slots=True)
class _Decoding:
    """Samples decoded so far."""

    stored_bytes: list[float] = field(default_factory=list)
    decoded_bytes: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    bad: int = 0
    first_bad: BadSampleError | None = None
    repeated: bool = False

    @property
    def samples(self) -> int:
        """Good and bad ones."""
        return len(self.seconds) + self.bad


def try_experiment(
    spec: ExperimentSpec,
    *,
    steps: int,
    batch_size: int | None,
    clock: Callable[[], float] = time.perf_counter,
) -> Trial:
    """Try the experiment for some steps. `batch_size`: instead of the experiment's.

    Raises TrialError for what is wrong with the task or its samples, UsageError for an emulated model and for files that
    cannot be shipped, StorageError.
    """
    _refuse_emulated(spec)
    size = batch_size or spec.swarm.batch_size
    with tempfile.TemporaryDirectory(prefix="orch-try-") as made:
        folder = Path(made).resolve()
        code = copied_code(spec, folder)
        with as_on_a_peer(spec, folder), contextlib.redirect_stdout(sys.stderr):
            from experiments.peer.config import PeerConfigError
            from experiments.pipeline.errors import BadSampleError, PipelineError, describe_error
            from experiments.tasks.errors import TaskError

            try:
                trial = _tried(spec, lone_config(spec, code, folder, size), folder, steps, clock)
            except (TaskError, PipelineError, PeerConfigError, TrialError) as error:
                raise TrialError(_with_own_paths(str(error), code, folder)) from error
            except SystemExit as error:
                text = _with_own_paths(describe_error(error), code, folder)
                raise TrialError(
                    f"the code of task {spec.trains} ends the process ({text}); remove the call"
                ) from error
            if (bad := trial.first_bad) is None:
                return trial
            reason = _with_own_paths(bad.reason, code, folder)
            return replace(trial, first_bad=BadSampleError(bad.shard, bad.key, bad.op, reason))


def _with_own_paths(text: str, code: TaskCode | None, folder: Path) -> str:
    return text if code is None else code.with_own_paths(text, folder)


def is_emulated(spec: ExperimentSpec) -> bool:
    """Whether a small network takes the place of the experiment's model."""
    from experiments.peer.training.emulated_model import DIGITS

    return spec.task is None and spec.model not in DIGITS and spec.emulation is not None


def _refuse_emulated(spec: ExperimentSpec) -> None:
    if is_emulated(spec):
        raise UsageError(
            f"{spec.name}: the model {spec.model} is emulated by a small network, so there is nothing to try; "
            "give a task (docs/tasks.md), or `emulation: null`"
        )


def copied_code(spec: ExperimentSpec, folder: Path) -> TaskCode | None:
    """Copy the task's files into `folder`, as a peer gets them; returns where they come from. None: no task."""
    if spec.task is None:
        return None
    try:
        code = task_code(spec, spec.task)
        code.copied(folder)
    except TaskFilesError as error:
        raise UsageError(f"{spec.name}: task: {error}") from error
    return code


@contextlib.contextmanager
def as_on_a_peer(spec: ExperimentSpec, folder: Path) -> Iterator[None]:
    """Make `folder` the current one and its code importable; afterwards, forget the modules that came from there."""
    from experiments.pipeline.op import function_at

    before, path, known = Path.cwd(), list(sys.path), set(sys.modules)
    sys.path[:0] = [str(wheel) for line in spec.requirements for wheel in local_wheels(line)]
    if (folder / CODE).is_dir():
        sys.path.insert(0, str(folder / CODE))
    importlib.invalidate_caches()
    os.chdir(folder)
    compiled = os.environ.get(_COMPILED)
    os.environ.setdefault(_COMPILED, str(folder / "compiled"))
    try:
        yield
    finally:
        os.chdir(before)
        if compiled is None:
            os.environ.pop(_COMPILED, None)
        sys.path[:] = path
        for name in set(sys.modules) - known:
            if str(getattr(sys.modules[name], "__file__", None) or "").startswith(f"{folder}{os.sep}"):
                del sys.modules[name]
        function_at.cache_clear()


def lone_config(spec: ExperimentSpec, code: TaskCode | None, folder: Path, batch_size: int) -> PeerConfig:
    """The config of a peer that trains alone, at full scale; paths of files are absolute, so that errors show them."""
    from experiments.peer.config import PeerConfig
    from experiments.schema.shards import shard_urls

    swarm, call = spec.swarm, None if code is None else code.call
    return PeerConfig(
        run_id="",
        vm="",
        slot="",
        generation=0,
        listen_address="",
        listen_port=0,
        initial_peers=(),
        expected_peers=1,
        barrier_timeout_s=0.0,
        target_batch_size=swarm.target_batch_size,
        batch_size=batch_size,
        coalesce=1,
        max_epochs=0,
        compression=swarm.compression,
        optimizer=swarm.optimizer.as_mapping(),
        schedule={} if swarm.schedule is None else swarm.schedule.as_mapping(spec.measure.all_epochs),
        clip_norm=swarm.clip_norm,
        precision=swarm.precision,
        gradient_checkpointing=swarm.gradient_checkpointing,
        compile=swarm.compile,
        matchmaking_time_s=swarm.matchmaking_time_s,
        averaging_timeout_s=swarm.averaging_timeout_s,
        next_chunk_timeout_s=0.0,
        request_timeout_s=0.0,
        dht_timeout_s=0.0,
        part_size_bytes=0,
        model=spec.trains,
        emulated=False,
        parameters=0 if spec.model is None else models()[spec.model].parameters,
        forward_s=0.0,
        backward_s=0.0,
        sync_work_s=0.0,
        seed=spec.seed,
        endpoint=spec.data.endpoint,
        region=spec.data.region,
        shards=shard_urls(spec.data.shards),
        heldout_shards=shard_urls(spec.data.heldout) if spec.data.heldout else (),
        cache_bytes=0,
        plain=True,
        task=None if call is None else {"call": call.call, "with": _settings(call, folder)},
        code_folder="" if code is None else CODE,
        pipeline="" if call is None else call.pipeline,
        stored=spec.data.stored,
        threads=0 if spec.emulation is None else 1,  # a local run's peers share this machine's cores
    )


def _settings(call: TaskCall, folder: Path) -> dict[str, Any]:
    """The task's settings; files that are copied with it by their absolute path."""
    return {
        key: str(folder / value)
        if key in FILE_SETTINGS and isinstance(value, str) and value.startswith(f"{CODE}/")
        else value
        for key, value in call.settings.items()
    }


def _with_stored_files(spec: ExperimentSpec, config: PeerConfig, folder: Path) -> PeerConfig:
    """Read the files of settings that lie in the store. Raises UsageError before there is one, StorageError."""
    from experiments.peer.training.stored_settings import with_stored_files

    if not spec.data.endpoint and spec.task is not None and (urls := stored_files(spec.task.settings)):
        key, url = next(iter(urls.items()))
        raise UsageError(
            f"{spec.name}: task.with.{key}: {url} cannot be read, because the embedded store is made by a launch; give a path, "
            "or set data.endpoint"
        )
    return with_stored_files(config, folder, open_store(spec))


def _tried(
    spec: ExperimentSpec, config: PeerConfig, folder: Path, steps: int, clock: Callable[[], float]
) -> Trial:
    import torch

    from experiments.peer.training.task import build_runner, evaluation_samples
    from experiments.peer.training.task_data import use_stored_values

    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
    runner = build_runner(_with_stored_files(spec, config, folder))
    train = min(steps * config.batch_size, max(_MOST_GENERATED, config.batch_size))
    evaluated = _EVALUATION_BATCHES * evaluation_samples(config)
    generated = not spec.data.endpoint
    open_shard = (
        open_generated(spec, folder / "data", train=train, heldout=evaluated)
        if generated
        else open_store(spec)
    )
    use_stored_values(config, runner, open_shard)
    shard, decoding, decoding_heldout = first_shard(spec.data.shards), _Decoding(), _Decoding()
    with torch_threads(config.threads), torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        items = _repeated(shard, open_shard, runner.pipeline, config.seed, decoding, clock)
        with contextlib.closing(items):
            losses, seconds, compile_s = train_steps(config, runner, items, steps, clock)
        heldout = first_shard(spec.data.heldout) if spec.data.heldout else shard
        batches, evaluated = _evaluation_batches(
            heldout, open_shard, runner, evaluation_samples(config), decoding_heldout, clock
        )
        metrics = runner.evaluate(batches)
        check_metric(spec, runner.ran, metrics)
        saved_bytes = _saved(config, runner, folder / "model", batches, metrics)
        threads = torch.get_num_threads()
    timed, decoded = (_without_first(times) for times in (seconds, decoding.seconds))
    return Trial(
        experiment=spec.name,
        task=runner.ran,
        device=str(runner.device),
        threads=threads,
        parameters=sum(parameter.numel() for parameter in runner.parameters()),
        shard=shard,
        generated=generated,
        batch_size=config.batch_size,
        samples_read=decoding.samples + decoding_heldout.samples,
        samples_repeated=decoding.repeated,
        stored_bytes=_known(mean_interval(decoding.stored_bytes)),
        decoded_bytes=_known(mean_interval(decoding.decoded_bytes)),
        decode_s=_known(mean_interval(decoded)),
        step_s=_known(mean_interval(timed)),
        samples_per_s=_known(ratio_interval([float(config.batch_size)] * len(timed), timed)),
        compile_s=compile_s,
        losses=tuple(losses),
        evaluated=heldout,
        evaluated_samples=evaluated,
        metrics=metrics,
        saved_bytes=saved_bytes,
        peak_rss_bytes=_peak_rss_bytes(),
        peak_gpu_bytes=torch.cuda.max_memory_allocated() if runner.device.type == "cuda" else None,
        bad_samples=decoding.bad + decoding_heldout.bad,
        first_bad=decoding.first_bad or decoding_heldout.first_bad,
    )


def check_metric(spec: ExperimentSpec, ran: str, evaluated: Mapping[str, float]) -> None:
    """Raises TrialError if `train.until.metric` is no figure of the evaluation."""
    until = None if spec.train is None else spec.train.until
    if until is None or until.metric is None or until.metric.name in evaluated:
        return
    name = until.metric.name
    raise TrialError(
        f"train.until.metric.name: task {ran} does not evaluate {name!r}, so that goal is never reached; use one of "
        f"{', '.join(evaluated)}{nearest(name, evaluated)}"
    )


def _items(
    shard: str,
    open_shard: OpenShard,
    pipeline: Pipeline,
    seed: int,
    decoding: _Decoding,
    clock: Callable[[], float],
    pass_number: int = 0,
) -> Generator[Item, None, None]:
    """Decode the samples of a shard in order; bad ones are counted and left out.

    Raises StorageError, PipelineError, TrialError if the shard has no good sample.
    """
    from cloud.storage.errors import CorruptShardError
    from cloud.storage.samples import read_shard
    from experiments.pipeline.errors import BadSampleError

    good = bad = 0
    first: BadSampleError | None = None
    for sample in read_shard(shard, open_shard(shard)):
        began = clock()
        try:
            item = pipeline.run(sample, seed, pass_number)
        except BadSampleError as error:
            bad, first = bad + 1, first or error
            decoding.bad, decoding.first_bad = decoding.bad + 1, decoding.first_bad or error
            if not good and bad >= _ALL_BAD:
                break
            continue
        decoding.seconds.append(clock() - began)
        decoding.stored_bytes.append(float(_stored_bytes(sample)))
        decoding.decoded_bytes.append(float(sum(map(_size_bytes, item.values()))))
        good += 1
        yield item
    if first is not None and not good:
        raise TrialError(
            f"the first {bad} samples are all bad, so the pipeline does not fit the data: {first}"
        )
    if not good:
        raise CorruptShardError(shard, 0, "the tar contains no samples")


def _repeated(
    shard: str,
    open_shard: OpenShard,
    pipeline: Pipeline,
    seed: int,
    decoding: _Decoding,
    clock: Callable[[], float],
) -> Generator[Item, None, None]:
    """Yield the items of a shard, pass after pass. Only those of the first pass are counted."""
    yield from _items(shard, open_shard, pipeline, seed, decoding, clock)
    decoding.repeated = True
    for number in count(1):
        yield from _items(shard, open_shard, pipeline, seed, _Decoding(), clock, number)


def train_steps(
    config: PeerConfig, runner: TaskRunner, items: Iterator[Item], steps: int, clock: Callable[[], float]
) -> tuple[list[float], list[float], float | None]:
    """Train; returns the loss and the seconds of each step, from moving the batch to the optimizer's end.

    The third is the seconds of compiling the model, None without it. Each step counts as an epoch, so the first ones have the
    rates of a run's first ones.
    """
    from experiments.peer.optimizer.build import torch_optimizer_of
    from experiments.peer.optimizer.update_rule import update_rule_of

    optimizer = torch_optimizer_of(config.optimizer)(runner.parameter_groups())
    losses: list[float] = []
    seconds: list[float] = []
    rule = update_rule_of(config, optimizer)
    compile_s: float | None = None
    for step in range(1, steps + 1):
        collated = runner.collate([next(items) for _ in range(config.batch_size)])
        if runner.compiles and compile_s is None:
            compile_s = runner.compile_with(collated)
        began = clock()
        loss = runner.loss(runner.move(collated))
        runner.backward(loss)
        rule.apply(step)
        optimizer.step()
        optimizer.zero_grad()
        runner.wait()
        seconds.append(clock() - began)
        losses.append(float(loss.detach()))
        runner.check_loss(losses[-1], ())
    return losses, seconds, compile_s


def _evaluation_batches(
    shard: str,
    open_shard: OpenShard,
    runner: TaskRunner,
    size: int,
    decoding: _Decoding,
    clock: Callable[[], float],
) -> tuple[list[Batch], int]:
    """The first batches of a shard, and their number of samples."""
    items = _items(shard, open_shard, runner.heldout_pipeline, _HELDOUT_SEED, decoding, clock)
    held: list[Item] = []
    with contextlib.closing(items):
        for item in items:
            held.append(item)
            if len(held) == _EVALUATION_BATCHES * size:
                break
    return [runner.collate(held[at : at + size]) for at in range(0, len(held), size)], len(held)


def _saved(
    config: PeerConfig,
    runner: TaskRunner,
    folder: Path,
    batches: Sequence[Batch],
    metrics: Mapping[str, float],
) -> int:
    """Save the model, load it again, and check that it evaluates the same. Returns the bytes of its files.

    Raises TaskError, also for what the task's save_files raises.
    """
    from experiments.peer.training.task import TaskRunner, build_runner
    from experiments.pipeline.errors import PipelineError
    from experiments.pipeline.pipeline import describe_error
    from experiments.tasks import saving
    from experiments.tasks.errors import TaskError

    try:
        saving.save(runner.task, folder, source=config.task)
    except (TaskError, PipelineError):
        raise
    except Exception as error:
        raise TaskError(f"task {runner.ran}: its model cannot be saved: {describe_error(error)}") from error
    if config.task is None:
        again = build_runner(config)
        saving.load_weights(again.task, folder / saving.WEIGHTS_FILE)
    else:
        again = TaskRunner(
            saving.load(folder), runner.device, runner.ran, config.batch_size, precision=config.precision
        )
    found = again.evaluate(batches)
    for name in sorted({*metrics, *found}):
        before, after = metrics.get(name, math.nan), found.get(name, math.nan)
        if not math.isclose(before, after, rel_tol=_SAME, abs_tol=_SAME):
            raise TaskError(
                f"task {runner.ran}: the saved and loaded model evaluates to another {name}, {after:.6g} instead of "
                f"{before:.6g}; keep what the evaluation needs in parameters or buffers (register_buffer), use no randomness "
                "in evaluate, and build the same model from the same settings"
            )
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


@contextlib.contextmanager
def torch_threads(count: int) -> Iterator[None]:
    """Let torch use this many threads on the CPU; 0: as many as it uses anyway."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(count or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _without_first(seconds: list[float]) -> list[float]:
    """Leave out the first time, which includes imports and allocations, unless it is the only one."""
    return seconds[1:] or seconds


def _known(estimate: Estimate | None) -> Estimate:
    assert estimate is not None  # there is a step and a good sample
    return estimate


def _stored_bytes(sample: Sample) -> int:
    """Bytes of a sample in its tar: its members, padded to blocks, with a header each."""
    members = [value for key, value in sample.items() if not key.startswith("__")]
    return sum(_BLOCK_BYTES + -(-len(data) // _BLOCK_BYTES) * _BLOCK_BYTES for data in members)


def _size_bytes(value: Any) -> int:
    """Bytes of a pipeline's value: bytes, a text (in UTF-8), a number (8), an image or an array."""
    match value:
        case bytes():
            return len(value)
        case str():
            return len(value.encode("utf-8", "surrogatepass"))
        case int() | float():
            return 8
        case _ if hasattr(value, "nbytes"):
            return int(value.nbytes)
    return len(value.tobytes())  # an image of PIL


def _peak_rss_bytes() -> int:
    """The most memory that this process has held so far."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
