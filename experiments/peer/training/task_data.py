"""The data of a task: the sources of its training batches and of its held-out batches."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from cloud.storage.opener import ShardOpener
from cloud.storage.samples import Cursor
from cloud.storage.shares import shards_for
from experiments.peer.config import PeerConfig
from experiments.peer.training.bad_samples import BadSamples, LeftOut
from experiments.peer.training.decoding import Decoder, Workers
from experiments.peer.training.loader import HeldOut, TaskSource
from experiments.peer.training.task import TaskRunner, evaluation_samples


def training_source(
    config: PeerConfig,
    opener: ShardOpener,
    task: TaskRunner,
    tell: Callable[[LeftOut], None],
    cursor: Cursor | None = None,
) -> TaskSource:
    """Make the source of training batches, of all shards at first. `tell` gets the count of bad samples.

    `cursor`: where the slot's last peer was; None: it had none. Raises PeerConfigError, BadUrlError.
    """
    return TaskSource(
        shards_for(config.slot, [config.slot], config.shards),
        opener.open,
        Decoder(task.pipeline, config.seed),
        task.collate,
        Workers.of(config.workers),
        BadSamples(config.bad_samples, tell),
        cursor=cursor,
        others=config.ranks - 1,
        collate_to_send=task.collate_to_send,
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
