"""Several accelerators in one VM: the peer uses the first and starts a process for each of the others."""

from __future__ import annotations

import logging
import os
import queue
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

import torch
import torch.multiprocessing

from experiments.peer.config import PeerConfig
from experiments.peer.training.decoding import WorkerEndedError
from experiments.peer.training.rank_group import RankGroup
from experiments.peer.training.rank_worker import (
    Accumulate,
    Accumulated,
    Answer,
    AverageGradients,
    Compile,
    CopyModel,
    Failed,
    Order,
    Ready,
    run_rank,
    threads_of_rank,
)
from experiments.peer.training.task import TaskRunner
from experiments.pipeline.errors import describe_error
from experiments.tasks.protocol import Batch, TaskError

_log = logging.getLogger(__name__)
_START_S = 300.0
_COMPILE_S = 600.0
_LOOK_S = 0.2


@dataclass(frozen=True)
class _Rank:
    number: int
    process: Any
    orders: Any  # queue of pickled Order
    answers: Any  # queue of Answer


class Ranks:
    """The processes of a VM's other accelerators, as the peer sees them.

    Each has the peer's model. All accumulate gradients of their own batches; before a round, the peer's gradients become
    the mean of all, and after it the others get the peer's new weights.
    """

    def __init__(self, config: PeerConfig, folder: Path, temporary: Path, task: TaskRunner) -> None:
        """Start the processes and wait until they have built the model. `folder`: the config's; `temporary`: an own folder.

        The processes end with the calling thread. Raises TaskError, WorkerEndedError.
        """
        self._task = task
        self._samples: Sequence[Sequence[tuple[str, str]]] = ()  # of the batches that the ranks have
        self._dropped: dict[
            int, int
        ] = {}  # by rank: steps whose gradients were not finite and were dropped (fp16)
        torch.set_num_threads(config.threads or threads_of_rank(config.ranks))
        meeting = temporary / "ranks"
        context = torch.multiprocessing.get_context(
            "spawn"
        )  # a fork would copy locks that Hivemind's threads hold
        self._ranks: list[_Rank] = []
        for number in range(1, config.ranks):
            orders, answers = context.Queue(), context.Queue()
            arguments = (os.getpid(), number, config, folder, meeting, orders, answers)
            process = context.Process(target=run_rank, args=arguments, name=f"rank-{number}", daemon=True)
            process.start()
            self._ranks.append(_Rank(number, process, orders, answers))
        try:
            give_up_at_s = time.monotonic() + _START_S
            for rank in self._ranks:
                self._answer(rank, Ready, None, give_up_at_s)
            self._group = RankGroup(0, config.ranks, meeting, task.device)
        except BaseException:
            self.close()
            raise
        _log.info("%d accelerators of this VM train together", config.ranks)

    def compile_with(self, batch: Batch) -> None:
        """Let the other ranks compile their models with this batch. Raises TaskError, WorkerEndedError."""
        for rank in self._ranks:
            _send(rank, Compile(batch))
        give_up_at_s = time.monotonic() + _COMPILE_S
        for rank in self._ranks:
            self._answer(rank, Ready, None, give_up_at_s)

    def accumulate(self, batches: Sequence[Batch], samples: Sequence[Sequence[tuple[str, str]]]) -> None:
        """Let each of the other ranks add the gradients of its batch; returns at once. Raises TaskError.

        `samples`: (shard, key) of each sample of these batches.
        """
        self._samples = samples
        for rank, batch in zip(self._ranks, batches, strict=True):
            _send(rank, Accumulate(batch))

    def losses(self, stop: threading.Event) -> list[float] | None:
        """Wait for the batches of the last `accumulate`. Returns None if `stop` is set before they end.

        Raises WorkerEndedError, and TaskError, also for too many losses that are not finite.
        """
        found: list[float] = []
        for rank, samples in zip(self._ranks, self._samples, strict=True):
            answer = self._answer(rank, Accumulated, stop)
            if answer is None:
                return None
            self._task.check_loss(answer.loss, samples, rank.number)
            found.append(answer.loss)
            self._dropped[rank.number] = answer.dropped
        self._task.precision.others_dropped(sum(self._dropped.values()))
        return found

    def average_gradients(self) -> None:
        """Replace the peer's gradients by the mean of all ranks', whose gradients become zero. Raises WorkerEndedError."""
        self._together(AverageGradients(), lambda: self._group.average_gradients(self._task.parameters()))

    def copy_model(self, drop_gradients: bool) -> None:
        """Give the other ranks the peer's weights and buffers. `drop_gradients`: also set their gradients to zero.

        Raises WorkerEndedError.
        """
        self._together(CopyModel(drop_gradients), lambda: self._group.copy_from_first(self._task.state()))

    def close(self) -> None:
        """End the processes."""
        for rank in self._ranks:
            rank.process.kill()
        for rank in self._ranks:
            rank.process.join()

    def _together(self, order: Order, own_part: Any) -> None:
        for rank in self._ranks:
            self._check(rank)  # NCCL would wait for one that is gone until its time limit
        for rank in self._ranks:
            _send(rank, order)
        try:
            own_part()
        except RuntimeError as error:  # of torch.distributed
            for rank in self._ranks:
                self._check(rank)
            raise WorkerEndedError(f"the accelerators of this VM lost each other: {error}") from error

    def _answer(
        self, rank: _Rank, kind: type[Any], stop: threading.Event | None, give_up_at_s: float = float("inf")
    ) -> Any:
        """The rank's next answer; None if `stop` was set meanwhile."""
        while True:
            try:
                answer: Answer = rank.answers.get(timeout=_LOOK_S)
            except queue.Empty:
                if stop is not None and stop.is_set():
                    return None
                self._check(rank)
                if time.monotonic() >= give_up_at_s:
                    raise WorkerEndedError(f"accelerator {rank.number} was not ready in time") from None
                continue
            return _checked(rank, answer, kind)

    def _check(self, rank: _Rank) -> None:
        """Raise the error with which the rank ended, if it did."""
        if rank.process.is_alive():
            return
        while True:
            try:
                answer = rank.answers.get(timeout=_LOOK_S)
            except queue.Empty:
                break
            if isinstance(answer, Failed):
                _checked(rank, answer, Failed)
        raise WorkerEndedError(
            f"the process of accelerator {rank.number} ended with exit code {rank.process.exitcode}; "
            "the VM may have too little memory: lower swarm.batch_size"
        )


def _send(rank: _Rank, order: Order) -> None:
    """Send an order. It is pickled here, since the queue's thread would only print an error, and the rank be awaited."""
    try:
        data = bytes(ForkingPickler.dumps(order))
    except Exception as error:
        raise TaskError(
            f"collate gives a batch that cannot be sent to another process of this VM ({describe_error(error)}); return "
            "tensors, numbers, text, and lists, tuples or dictionaries of them"
        ) from error
    rank.orders.put(data)


def _checked(rank: _Rank, answer: Answer, kind: type[Any]) -> Any:
    if isinstance(answer, Failed):
        if answer.by_task:
            raise TaskError(answer.reason)
        raise WorkerEndedError(f"accelerator {rank.number}: {answer.reason}")
    assert isinstance(answer, kind)
    return answer
