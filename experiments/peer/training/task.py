"""Runs a task on this peer's device: moves batches, checks losses, evaluates, and explains what goes wrong."""

from __future__ import annotations

import hashlib
import logging
import math
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import nn

from cloud.storage.errors import StorageError
from experiments.peer.config import PeerConfig, PeerConfigError
from experiments.peer.training.compilation import compile_in_place, first_step
from experiments.peer.training.decoding import WorkerEndedError
from experiments.peer.training.digits_task import DigitsTask
from experiments.peer.training.emulated_model import DIGITS, ballast, build_emulated
from experiments.peer.training.precision import Precision
from experiments.peer.training.running_statistics import layers_with_statistics, recomputed
from experiments.peer.training.tensors import map_tensors
from experiments.pipeline.errors import PipelineError
from experiments.pipeline.load import pipeline_at
from experiments.pipeline.pipeline import Item, Pipeline, describe_error
from experiments.tasks.build import BUILT_IN, build
from experiments.tasks.gradient_checkpointing import no_gradient_checkpointing, offers_gradient_checkpointing
from experiments.tasks.models import VISION, build_model
from experiments.tasks.protocol import Batch, Task, TaskError
from experiments.wire.dht_records import MAX_METRICS, METRIC_NAME

_log = logging.getLogger(__name__)
_IMAGE_SIDE = 224
_EVALUATION_SAMPLES = 64  # per batch
_BAD_LOSSES = 3  # in a row end the run
_NAMED_SAMPLES = 6


class OutOfMemoryError(TaskError):
    """The memory of the device did not suffice."""


