"""The data of a task: the sources of its training batches, of its held-out batches, and of batches for running statistics."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from functools import partial
from typing import BinaryIO

from cloud.storage.opener import ShardOpener
from cloud.storage.samples import Cursor
from cloud.storage.shares import shards_for
from experiments.peer.config import PeerConfig
from experiments.peer.training.bad_samples import BadSamples, LeftOut
from experiments.peer.training.decoding import Decoder, Workers
from experiments.peer.training.input_trace import SourceTrace
from experiments.peer.training.loader import HeldOut, TaskSource
from experiments.peer.training.task import TaskRunner, evaluation_samples
from experiments.pipeline.store_shards import stored_pipeline
from experiments.pipeline.trace import Recorder
from experiments.tasks.protocol import Batch

_STATISTICS_SAMPLES = 512


def use_stored_values(config: PeerConfig, task: TaskRunner, open_url: Callable[[str], BinaryIO]) -> None:
    """Let the task's training pipeline begin with the values that the shards hold, if they hold any.

    Without held-out shards, whatever is evaluated is read from the same shards. Raises PipelineError, StorageError.
    """
    if not config.stored:
        return
    task.pipeline = stored_pipeline(task.pipeline, config.shards, open_url)
    if not config.heldout_shards:
        task.heldout_pipeline = task.pipeline


def training_source(
    config: PeerConfig,
    opener: ShardOpener,
    task: TaskRunner,
    tell: Callable[[LeftOut], None],
    cursor: Cursor | None = None,
    trace: Recorder | None = None,
) -> TaskSource:
    """Make the source of training batches, of all shards at first. `tell` gets the count of bad samples.

    `cursor`: where the slot's last peer was; None: it had none. Raises PeerConfigError, BadUrlError.
    """
    return TaskSource(
        shards_for(config.slot, [config.slot], config.shards),
        opener.open,
        Decoder(task.pipeline, config.seed, trace if config.trace == "ops" else None),
        task.collate,
        Workers.of(config.workers),
        BadSamples(config.bad_samples, tell),
        cursor=cursor,
        others=config.ranks - 1,
        collate_to_send=task.collate_to_send,
        streams=config.streams,
        trace=None if trace is None else SourceTrace(trace),
    )


def held_out(
    config: PeerConfig, opener: ShardOpener, task: TaskRunner, tell: Callable[[LeftOut], None]
) -> HeldOut | None:
    """The held-out samples; None if the experiment has none. `tell` gets the count of bad ones. Raises PeerConfigError."""
    if not config.heldout_shards:
        return None
    return HeldOut(
        config.heldout_shards,
        opener.open,
        task.heldout_pipeline,
        task.collate,
        Workers.of(config.workers),
        partial(BadSamples, config.bad_samples, tell, "held-out samples"),
        evaluation_samples(config),
    )


def statistics_batches(config: PeerConfig, opener: ShardOpener, task: TaskRunner) -> tuple[Batch, ...]:
    """The first good training samples in batches, the same on all peers; none if the model has no running statistics.

    At most `_STATISTICS_SAMPLES`, in the order of the shards and decoded as in their first pass with the seed of held-out
    samples. An incomplete batch is left out if there is another. Raises StorageError, BadSampleError, PipelineError and what
    `collate` raises.
    """
    if not task.has_statistics:
        return ()
    return _first_batches(config, opener, task, evaluation_samples(config), _STATISTICS_SAMPLES)


def first_batch(config: PeerConfig, opener: ShardOpener, task: TaskRunner) -> Batch:
    """The first good training samples, as many as in a batch of an accelerator, or all if there are fewer.

    Raises what `statistics_batches` raises.
    """
    return _first_batches(config, opener, task, config.batch_size, config.batch_size)[0]


def _first_batches(
    config: PeerConfig, opener: ShardOpener, task: TaskRunner, size: int, most: int
) -> tuple[Batch, ...]:
    """Batches of `size` from the start of the training samples, at most `most` samples in all."""
    # the training itself reads these samples too, and reports the bad ones
    bad = partial(BadSamples, config.bad_samples, lambda found: None)
    data = HeldOut(
        config.shards,
        opener.open,
        task.pipeline,
        task.collate_to_send,
        Workers.of(config.workers),
        bad,
        size,
    )
    found: list[Batch] = []
    with closing(data.batches()) as batches:
        for batch in batches:
            if found and data.samples < (len(found) + 1) * size:
                break
            found.append(batch)
            if (len(found) + 1) * size > most:
                break
    return tuple(found)
