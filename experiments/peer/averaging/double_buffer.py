"""Hivemind's GradientAverager with two sets of gradient buffers: a round uses one while backward fills the other.

All of it runs in the peer's own process. A retried round loads its gradients again, so they must not change meanwhile.
Instead of copying them, the buffers are swapped.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
from hivemind.optim.grad_averager import GradientAverager


class DoubleBufferedAverager(GradientAverager):
    """Requires `reuse_grad_buffers=True`. Behaves like Hivemind's until `reserve_gradients` is called."""

    _aside: list[torch.Tensor] | None = None  # a round's accumulated gradients
    _spare: list[torch.Tensor] | None = None  # zeros

    def reserve_gradients(self) -> None:
        """Reserve the accumulated gradients for a round; backward accumulates in the other buffers from now on."""
        spare = self._spare or [torch.zeros_like(gradient) for gradient in self._grads_from_parameters()]
        self._aside, self._spare = self._exchanged(spare), None

    @contextlib.contextmanager
    def round_gradients_in_place(self) -> Iterator[None]:
        """Make the round's buffers the parameters' `.grad`, for the optimizer's step."""
        assert self._aside is not None, "no round's gradients are set aside"
        ahead = self._exchanged(self._aside)
        try:
            yield
        finally:
            self._exchanged(ahead)

    def begin_next_epoch(self, samples: int, times: int) -> None:
        """Release the round's gradients, used or dropped. Since the round began, `times` steps accumulated `samples`."""
        assert self._aside is not None, "no round's gradients are set aside"
        for gradient in self._aside:
            gradient.zero_()
        self._spare, self._aside = self._aside, None
        self.local_samples_accumulated, self.local_times_accumulated = samples, times
        self._accumulators_used_in_step, self._anchor_batch_size = False, None

    def _exchanged(self, buffers: list[torch.Tensor]) -> list[torch.Tensor]:
        """Make these buffers the parameters' gradients. Returns the previous ones."""
        before = list(self._grads_from_parameters())
        for parameter, buffer in zip(self.parameters, buffers, strict=True):
            parameter.grad = buffer
        return before

    def _grad_accumulators(self) -> Iterator[torch.Tensor]:
        if self._aside is None:
            yield from super()._grad_accumulators()
        else:
            yield from self._aside