class TaskRunner:
    """A task on a device.

    What the task's methods raise becomes a TaskError with the file and line, out of memory a TaskError with advice on
    the batch size. StorageError, PipelineError and TaskError are raised as they are.
    """

    def __init__(
        self,
        task: Task,
        device: torch.device,
        ran: str,
        batch_size: int,
        *,
        pipeline: Pipeline | None = None,
        ballast: nn.ParameterList | None = None,
        precision: str = "fp32",
    ) -> None:
        """`ran`: what is reported as trained. `pipeline`: replaces those of the task, also for held-out samples.

        `ballast`: parameters that are averaged like the model's, but never used. `precision`: see `Precision`.
        """
        self.device, self.ran = device, ran
        self.precision = Precision(precision, device)
        self.pipeline = pipeline or task.pipeline
        self.heldout_pipeline: Pipeline = pipeline or getattr(task, "heldout_pipeline", None) or task.pipeline
        self._task, self._batch_size = task, batch_size
        self.ballast = ballast or nn.ParameterList()
        self._bad_losses: dict[
            int, list[Sequence[tuple[str, str]]]
        ] = {}  # by rank: samples of the last bad ones
        self.common_batches: Sequence[Batch] = ()  # the same on all peers, for `common_statistics`
        self.compiles = False  # whether training calls a compiled model
        with self._explained("the model"):
            self.model = task.model.to(device).train()
        self._trained = [parameter for parameter in self.model.parameters() if parameter.requires_grad]

    @property
    def task(self) -> Task:
        """The task that runs here."""
        return self._task

    def parameters(self) -> Iterator[nn.Parameter]:
        """The parameters that are trained and averaged."""
        yield from (parameter for parameter in self.model.parameters() if parameter.requires_grad)
        yield from self.ballast

    def parameter_groups(self) -> list[Any]:
        """The task's parameter groups as torch.optim takes them, or else its parameters. Raises TaskError."""
        make = getattr(self._task, "parameter_groups", None)
        if make is None:
            return list(self.parameters())
        with self._explained("parameter_groups"):
            groups = [{**group, "params": list(group["params"])} for group in make()]
            known = {id(parameter) for parameter in self.model.parameters() if parameter.requires_grad}
            given = [id(parameter) for group in groups for parameter in group["params"]]
        if not given or len(set(given)) != len(given) or not known.issuperset(given):
            raise TaskError(
                f"task {self.ran}: parameter_groups gives {len(given)} parameters; each must be one of the model's "
                f"{len(known)} trained parameters and be in one group only"
            )
        return [*groups, {"params": list(self.ballast)}] if len(self.ballast) else groups

    def state(self) -> Iterator[torch.Tensor]:
        """The model's parameters and buffers."""
        yield from self.model.parameters()
        yield from self.model.buffers()

    def checkpoint_gradients(self) -> None:
        """Let the model calculate activations again in the backward pass instead of keeping them. Raises TaskError."""
        if not offers_gradient_checkpointing(self.model):
            raise TaskError(f"task {self.ran}: {no_gradient_checkpointing(type(self.model).__name__)}")
        enable: Any = self.model.gradient_checkpointing_enable
        with self._explained("gradient_checkpointing_enable"):
            # the other variant gives no gradients where no input of a block requires one, as with frozen embeddings
            enable(gradient_checkpointing_kwargs={"use_reentrant": False})

    def compile(self) -> None:
        """Let training call a compiled model, which `compile_with` compiles. Evaluations do not. Raises TaskError."""
        compile_in_place(self.model, self.device)
        self.compiles = True

    def compile_with(self, batch: Batch) -> float:
        """Compile with a batch that has not been moved, by a step that changes nothing. Returns the seconds.

        Raises TaskError for a model that cannot be compiled, and what `loss` and `backward` raise.
        """

        def step(moved: Batch) -> None:
            loss = self.loss(moved)
            with self._explained("the backward pass"):
                loss.backward()  # without the loss scale, which a gradient that overflows would change
            self.wait()

        return first_step(self.model, step, self.move(batch), self.device)

    def _not_compiled(self) -> AbstractContextManager[object]:
        return torch.compiler.set_stance("force_eager") if self.compiles else nullcontext()

    @property
    def has_statistics(self) -> bool:
        """Whether training changes running statistics of the model, such as those of batch normalisation."""
        return bool(layers_with_statistics(self.model))

    @contextmanager
    def common_statistics(self) -> Iterator[None]:
        """Meanwhile the running statistics are those of `common_batches`, so equal on peers with equal weights.

        Without `common_batches` nothing changes. For the training's thread, between two steps. Raises TaskError.
        """
        batches, layers = self.common_batches, layers_with_statistics(self.model)
        if not batches or not layers:
            yield
            return

        def forward(number: int) -> None:
            batch = self.move(batches[number])
            with (
                self._explained("loss, for the running statistics,"),
                self._not_compiled(),
                self.precision.autocast(),
            ):
                self._task.loss(batch)

        with recomputed(self.model, layers, len(batches), forward, self.device):
            yield

    def start_digest(self) -> str:
        """A short digest (16 hex digits) of all parameters and buffers: equal on peers that built the same model."""
        digest = hashlib.sha256()
        for tensor in self.state():
            digest.update(tensor.detach().to("cpu").contiguous().flatten().view(torch.uint8).numpy().data)
        return digest.hexdigest()[:16]

    def collate(self, items: Sequence[Item]) -> Batch:
        """Collate items; pins the batch's memory if there is a GPU."""
        batch = self.collate_to_send(items)
        if self.device.type == "cuda":
            with self._explained("collate"):
                batch = map_tensors(torch.Tensor.pin_memory, batch)
        return batch

    def collate_to_send(self, items: Sequence[Item]) -> Batch:
        """Collate items for another process of this VM."""
        with self._explained("collate"):
            return self._task.collate(items)

    def move(self, batch: Batch) -> Batch:
        """Move the batch's tensors to the device."""
        with self._explained("moving a batch"):
            moved = map_tensors(lambda tensor: tensor.to(self.device, non_blocking=True), batch)
            self.wait()
        return moved

    def loss(self, batch: Batch) -> torch.Tensor:
        """The loss of a moved batch, checked to be a scalar with a gradient."""
        with self._explained("loss"), self.precision.autocast():
            loss: Any = self._task.loss(batch)
        if not isinstance(loss, torch.Tensor):
            raise TaskError(f"task {self.ran}: loss gives a {type(loss).__name__}, not a tensor")
        if loss.dim() != 0 or not loss.is_floating_point():
            raise TaskError(
                f"task {self.ran}: loss gives a tensor of shape {tuple(loss.shape)} and type {loss.dtype}, "
                "not one floating-point number; return the mean over the batch"
            )
        if not loss.requires_grad:
            raise TaskError(
                f"task {self.ran}: the loss has no gradient; compute it with the model's parameters, without "
                "detach(), item() or torch.no_grad()"
            )
        return loss if loss.dtype.itemsize >= 4 else loss.float()  # a scaled loss may be too large for fp16

    def backward(self, loss: torch.Tensor) -> bool:
        """Add the loss's gradients to the parameters' .grad; returns whether they were added (`Precision.backward`)."""
        with self._explained("the backward pass"):
            return self.precision.backward(loss, self._trained)

    def check_loss(self, loss: float, samples: Sequence[tuple[str, str]], rank: int = 0) -> bool:
        """Whether the loss is finite. Raises TaskError after `_BAD_LOSSES` in a row of one rank that are not.

        `samples`: (shard, key) of the batch. `rank`: the VM's accelerator that calculated the loss.
        """
        if math.isfinite(loss):
            self._bad_losses.pop(rank, None)
            return True
        bad = self._bad_losses.setdefault(rank, [])
        bad.append(samples)
        where = f" on accelerator {rank}" if rank else ""
        _log.warning("a loss of %s%s with samples %s", loss, where, ", ".join(f"{s} {k}" for s, k in samples))
        if len(bad) >= _BAD_LOSSES:
            places = [place for batch in bad for place in batch]
            named = ", ".join(f"{key} of {shard}" for shard, key in places[:_NAMED_SAMPLES])
            more = len(places) - _NAMED_SAMPLES
            raise TaskError(
                f"task {self.ran}: the loss{where} was not a finite number (now {loss}) {len(bad)} times in a row, "
                f"with samples {named}{f' and {more} others (all in peer.log)' if more > 0 else ''}; "
                f"{'set swarm.precision: bf16, ' if self.precision.name == 'fp16' else ''}"
                "lower optimizer.lr, or correct the loss or these samples"
            )
        return False

    def wait(self) -> None:
        """Wait for this thread's work on the accelerator, so that it is timed in the phase that issued it."""
        if self.device.type == "cuda":
            torch.cuda.current_stream(self.device).synchronize()

    @torch.no_grad()
    def evaluate(self, batches: Iterable[Batch]) -> dict[str, float]:
        """Evaluate batches that have not been moved. Figures that are not finite are left out: unknown."""
        self.model.eval()
        try:
            with self._explained("evaluate"), self._not_compiled(), self.precision.autocast():
                found: Any = self._task.evaluate(map(self.move, batches))
                figures = {str(name): float(value) for name, value in found.items()}
        finally:
            self.model.train()
        return _checked_figures(f"task {self.ran}: evaluate", figures)

    @contextmanager
    def _explained(self, what: str) -> Iterator[None]:
        try:
            yield
        except (StorageError, PipelineError, TaskError):
            raise
        except Exception as error:
            if _is_out_of_memory(error):
                raise OutOfMemoryError(self._out_of_memory(what)) from error
            raise TaskError(f"task {self.ran}: {what} failed: {describe_error(error)}") from error

    def _out_of_memory(self, what: str) -> str:
        place = str(self.device)
        if self.device.type == "cuda":
            properties = torch.cuda.get_device_properties(self.device)
            place = f"{properties.name} ({properties.total_memory / 1e9:.1f} GB)"
        half = self._batch_size // 2
        advice = (
            f"set swarm.batch_size: {half}" if half else "use a machine with more memory, or a smaller model"
        )
        return f"task {self.ran}: out of memory on {place} in {what} with batches of {self._batch_size} samples; {advice}"


