"""Evaluation during training: by one peer at a time, in a thread, on a copy of the parameters.

Training waits only while the parameters are copied, between two epochs. The thread uses one of torch's CPU threads, or a
CUDA stream of its own, so that training does not wait for its work. An evaluation that becomes due while another runs is
left out.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace

import torch
from torch import nn

from cloud.storage.errors import StorageError, is_final
from experiments.peer.config import PeerConfig
from experiments.peer.training.emulated_model import DIGITS, OWN_PARAMETERS
from experiments.peer.training.loader import HeldOut
from experiments.peer.training.task import OutOfMemoryError, TaskRunner, build_runner
from experiments.tasks.protocol import Batch, TaskError

_log = logging.getLogger(__name__)


def evaluating_slot(epoch: int, every: int, slots: Sequence[str]) -> str | None:
    """The slot whose peer evaluates after `epoch`: each in turn. None: no evaluation is due.

    `every`: epochs between two evaluations; 0: none. `slots`: those that train, in the same order on all peers.
    """
    if not every or epoch % every or not slots:
        return None
    return slots[epoch // every % len(slots)]


def build_copy(config: PeerConfig) -> TaskRunner:
    """Build the task that evaluates, of the same structure as the trained one; the emulated network without its ballast.

    Must not run during training, since it may set torch's global generator, which is restored. Raises what `build_runner`
    raises.
    """
    config = replace(config, compile=False)  # evaluations are not compiled
    if config.task is None and (config.emulated or config.model in DIGITS):
        config = replace(config, parameters=OWN_PARAMETERS, matrices=())
    with torch.random.fork_rng():
        return build_runner(config)


def copy_weights(source: nn.Module, target: nn.Module) -> None:
    """Copy the parameters and buffers that `target` has from `source`. Raises TaskError if they are not of one structure."""
    given = {**dict(source.named_parameters()), **dict(source.named_buffers())}
    with torch.no_grad():
        for name, tensor in (*target.named_parameters(), *target.named_buffers()):
            if name not in given or given[name].shape != tensor.shape:
                raise TaskError(
                    f"the task was built twice with the same settings and seed, but {name} of the model differs; "
                    "make `build` depend on its arguments only, or remove data.evaluate_every_epochs"
                )
            tensor.copy_(given[name])


class _CancelledError(TaskError):
    """The evaluation was cancelled."""


class PeriodicEvaluation:
    """Evaluates copies of the trained model in one thread."""

    def __init__(
        self,
        task: TaskRunner,
        heldout: HeldOut,
        publish: Callable[[int, Mapping[str, float], int], None],
        warn: Callable[[str], None],
    ) -> None:
        """`task`: of `build_copy`. `publish` gets epoch, figures and number of samples, `warn` why there are none."""
        self._task, self._heldout, self._publish, self._warn = task, heldout, publish, warn
        self._changed = threading.Condition()
        self._epoch: int | None = None  # to be evaluated, or being evaluated
        self._ready = self._cancelled = False
        self._error: Exception | None = None
        self.evaluated = 0  # the last epoch whose figures were published
        threads = torch.get_num_threads()
        self._thread = threading.Thread(target=self._run, name="evaluation", daemon=True)
        with self._changed:
            self._thread.start()
            self._changed.wait_for(lambda: self._ready)
        torch.set_num_threads(threads)  # the other thread also set the default of threads to come

    def begin(self, epoch: int, trained: TaskRunner) -> bool:
        """Copy the model, with the statistics that peers have in common, and start its evaluation.

        Returns False if the last one still runs.
        Call it between two epochs. Raises TaskError.
        """
        with self._changed:
            if self._epoch is not None or self._cancelled:
                return False
        with trained.common_statistics():
            copy_weights(trained.model, self._task.model)
        self._task.wait()
        with self._changed:
            self._epoch = epoch
            self._changed.notify_all()
        return True

    def check(self) -> None:
        """Raise what an evaluation raised, except for failures that `warn` was told."""
        if self._error is not None:
            raise self._error

    def stop(self, limit_s: float) -> None:
        """Cancel a running evaluation and wait up to `limit_s` for its end. Nothing is published afterwards."""
        with self._changed:
            self._cancelled = True
            self._changed.notify_all()
        self._thread.join(limit_s)

    def _run(self) -> None:
        torch.set_num_threads(1)  # of this thread, once it has been asked for
        torch.get_num_threads()
        with self._changed:
            self._ready = True
            self._changed.notify_all()
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._epoch is not None or self._cancelled)
                if self._cancelled or self._epoch is None:
                    return
                epoch = self._epoch
            self._evaluate(epoch)
            with self._changed:
                self._epoch = None

    def _evaluate(self, epoch: int) -> None:
        try:
            with self._own_stream():
                figures = self._task.evaluate(self._batches())
            with self._changed:
                if self._cancelled:
                    return
                self._publish(epoch, figures, self._heldout.samples)
                self.evaluated = epoch
            values = ", ".join(f"{name} {value:.4f}" for name, value in figures.items())
            _log.info("held out after epoch %d: %s, %d samples", epoch, values, self._heldout.samples)
        except (StorageError, OutOfMemoryError) as error:
            if isinstance(error, StorageError) and is_final(error):
                self._error = error
            else:
                self._warn(f"epoch {epoch} was not evaluated: {error}")
        except _CancelledError:
            _log.info("the evaluation of epoch %d was cancelled", epoch)
        except Exception as error:  # noqa: BLE001 - `check` raises it in the training's thread
            self._error = error

    def _own_stream(self) -> AbstractContextManager[object]:
        device = self._task.device
        return torch.cuda.stream(torch.cuda.Stream(device)) if device.type == "cuda" else nullcontext()

    def _batches(self) -> Iterator[Batch]:
        for batch in self._heldout.batches():
            if self._cancelled:
                raise _CancelledError("the peer ends")
            yield batch
