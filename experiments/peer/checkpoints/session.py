"""Checkpoints in the course of a peer: what it begins with, what it stores between epochs, and the last one."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from experiments.checkpoints.manifest import Manifest
from experiments.checkpoints.store import CheckpointStore
from experiments.peer.checkpoints.report import CheckpointReport, RestoredEntry
from experiments.peer.checkpoints.restore import Restorer
from experiments.peer.checkpoints.schedule import Checkpointing, State, later, writing_slot
from experiments.peer.checkpoints.writer import CheckpointWriter, Trained
from experiments.peer.config import PeerConfig
from experiments.peer.optimizer.single_peer import PlainOptimizer
from experiments.peer.optimizer.swarm_optimizer import SwarmOptimizer
from experiments.peer.status import Status
from experiments.peer.swarm.membership import Membership
from experiments.peer.training.task import TaskRunner

_TAKE_OVERS = 2  # attempts to store the last checkpoint in another peer's place
_FOLDER, _RESTORED = "checkpoint", "restored"  # in the config's folder, while in use


class Checkpoints:
    """The checkpoints of one peer. All methods belong to the trainer's thread."""

    def __init__(
        self,
        config: PeerConfig,
        settings: Checkpointing,
        optimizer: SwarmOptimizer | PlainOptimizer,
        membership: Membership,
        trained: Trained,
        report: CheckpointReport,
        writer: CheckpointWriter,
        restorer: Restorer,
        *,
        ran: str,
        unix_s: Callable[[], float] = time.time,
    ) -> None:
        """`unix_s`: the swarm's clock."""
        self._config, self._settings, self._optimizer = config, settings, optimizer
        self._membership, self._trained, self._report, self._ran = membership, trained, report, ran
        self._writer, self._restorer, self._unix_s = writer, restorer, unix_s
        self._began: State | None = State(0, unix_s())  # None: others had begun before
        self._last = self._began  # stored or begun last, as far as this peer knows
        self._knows_last = True  # whether that is the newest of all peers
        self._base: Manifest | None = None  # with which training began
        self.restored_epoch: int | None = (
            None  # if training goes on from a checkpoint and not from a living swarm
        )
        self._writes_last = False
        self._found_epoch = -1  # of the last checkpoint, if another peer stored it
        self._take_overs = 0

    def prepare(self) -> None:
        """Before this peer is announced: if no other one trains, download the checkpoint with which all begin.

        Raises RestoreError, StorageError, OSError.
        """
        if not self._membership.others_train() and (fetched := self._restorer.fetch()) is not None:
            self._membership.starts_at(fetched.manifest.epoch)

    def begin(self, began: str) -> None:
        """Load the checkpoint, when the others are ready. `began`: the result of `Membership.wait_for_start`.

        A peer that joins a swarm may have downloaded one too: what the swarm is ahead is taken over afterwards. Raises
        RestoreError, StorageError, OSError.
        """
        self._set_began(None if began == "joined" else State(0, self._unix_s()))
        if began == "stopped" or (began != "joined" and self._restorer.fetch() is None):
            return
        fetched = self._restorer.fetched
        if fetched is None:
            return
        fetched, about = self._restorer.load(self._trained)
        manifest = fetched.manifest
        self._membership.starts_at(manifest.epoch)
        self._optimizer.start_at(manifest.epoch, str(about.get("lineage", "")))
        self._base = manifest
        if began != "joined":
            self._set_began(State(manifest.epoch, self._unix_s()))
            self.restored_epoch = manifest.epoch
        self._report.restored(
            RestoredEntry(
                manifest.name,
                fetched.prefix,
                manifest.epoch,
                manifest.size_bytes,
                fetched.seconds,
                self._unix_s(),
            )
        )

    def epoch_ended(self, epoch: int) -> None:
        """Between two epochs: begin a checkpoint if this peer writes and one is due.

        What is due depends on the newest one. A peer that has just become the writer finds that in the store, in the
        background, while a copy of the state waits.
        """
        if not self._writes("training"):
            self._knows_last = False
            return
        now_s = self._unix_s()
        if self._knows_last:
            if self._settings.due(epoch, now_s, self._last):
                self._last = State(epoch, now_s)
                self._make(epoch)
        elif not self._writer.busy:
            self._make(epoch, partial(self._find_due, epoch, now_s))

    def training_ended(self) -> None:
        """After the last epoch: begin the last checkpoint, if this peer writes it."""
        self._writes_last = self._writes("training", "serving")
        if self._writes_last and not self._writer.busy:
            self._make_last()

    def wait_for_last(self, stop: threading.Event) -> None:
        """Wait until the last checkpoint is stored, unless this peer is stopped. A failed one is made once more."""
        for _ in range(2):
            self._writer.wait(stop.is_set)
            if not self._writes_last or stop.is_set() or self._stored_last():
                return
            self._make_last()
        self._writer.wait(stop.is_set)

    def serve(self) -> bool:
        """While this peer serves its state after training: store the last checkpoint if the peer that was to do so is gone.

        Returns whether it is still being stored, by this peer or by the one before it in the order of writers.
        """
        if self._stored_last() or self._writer.busy:
            return self._writer.busy
        if not self._writes("training", "serving"):
            training = self._membership.slots_in("training")
            writer = writing_slot(self._settings.writers, training | self._membership.slots_in("serving"))
            return writer in training
        if self._take_overs == _TAKE_OVERS:
            return False
        self._take_overs += 1
        epoch = self._optimizer.local_epoch
        self._make(epoch, partial(self._find_last_missing, epoch))
        return True

    def close(self) -> None:
        """Stop storing."""
        self._writer.close()

    def _set_began(self, state: State | None) -> None:
        self._began = self._last = state
        self._knows_last = state is not None

    def _find_due(self, epoch: int, now_s: float) -> bool:
        """Whether a checkpoint is due after the newest one in the store. Belongs to the writer's thread."""
        newest = self._writer.newest()
        last = later(self._began, None if newest is None else State(newest.epoch, newest.made_at_s))
        due = self._settings.due(epoch, now_s, last)
        self._last = State(epoch, now_s) if due else last
        self._knows_last = True
        return due

    def _find_last_missing(self, epoch: int) -> bool:
        """Whether the newest one in the store is not of `epoch`. Belongs to the writer's thread."""
        newest = self._writer.newest()
        if newest is None or newest.epoch != epoch:
            return True
        self._found_epoch = epoch
        return False

    def _make_last(self) -> None:
        if not self._stored_last():
            self._make(self._optimizer.local_epoch)

    def _stored_last(self) -> bool:
        epoch = self._optimizer.local_epoch
        begun_with = -1 if self._base is None else self._base.epoch
        return epoch in (self._writer.stored_epoch, self._found_epoch, begun_with)

    def _writes(self, *phases: str) -> bool:
        slot = self._config.slot
        return writing_slot(self._settings.writers, self._membership.slots_in(*phases) | {slot}) == slot

    def _make(self, epoch: int, needed: Callable[[], bool] | None = None) -> None:
        config, base = self._config, self._base
        manifest = Manifest(
            run_id=config.run_id,
            epoch=epoch,
            vm=config.vm,
            slot=config.slot,
            made_at_s=0.0,
            samples=self._samples(epoch),
            ran=self._ran,
            task_sha256=task_sha256(config),
            parent=None if base is None else base.name,
            trained_with={
                "optimizer": dict(config.optimizer),
                "schedule": dict(config.schedule),
                "target_batch_size": config.target_batch_size,
            },
        )
        self._writer.begin(manifest, {"lineage": self._optimizer.lineage}, needed)

    def _samples(self, epoch: int) -> int | None:
        """Samples of the completed epochs, by the target; None: those of the run from which this one started are unknown."""
        since, before = 0, 0 if self._settings.start is None else None
        if self._base is not None:
            since, before = self._base.epoch, self._base.samples
        return None if before is None else before + (epoch - since) * self._config.target_batch_size