def _is_out_of_memory(error: Exception) -> bool:
    """Whether memory of the GPU or of the host ran out; torch's allocator on the CPU raises RuntimeError."""
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or (
        isinstance(error, RuntimeError) and "DefaultCPUAllocator" in str(error)
    )


def _checked_figures(what: str, figures: Mapping[str, float]) -> dict[str, float]:
    """Keep the finite figures. Raises TaskError for names or values that cannot be published."""
    if len(figures) > MAX_METRICS:
        raise TaskError(f"{what} gives {len(figures)} figures, but at most {MAX_METRICS} can be published")
    for name, value in figures.items():
        if re.fullmatch(METRIC_NAME, name) is None:
            raise TaskError(
                f"{what} gives a figure named {name!r}; use lower-case letters, digits, '_', '-' and '.'"
            )
        if name == "accuracy" and math.isfinite(value) and not 0.0 <= value <= 1.0:
            raise TaskError(f"{what} gives an accuracy of {value:g}, which is not between 0 and 1")
    return {name: value for name, value in figures.items() if math.isfinite(value)}


def evaluation_samples(config: PeerConfig) -> int:
    """Samples in a batch of an evaluation."""
    return _EVALUATION_SAMPLES if config.task is None else min(_EVALUATION_SAMPLES, config.batch_size)


