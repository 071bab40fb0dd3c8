"""Running statistics of normalisation layers, calculated anew from weights and fixed batches.

Peers with equal weights have other running statistics (`running_mean`, `running_var`), because these follow each peer's own
batches. Before a model is evaluated or stored they are replaced by means over batches that all peers have in common
(Wu and Johnson, 2021, Rethinking "Batch" in BatchNorm, section 3, "PreciseBN"), and put back afterwards.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import torch
from torch import nn
from torch.nn.modules.batchnorm import _NormBase  # pyright: ignore[reportPrivateUsage]  # batch and instance norms
from torch.nn.parameter import is_lazy

_SEED = 0  # of what the model draws, such as dropout


def layers_with_statistics(model: nn.Module) -> list[_NormBase]:
    """The layers whose running statistics a forward pass changes now: not those in evaluation mode."""
    return [
        layer
        for layer in model.modules()
        if isinstance(layer, _NormBase)
        and layer.training
        and layer.running_mean is not None
        and not is_lazy(layer.running_mean)
    ]


@contextmanager
def recomputed(
    model: nn.Module,
    layers: Sequence[_NormBase],
    batches: int,
    forward: Callable[[int], object],
    device: torch.device,
) -> Iterator[None]:
    """Replace the layers' running statistics by the means of those of all batches; put the own ones back on leaving.

    `forward`: run the model on the batch of this number, in training mode. A layer that it does not use keeps its
    statistics. Other buffers of the model, which may follow the data too, are as before. The global generators of
    random numbers (torch, NumPy, Python) have a fixed seed meanwhile, and are as before afterwards. Call it while no
    other thread draws random numbers.
    """
    own = [{name: tensor.clone() for name, tensor in layer.named_buffers(recurse=False)} for layer in layers]
    momenta = [layer.momentum for layer in layers]
    ours = {id(tensor) for layer in layers for tensor in layer.buffers(recurse=False)}
    others = [
        (tensor, tensor.clone())
        for tensor in model.buffers()
        if id(tensor) not in ours and not is_lazy(tensor)
    ]
    gpus = [device] if device.type == "cuda" else []
    try:
        for layer in layers:
            layer.reset_running_stats()
        with torch.no_grad(), _seeded(gpus):
            for number in range(batches):
                for layer in layers:
                    layer.momentum = 1 / (number + 1)  # the mean of all so far
                forward(number)
        _restore(others)
        for layer, tensors in zip(layers, own, strict=True):
            if not _changed(layer):
                _put_back(layer, tensors)
        yield
    finally:
        _restore(others)
        for layer, momentum, tensors in zip(layers, momenta, own, strict=True):
            layer.momentum = momentum
            _put_back(layer, tensors)


@contextmanager
def _seeded(gpus: Sequence[torch.device]) -> Iterator[None]:
    """Seed the global generators, which a task's own code may use, and leave them as they were."""
    python, numpy = random.getstate(), np.random.get_state()
    with torch.random.fork_rng(gpus):
        torch.manual_seed(_SEED)
        random.seed(_SEED)
        np.random.seed(_SEED)
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(numpy)


def _changed(layer: _NormBase) -> bool:
    """Whether the statistics differ from those after `reset_running_stats`."""
    mean, variance = layer.running_mean, layer.running_var
    return mean is not None and variance is not None and not bool((mean == 0).all() and (variance == 1).all())


@torch.no_grad()
def _restore(buffers: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> None:
    for tensor, before in buffers:
        tensor.copy_(before)


@torch.no_grad()
def _put_back(layer: _NormBase, tensors: dict[str, torch.Tensor]) -> None:
    for name, tensor in layer.named_buffers(recurse=False):
        tensor.copy_(tensors[name])
