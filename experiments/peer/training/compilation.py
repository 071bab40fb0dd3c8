"""`swarm.compile`: torch.compile of a task's model, and the step that compiles it before the training."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn
from torch._inductor import config as inductor

from experiments.tasks.compiler import missing_compiler
from experiments.tasks.errors import TaskError
from experiments.tasks.protocol import Batch


def compile_in_place(
    model: nn.Module, device: torch.device, backend: str | Callable[..., Any] = "inductor"
) -> None:
    """Let calls of the model be compiled at the first one; the names of its state stay. Raises TaskError."""
    lacks = missing_compiler(device.type, os.environ)
    if lacks is not None:
        raise TaskError(lacks)
    if device.type == "cpu":
        # its few kernels do not need worker processes, which would share the VM's cores with other peers
        inductor.compile_threads = 1

    def call(*args: Any, **named: Any) -> Any:
        return model._call_impl(*args, **named)

    # as Module.compile does, which compiles nothing of a model whose class is torch's own, such as nn.Sequential:
    # its code is skipped unless a function calls it
    model._compiled_call_impl = torch.compile(call, backend=backend)


def first_step(
    model: nn.Module,
    step: Callable[[Batch], object],
    batch: Batch,
    device: torch.device,
    clock: Callable[[], float] = time.perf_counter,
) -> float:
    """Run a forward and backward pass that leaves no trace, so that the model is compiled. Returns its seconds.

    `step` adds gradients of the model's parameters. Gradients, buffers and torch's random numbers are as before
    afterwards; weights do not change. Raises TaskError, also if `step` compiled nothing.
    """
    from torch._dynamo.utils import counters

    began, compiled = clock(), counters["frames"]["ok"]
    gradients = [parameter.grad for parameter in model.parameters()]
    buffers = _buffers(model)
    before = {place: buffer.detach().clone() for place, buffer in buffers.items()}
    try:
        with torch.random.fork_rng([device] if device.type == "cuda" else []):
            model.zero_grad(set_to_none=True)
            step(batch)
    except TaskError as error:
        cause = error.__cause__
        if cause is not None and type(cause).__module__.startswith(("torch._dynamo", "torch._inductor")):
            raise TaskError(
                f"torch.compile cannot compile the model of this task: {_first_paragraph(cause)}; remove swarm.compile"
            ) from error
        raise
    finally:
        for parameter, gradient in zip(model.parameters(), gradients, strict=True):
            parameter.grad = gradient
        _restore(model, buffers, before)
    if counters["frames"]["ok"] == compiled:
        raise TaskError(
            "swarm.compile: the task's loss does not call its model, only parts of it, so nothing was compiled; call "
            "self.model(...) in loss, or remove the key"
        )
    return clock() - began


def _buffers(model: nn.Module) -> dict[tuple[nn.Module, str], torch.Tensor]:
    """All buffers by their module and name in it."""
    return {
        (module, name): buffer
        for module in model.modules()
        for name, buffer in module.named_buffers(recurse=False)
    }


@torch.no_grad()
def _restore(
    model: nn.Module,
    buffers: Mapping[tuple[nn.Module, str], torch.Tensor],
    values: Mapping[tuple[nn.Module, str], torch.Tensor],
) -> None:
    """Put back the model's buffers with their values; remove those that were registered since."""
    for module, name in _buffers(model).keys() - buffers.keys():
        delattr(module, name)
    for (module, name), buffer in buffers.items():
        value = values[module, name]
        setattr(module, name, buffer.resize_as_(value).copy_(value))


def _first_paragraph(error: BaseException) -> str:
    """The error in one line, without torch's advice on debugging it."""
    return " ".join(f"{type(error).__name__}: {error}".partition("\n\n")[0].split())
