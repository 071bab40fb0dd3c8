"""Writes checkpoints: a copy in host memory between two epochs, then files and upload in a background thread."""

from __future__ import annotations

import logging
import shutil
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from experiments.checkpoints.errors import CheckpointError
from experiments.checkpoints.manifest import Manifest
from experiments.checkpoints.state import StateCopy, copy_state, save_state
from experiments.checkpoints.store import CheckpointStore
from experiments.checkpoints.upload import upload
from experiments.peer.checkpoints.report import CheckpointReport, StoredEntry
from experiments.tasks.protocol import Task, TaskError

_log = logging.getLogger(__name__)
_CLOSE_S = 1.0
_LOOK_S = 0.2


@dataclass(frozen=True)
class Trained:
    """What a checkpoint consists of, and how the task is built again (`experiments.tasks.saving.save`)."""

    task: Task
    optimizer: Callable[[], torch.optim.Optimizer]
    extra: nn.ParameterList  # trained, but not part of the model
    source: Mapping[str, Any] | None = None
    # within it the model is as all peers with these weights would store it (`TaskRunner.common_statistics`)
    as_stored: Callable[[], AbstractContextManager[None]] = nullcontext

    def named_extra(self) -> dict[str, torch.Tensor]:
        """`extra` by name."""
        return {str(i): parameter for i, parameter in enumerate(self.extra)}


class CheckpointWriter:
    """Stores one checkpoint at a time. `begin` and `wait` belong to the trainer's thread."""

    def __init__(
        self,
        store: CheckpointStore,
        trained: Trained,
        folder: Path,
        keep: int,
        report: CheckpointReport,
        *,
        clock: Callable[[], float] = time.perf_counter,
        unix_s: Callable[[], float] = time.time,
    ) -> None:
        """`folder`: for the files until they are stored. `unix_s`: the swarm's clock."""
        self._store, self._trained, self._folder, self._keep = store, trained, folder, keep
        self._report, self._clock, self._unix_s = report, clock, unix_s
        self._thread: threading.Thread | None = None
        self._stopped = threading.Event()
        self._sent_bytes = 0  # not yet reported
        self.stored_epoch = -1  # of the last stored checkpoint

    @property
    def busy(self) -> bool:
        """Whether a checkpoint is being stored."""
        return self._thread is not None and self._thread.is_alive()

    def begin(
        self, manifest: Manifest, about: Mapping[str, Any], needed: Callable[[], bool] | None = None
    ) -> bool:
        """Copy the state and begin to store it. False, with a warning, while the last one is being stored or if it cannot be
        copied.

        `manifest`: without files and time. `about`: returned when the checkpoint is loaded. `needed`: asked by the background
        thread; if false, the copy is discarded.
        """
        if self.busy:
            self._report.warn(
                "busy",
                f"no checkpoint of epoch {manifest.epoch} was made, because the last one was still being stored; make them "
                "less often (checkpoint.every_epochs, every_s)",
            )
            return False
        began = self._clock()
        try:
            with self._trained.as_stored():
                copied = copy_state(
                    self._trained.task.model, self._trained.optimizer(), self._trained.named_extra(), about
                )
        except (
            CheckpointError,
            TaskError,
            RuntimeError,
            MemoryError,
        ) as error:  # RuntimeError: torch has no memory
            _log.exception("the state could not be copied")
            self._report.failed(manifest.epoch, str(error))
            return False
        copy_s = self._clock() - began
        manifest = replace(manifest, made_at_s=self._unix_s())
        self._thread = threading.Thread(
            target=self._write, args=(manifest, copied, copy_s, needed), name="checkpoint", daemon=True
        )
        self._thread.start()
        return True

    def newest(self) -> Manifest | None:
        """The newest checkpoint in the store; None if there is none, or if the store cannot be read: an upload tells why."""
        try:
            return self._store.newest()
        except Exception:  # noqa: BLE001 - training goes on, whatever it is
            _log.exception("the newest checkpoint could not be read")
            return None

    def wait(self, stopped: Callable[[], bool]) -> None:
        """Wait until nothing is being stored, or `stopped` becomes true."""
        while self.busy and not stopped():
            assert self._thread is not None
            self._thread.join(_LOOK_S)

    def close(self) -> None:
        """Stop storing. A request that hangs ends with the process."""
        self._stopped.set()
        if self._thread is not None:
            self._thread.join(_CLOSE_S)

    def _write(
        self, manifest: Manifest, copied: StateCopy, copy_s: float, needed: Callable[[], bool] | None
    ) -> None:
        if needed is not None and not needed():
            return
        began = self._clock()
        shutil.rmtree(self._folder, ignore_errors=True)
        try:
            save_state(self._folder, self._trained.task, copied, self._trained.source)
            stored = upload(self._store, self._folder, manifest, self._count, self._stopped.is_set)
        except Exception as error:  # noqa: BLE001 - training goes on, whatever it is
            if not self._stopped.is_set():
                _log.exception("the checkpoint of epoch %d was not stored", manifest.epoch)
                self._report.failed(manifest.epoch, str(error) or type(error).__name__)
            return
        finally:
            shutil.rmtree(self._folder, ignore_errors=True)
        upload_s = self._clock() - began
        sent, self._sent_bytes = self._sent_bytes, 0
        self.stored_epoch = stored.epoch
        self._report.stored(
            StoredEntry(
                stored.name, stored.epoch, stored.size_bytes, sent, copy_s, upload_s, at_s=self._unix_s()
            )
        )
        _log.info("stored checkpoint %s: copied in %.3f s, stored in %.1f s", stored.name, copy_s, upload_s)
        self._prune(stored.name)

    def _prune(self, stored: str) -> None:
        try:
            deleted = self._store.prune(self._keep, stored)
        except Exception as error:  # noqa: BLE001 - training goes on, whatever it is
            _log.exception("older checkpoints were not deleted")
            self._report.warn("prune", f"older checkpoints could not be deleted: {error}")
        else:
            _log.info("deleted %s", ", ".join(deleted) or "no older checkpoint")

    def _count(self, sent: int) -> None:
        self._sent_bytes += max(0, sent)
