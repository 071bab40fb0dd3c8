"""What every peer does right before an optimizer step: it sets the epoch's learning rate and clips the averaged gradient.

Both follow from the epoch that the step ends and from the gradient that all peers step with, so peers stay equal, whether
they averaged, stepped alone or take a missed step with a downloaded gradient (which is served unclipped). The rates in the
optimizer's groups are part of its state, so a download or a checkpoint replaces them; they are set anew before each step.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch

from experiments.learning_rate import CONSTANT, RateSchedule, RateScheduleError
from experiments.peer.config import PeerConfig, PeerConfigError

_ROUNDING = 1e-6  # as in torch's clip_grad_norm_


class UpdateRule:
    """Learning rates and clipping of one optimizer. Created before a state is loaded: its rates then are the full ones."""

    def __init__(
        self, optimizer: torch.optim.Optimizer, schedule: RateSchedule, clip_norm: float | None
    ) -> None:
        """`clip_norm`: maximum L2 norm of the gradient of all parameters; None: it is not clipped."""
        self._optimizer, self._schedule, self._clip_norm = optimizer, schedule, clip_norm
        self._rates = [group["lr"] for group in optimizer.param_groups]

    def apply(self, epoch: int) -> None:
        """Prepare the step that ends this epoch, with the averaged gradient in the parameters' .grad."""
        factor = self._schedule.factor(epoch)
        for group, rate in zip(self._optimizer.param_groups, self._rates, strict=True):
            group["lr"] = rate * factor
        if self._clip_norm is not None:
            clip([p for group in self._optimizer.param_groups for p in group["params"]], self._clip_norm)


@torch.no_grad()
def clip(parameters: Iterable[torch.nn.Parameter], clip_norm: float) -> None:
    """Shorten the parameters' gradients in place to this L2 norm in all, if they are longer.

    The sum is taken in float64 and the factor rounded to float32: the order in which a device or its threads add up must
    not make peers differ. The ballast of emulated models adds nothing, since its gradients are zero.
    """
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    if not gradients:
        return
    norms = torch.stack([torch.linalg.vector_norm(gradient, dtype=torch.float64) for gradient in gradients])
    norm = math.hypot(*norms.tolist())  # one copy from the device
    if norm > clip_norm:
        factor = float(torch.tensor(clip_norm / (norm + _ROUNDING), dtype=torch.float32))
        for gradient in gradients:
            gradient.mul_(factor)


def update_rule_of(config: PeerConfig, optimizer: torch.optim.Optimizer) -> UpdateRule:
    """Build the config's rule for an optimizer that has loaded no state. Raises PeerConfigError."""
    try:
        schedule = RateSchedule.of(config.schedule) if config.schedule else CONSTANT
    except RateScheduleError as error:
        raise PeerConfigError(f"schedule: {error}") from error
    return UpdateRule(optimizer, schedule, config.clip_norm)
