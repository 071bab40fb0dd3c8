"""Mixed precision: torch's autocast around the task's calculation, and a loss scale for fp16.

Weights, accumulated gradients and the optimizer are in float32. The loss scale belongs to one peer: its gradients are
divided by it before they are added to those that are averaged, so peers need not have the same.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager

import torch

from experiments.peer.config import PeerConfigError
from experiments.tasks.errors import TaskError

_log = logging.getLogger(__name__)
_TYPES = {"fp32": None, "bf16": torch.bfloat16, "fp16": torch.float16}
# The scale's start and changes are those of torch.amp.GradScaler. Powers of two change no digit of a gradient.
_FIRST_SCALE, _LEAST_SCALE = 2.0**16, 1.0
_GOOD_STEPS = 2000  # in a row, after which the scale is doubled
_BAD_STEPS = 20  # in a row end the run: by then the scale has been _LEAST_SCALE for some steps


class Precision:
    """The precision of a task's calculation on a device."""

    def __init__(self, name: str, device: torch.device) -> None:
        """Raises PeerConfigError for an unknown name."""
        if name not in _TYPES:
            raise PeerConfigError(f"precision: {name!r} is not one of {', '.join(_TYPES)}")
        self.name, self._device, self._type = name, device, _TYPES[name]
        self.scale = _FIRST_SCALE if name == "fp16" else 1.0
        self.dropped = 0  # accelerator steps whose gradients were not finite
        self.warn: Callable[[str], None] = lambda text: None  # called when `dropped` has grown
        self._others = 0  # dropped by the VM's other accelerators
        self._good = self._bad = 0  # steps in a row

    def autocast(self) -> AbstractContextManager[object]:
        """The context in which the task calculates its loss and its evaluation."""
        if self._type is None:
            return contextlib.nullcontext()
        return torch.autocast(self._device.type, dtype=self._type)

    def backward(self, loss: torch.Tensor, parameters: Iterable[torch.nn.Parameter]) -> bool:
        """Add the loss's gradients to the parameters' .grad; returns whether they were added.

        With fp16, gradients that are not finite are dropped. Raises TaskError after `_BAD_STEPS` such steps in a row.
        """
        if self.name != "fp16":
            loss.backward()
            return True
        finite = _add_scaled(loss, list(parameters), self.scale)
        self._good, self._bad = (self._good + 1, 0) if finite else (0, self._bad + 1)
        if not finite:
            self._overflowed()
        elif self._good == _GOOD_STEPS:
            self.scale, self._good = 2.0 * self.scale, 0
        return finite

    def others_dropped(self, count: int) -> None:
        """Count what the VM's other accelerators have dropped so far."""
        if count != self._others:
            self._others = count
            self._tell()

    def _tell(self) -> None:
        self.warn(
            f"fp16: the gradients of {self.dropped + self._others} accelerator steps were not finite and were dropped "
            f"(some at the start are normal); the loss scale is now {self.scale:g}"
        )

    def _overflowed(self) -> None:
        self.dropped += 1
        self.scale = max(_LEAST_SCALE, self.scale / 2.0)
        _log.warning("gradients are not finite and are dropped; the loss scale is now %g", self.scale)
        self._tell()
        if self._bad >= _BAD_STEPS:
            raise TaskError(
                f"the gradients of {self._bad} steps in a row were not finite in fp16, also without a loss scale; set "
                "swarm.precision: bf16, or lower optimizer.lr"
            )


def _add_scaled(loss: torch.Tensor, parameters: list[torch.nn.Parameter], scale: float) -> bool:
    """Calculate the gradients of `scale` times the loss, and add them, divided by `scale`, if all of them are finite."""
    sums = [parameter.grad for parameter in parameters]
    for parameter in parameters:
        parameter.grad = None
    try:
        (loss * scale).backward()
        gradients = [parameter.grad for parameter in parameters]
    finally:
        for parameter, before in zip(parameters, sums, strict=True):
            parameter.grad = before
    found = [gradient for gradient in gradients if gradient is not None]
    for gradient in found:
        gradient.mul_(1.0 / scale)
    if not bool(torch.isfinite(torch.nn.utils.get_total_norm(found))):
        return False
    for parameter, gradient in zip(parameters, gradients, strict=True):
        if parameter.grad is None:
            parameter.grad = gradient
        elif gradient is not None:
            parameter.grad.add_(gradient)
    return True
