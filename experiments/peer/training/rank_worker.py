"""The process of an accelerator other than a VM's first: it accumulates gradients of the batches that the peer sends it."""

from __future__ import annotations

import math
import os
import pickle
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from experiments.peer.config import PeerConfig
from experiments.peer.processes import die_with_parent
from experiments.peer.training.rank_group import RankGroup
from experiments.peer.training.task import TaskRunner, build_runner, use_code_folder
from experiments.pipeline.errors import describe_error
from experiments.tasks.protocol import Batch, TaskError


@dataclass(frozen=True)
class Accumulate:
    """Add the gradients of a batch if its loss is finite. The peer checks the losses of all ranks."""

    batch: Batch


@dataclass(frozen=True)
class AverageGradients:
    """Take part in `RankGroup.average_gradients`."""


@dataclass(frozen=True)
class CopyModel:
    """Take part in `RankGroup.copy_from_first`. `drop_gradients`: set this rank's to zero."""

    drop_gradients: bool


@dataclass(frozen=True)
class Compile:
    """Compile the model with this batch."""

    batch: Batch


@dataclass(frozen=True)
class Ready:
    """The rank has built its model, or compiled it."""


@dataclass(frozen=True)
class Accumulated:
    """The loss of a batch, and how many steps' gradients this rank has dropped so far, because they were not finite."""

    loss: float
    dropped: int


@dataclass(frozen=True)
class Failed:
    """Why the rank ends. `by_task`: the user's task is the cause."""

    reason: str
    by_task: bool


Order = Accumulate | AverageGradients | CopyModel | Compile
Answer = Ready | Accumulated | Failed


def run_rank(
    parent: int, rank: int, config: PeerConfig, folder: Path, meeting: Path, orders: Any, answers: Any
) -> None:
    """Carry out `orders` (a queue of pickled `Order`) until the peer ends this process. `answers`: a queue of `Answer`."""
    die_with_parent(parent)
    os.chdir(folder)
    torch.set_num_threads(config.threads or threads_of_rank(config.ranks))
    try:
        use_code_folder(config, folder)
        task = build_runner(config, rank)
        answers.put(Ready())
        group = RankGroup(rank, config.ranks, meeting, task.device)
        while True:
            _carry_out(pickle.loads(orders.get()), task, group, config.coalesce, answers)
    except Exception as error:  # noqa: BLE001 - raised in the peer
        reason = str(error) if isinstance(error, TaskError) else describe_error(error)
        answers.put(Failed(reason, isinstance(error, TaskError)))


def threads_of_rank(ranks: int) -> int:
    """Torch's threads on the CPU of each of the VM's processes."""
    return max(1, len(os.sched_getaffinity(0)) // ranks)


def _carry_out(order: Order, task: TaskRunner, group: RankGroup, coalesce: int, answers: Any) -> None:
    match order:
        case Accumulate(batch):
            loss = task.loss(task.move(batch))
            value = float(loss.detach())
            if math.isfinite(value):
                task.backward(loss / coalesce)
            task.wait()
            answers.put(Accumulated(value, task.precision.dropped))
        case Compile(batch):
            task.compile_with(batch)
            answers.put(Ready())
        case AverageGradients():
            group.average_gradients(task.parameters())
        case CopyModel(drop_gradients):
            group.copy_from_first(task.state())
            if drop_gradients:
                task.model.zero_grad(set_to_none=False)