def task_sha256(config: PeerConfig) -> str:
    """SHA-256 of the task's code, requirements and settings; "" for a built-in model."""
    return "" if config.task is None else str(config.task.get("sha256") or "")


def build_checkpoints(
    config: PeerConfig,
    folder: Path,
    status: Status,
    optimizer: SwarmOptimizer | PlainOptimizer,
    membership: Membership,
    runner: TaskRunner,
    stop: threading.Event,
    unix_s: Callable[[], float],
) -> Checkpoints | None:
    """Build the checkpoints of the config; None if it asks for none. Raises PeerConfigError."""
    if config.checkpoint is None:
        return None
    settings, report, task = Checkpointing.of(config.checkpoint), CheckpointReport(status), config.task
    open_store = partial(
        CheckpointStore, client_settings={"endpoint": config.endpoint, "region": config.region}
    )
    source = None if task is None else {"call": task["call"], "with": dict(task.get("with", {}))}
    trained = Trained(
        runner.task, lambda: optimizer.torch_optimizer, runner.ballast, source, runner.common_statistics
    )
    writer = CheckpointWriter(
        open_store(settings.prefix), trained, folder / _FOLDER, settings.keep, report, unix_s=unix_s
    )
    restorer = Restorer(
        open_store,
        settings.prefix,
        settings.start,
        folder / _RESTORED,
        report.warn,
        task_sha256=task_sha256(config),
        stopped=stop.is_set,
    )
    return Checkpoints(
        config,
        settings,
        optimizer,
        membership,
        trained,
        report,
        writer,
        restorer,
        ran=runner.ran,
        unix_s=unix_s,
    )