def use_code_folder(config: PeerConfig, folder: Path) -> None:
    """Put the user's files first on sys.path. `folder`: the config's. Raises PeerConfigError."""
    if not config.code_folder:
        return
    code = (folder / config.code_folder).resolve()
    if not code.is_dir():
        raise PeerConfigError(f"code_folder: {code} is not a folder")
    sys.path.insert(0, str(code))


def build_runner(config: PeerConfig, rank: int = 0) -> TaskRunner:
    """Build the config's task for this VM's accelerator number `rank`; `use_code_folder` comes first.

    Raises TaskError, PeerConfigError if it cannot run, ModelSizeError if `parameters` is too small.
    """
    runner = _build_runner(config, rank)
    if config.gradient_checkpointing:
        runner.checkpoint_gradients()
    if config.compile:
        runner.compile()
    return runner


def _build_runner(config: PeerConfig, rank: int) -> TaskRunner:
    pipeline = pipeline_at(config.pipeline) if config.pipeline else None
    if config.task is not None:
        return _build_task(config, config.task, pipeline, rank)
    if config.emulated or config.model in DIGITS:
        ran = "digits" if config.model in DIGITS else f"digits (emulates {config.model})"
        made = build_emulated(config.parameters, config.seed, config.matrices if config.emulated else ())
        return TaskRunner(
            DigitsTask(made),
            torch.device("cpu"),
            ran,
            config.batch_size,
            pipeline=pipeline,
            precision=config.precision,
        )
    try:
        network = build_model(config.model, config.seed)
    except TaskError as error:
        raise PeerConfigError(str(error)) from error
    if config.model not in VISION:
        raise PeerConfigError(
            f"model: {config.model} needs text or speech, but the shards of this version hold images; "
            f"use one of {', '.join(VISION)}, or emulate it"
        )
    task = DigitsTask(network, _IMAGE_SIDE)
    return TaskRunner(
        task,
        _device(config, rank),
        config.model,
        config.batch_size,
        pipeline=pipeline,
        precision=config.precision,
    )


def _build_task(
    config: PeerConfig, settings: Mapping[str, Any], pipeline: Pipeline | None, rank: int
) -> TaskRunner:
    call = str(settings["call"])
    ran = next((name for name, path in BUILT_IN.items() if path == call), call)
    task = build(call, settings.get("with", {}), config.seed)
    rest: nn.ParameterList | None = None
    if config.emulated:
        own = sum(parameter.numel() for parameter in task.model.parameters() if parameter.requires_grad)
        rest = ballast(config.parameters, own, config.matrices)
    device = torch.device("cpu") if config.emulated else _device(config, rank)
    return TaskRunner(
        task, device, ran, config.batch_size, pipeline=pipeline, ballast=rest, precision=config.precision
    )


def _device(config: PeerConfig, rank: int) -> torch.device:
    """The accelerator of a rank: a GPU if there are any. Raises WorkerEndedError if there are too few."""
    if not torch.cuda.is_available():
        return torch.device("cpu")
    if (found := torch.cuda.device_count()) < config.ranks:
        raise WorkerEndedError(f"this VM has {found} usable GPUs, but {config.ranks} should train together")
    return torch.device("cuda", rank) if config.ranks > 1 else torch.device("cuda")
