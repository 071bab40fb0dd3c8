"""hivemind's GradientAverager with a second set of gradient buffers: a round's, while backward fills the next epoch's.

All of it runs in the peer's own process. A round that is tried again loads its gradients anew, so they must stay as they
were; nothing is copied for it, the buffers change places.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
from hivemind.optim.grad_averager import GradientAverager


class AsideAverager(GradientAverager):
    """Made with `reuse_grad_buffers=True`; until `set_aside` is called it is Hivemind's."""

    _aside: list[torch.Tensor] | None = None  # a round's gradients, as they were accumulated
    _spare: list[torch.Tensor] | None = None  # zeros

    def set_aside(self) -> None:
        """What was accumulated is a round's from now on; what backward adds goes into other buffers."""
        spare = self._spare or [torch.zeros_like(gradient) for gradient in self._grads_from_parameters()]
        self._aside, self._spare = self._exchanged(spare), None

    @contextlib.contextmanager
    def aside_in_place(self) -> Iterator[None]:
        """For the optimizer's step: the round's buffers are the parameters' `.grad` meanwhile."""
        assert self._aside is not None, "no round's gradients are set aside"
        ahead = self._exchanged(self._aside)
        try:
            yield
        finally:
            self._exchanged(ahead)

    def begin_with(self, samples: int, times: int) -> None:
        """The round's gradients are used or dropped; in `times` steps `samples` were accumulated since it began."""
        assert self._aside is not None, "no round's gradients are set aside"
        for gradient in self._aside:
            gradient.zero_()
        self._spare, self._aside = self._aside, None
        self.local_samples_accumulated, self.local_times_accumulated = samples, times
        self._accumulators_used_in_step, self._anchor_batch_size = False, None

    def _exchanged(self, buffers: list[torch.Tensor]) -> list[torch.Tensor]:
        """Let these be the parameters' gradients; returns those that were."""
        before = list(self._grads_from_parameters())
        for parameter, buffer in zip(self.parameters, buffers, strict=True):
            parameter.grad = buffer
        return before

    def _grad_accumulators(self) -> Iterator[torch.Tensor]:
        if self._aside is None:
            yield from super()._grad_accumulators()
        else:
            yield from self._aside
