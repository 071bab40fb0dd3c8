"""Optimizer for a plain training loop with a single peer: a torch optimizer without averaging."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import Any, Protocol

import hivemind
import torch

from experiments.peer.config import PeerConfig
from experiments.peer.optimizer.build import torch_optimizer_of
from experiments.peer.optimizer.progress_tracker import PunctualTracker
from experiments.peer.optimizer.swarm_optimizer import Round
from experiments.peer.optimizer.update_rule import update_rule_of


class _Progress(Protocol):
    """The part of `PunctualTracker` used by a plain loop to report its progress to the monitor."""

    def report_local_progress(self, local_epoch: int, samples_accumulated: int) -> None: ...
    def update_epoch(self, new_epoch: int) -> int: ...
    def pause_updates(self) -> AbstractContextManager[None]: ...
    def hold(self, held: bool) -> None: ...
    def shutdown(self, timeout: float | None = None) -> None: ...


class PlainOptimizer:
    """A torch optimizer with the part of `SwarmOptimizer`'s interface that the training loop uses.

    Gradients accumulate in the .grad buffers. When the target batch size is reached, the optimizer steps with their mean
    and the epoch ends. Nothing is synchronised: an epoch consists of calculation only.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        tracker: Any,
        target_batch_size: int,
        before_step: Callable[[int], None] = lambda epoch: None,
    ) -> None:
        """`tracker`: a `hivemind.ProgressTracker`, whose reports the monitor reads. `before_step`: called with the epoch
        that a step ends.
        """
        self.tracker = tracker
        self._progress: _Progress = tracker
        self._optimizer, self._target, self._before_step = optimizer, target_batch_size, before_step
        self.local_epoch, self._samples, self._steps = 0, 0, 0
        # never called, since there are no rounds
        self.on_round_begins: Callable[[], None] | None = None
        self.on_gradients_taken: Callable[[], None] | None = None  # called before a step takes the gradients
        self.stopped: Callable[[], bool] = lambda: False
        self._ended = False

    def step(self, *, batch_size: int) -> None:
        """Count the samples whose mean gradient `backward` has just added to the buffers."""
        self._samples, self._steps = self._samples + batch_size, self._steps + 1
        # Also of the step that ends the epoch: one step may be a whole epoch, and the peer must be seen to train.
        self._progress.report_local_progress(self.local_epoch, self._samples)
        if self._samples < self._target:
            return
        with self._progress.pause_updates():
            if self.on_gradients_taken is not None:
                self.on_gradients_taken()
            for parameter in self._parameters():
                if parameter.grad is not None:
                    parameter.grad.div_(self._steps)
            self._before_step(self.local_epoch + 1)
            self._optimizer.step()
            self._optimizer.zero_grad(set_to_none=False)
            self._samples, self._steps, self._ended = 0, 0, True
            self.local_epoch = self._progress.update_epoch(self.local_epoch + 1)

    @property
    def torch_optimizer(self) -> torch.optim.Optimizer:
        """The optimizer that steps."""
        return self._optimizer

    @property
    def lineage(self) -> str:
        """Empty: there are no rounds."""
        return ""

    def start_at(self, epoch: int, lineage: str) -> None:
        """Go on from weights and statistics of this epoch, which were just loaded. Call it before the first step."""
        with self._progress.pause_updates():
            self.local_epoch = self._progress.update_epoch(epoch)

    def take_round(self) -> Round:
        """Return what happened since the last call: a group of one if an epoch ended."""
        ended, self._ended = self._ended, False
        return Round(group_size=1 if ended else 0)

    def prepare_round(self) -> None:
        """Do nothing: there are no rounds."""

    @property
    def round_scheduled(self) -> bool:
        """Always False: there are no rounds."""
        return False

    def hold(self, held: bool) -> None:
        """Report to the monitor whether samples are being added."""
        self._progress.hold(held)

    def leave_round(self, timeout_s: float) -> None:
        """Do nothing: there are no rounds."""

    def withdraw_progress(self, timeout_s: float) -> None:
        """Withdraw this peer's progress report. It must not train afterwards."""
        self._progress.shutdown(timeout_s)

    def shutdown(self) -> None:
        """Stop reporting."""
        self._progress.shutdown(2.0)

    def _parameters(self) -> Iterable[torch.nn.Parameter]:
        return (p for group in self._optimizer.param_groups for p in group["params"])


def build_plain(
    config: PeerConfig, dht: hivemind.DHT, parameters: Iterable[torch.nn.Parameter | dict[str, Any]]
) -> PlainOptimizer:
    """Build the plain loop's optimizer. It reports progress like a swarm's peer. Raises PeerConfigError.

    `parameters`: parameters or groups of them, as torch.optim takes them.
    """
    optimizer = torch_optimizer_of(config.optimizer)(list(parameters))
    tracker = PunctualTracker(
        dht=dht,
        prefix=config.run_id,
        target_batch_size=config.target_batch_size,
        default_refresh_period=0.5,
        max_refresh_period=5.0,
        metadata_expiration=30.0,
        start=True,
    )
    tracker.samples_per_step = config.samples_per_step
    return PlainOptimizer(
        optimizer, tracker, config.target_batch_size, update_rule_of(config, optimizer).apply
    )
