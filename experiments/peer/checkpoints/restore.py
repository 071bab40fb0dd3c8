"""The checkpoint with which a peer begins when no other peer trains."""

from __future__ import annotations

import logging
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from experiments.checkpoints.download import download, remove_partial
from experiments.checkpoints.errors import CheckpointError
from experiments.checkpoints.listing import Listed
from experiments.checkpoints.manifest import Manifest
from experiments.checkpoints.state import load_state
from experiments.checkpoints.store import CheckpointStore
from experiments.peer.checkpoints.schedule import Start
from experiments.peer.checkpoints.writer import Trained

_log = logging.getLogger(__name__)


class RestoreError(Exception):
    """There are checkpoints, but none can be used. Training never starts from nothing then."""


@dataclass(frozen=True)
class Fetched:
    """A downloaded and verified checkpoint."""

    manifest: Manifest
    prefix: str
    folder: Path
    seconds: float
    own: bool  # whether it is the run's, not the one that the run starts from


class Restorer:
    """Finds, downloads and loads the newest checkpoint of the run, or else the one that the run starts from."""

    def __init__(
        self,
        open_store: Callable[[str], CheckpointStore],
        prefix: str,
        start: Start | None,
        folder: Path,
        warn: Callable[[str, str], None],
        *,
        task_sha256: str,
        stopped: Callable[[], bool] = lambda: False,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """`folder`: for downloads. `task_sha256`: checkpoints of the run must be of this task."""
        self._open_store, self._prefix, self._start, self._folder = open_store, prefix, start, folder
        self._warn, self._task_sha256, self._stopped, self._clock = warn, task_sha256, stopped, clock
        self.fetched: Fetched | None = None
        self._refused: dict[str, str] = {}  # checkpoints of the run that could not be loaded, and why

    def fetch(self) -> Fetched | None:
        """Download the newest checkpoint, unless that was done before; None if there is none.

        If it cannot be used, the next older one is taken, with a warning. The store is listed again after each failed
        download: retention of a swarm that trains may have deleted what was being downloaded. Raises RestoreError if there
        are checkpoints, but none can be used; StorageError, OSError.
        """
        store, failed = self._open_store(self._prefix), dict(self._refused)
        while True:
            chosen, problems = self._newest_usable(store.list(), failed)
            if chosen is None:
                break
            try:
                return self._download(store, chosen.name, self._task_sha256)
            except CheckpointError as error:
                if self._stopped():
                    return None
                failed[chosen.name] = str(error)
        if problems or failed:
            raise RestoreError(
                f"none of the checkpoints below {self._prefix} can be used: {'; '.join(problems or failed.values())}; repair "
                "or delete them, or launch again with a new run"
            )
        if self._start is None:
            return None
        try:
            return self._download(self._open_store(self._start.prefix), self._start.name, None)
        except CheckpointError as error:
            if self._stopped():
                return None
            raise RestoreError(f"the run cannot start from the checkpoint it was given: {error}") from error

    def load(self, trained: Trained) -> tuple[Fetched, dict[str, Any]]:
        """Load what was fetched into model and optimizer, and delete the files. Returns what was loaded, and what
        `CheckpointWriter.begin` was given.

        If one of the run cannot be loaded, the next older one is fetched, with a warning. Raises RestoreError if none can be
        loaded; StorageError, OSError.
        """
        fetched = self.fetched
        while fetched is not None:
            name = fetched.manifest.name
            try:
                about = load_state(fetched.folder, trained.task, trained.optimizer(), trained.named_extra())
            except CheckpointError as error:
                if not fetched.own:
                    raise RestoreError(
                        f"checkpoint {name} cannot be loaded: {error}; start from one of the same model and optimizer, or "
                        "without it"
                    ) from error
                self._refused[name] = f"{name} cannot be loaded: {error}"
            else:
                shutil.rmtree(fetched.folder, ignore_errors=True)
                return fetched, about
            shutil.rmtree(fetched.folder, ignore_errors=True)
            self.fetched = None
            fetched = self.fetch()
        raise RestoreError(
            f"none of the checkpoints below {self._prefix} was loaded before this peer was stopped"
        )

    def _newest_usable(
        self, listed: Sequence[Listed], failed: Mapping[str, str]
    ) -> tuple[Listed | None, list[str]]:
        """The newest checkpoint to try, and what is wrong with newer ones. `failed`: problems of downloads by name."""
        problems = list[str]()
        for one in listed:
            if one.unfinished:
                continue
            if one.problem is None and one.name not in failed:
                return one, problems
            problems.append(failed.get(one.name) or str(one.problem))
            self._warn(one.name, f"a checkpoint was passed over: {problems[-1]}")
        return None, problems

    def _download(self, store: CheckpointStore, name: str, task_sha256: str | None) -> Fetched:
        if self.fetched is not None and self.fetched.manifest.name == name:
            return self.fetched
        began, folder = self._clock(), self._folder / name
        try:
            manifest = download(store, name, folder, stopped=self._stopped, task_sha256=task_sha256)
        except CheckpointError:
            remove_partial(folder)
            raise
        if self.fetched is not None:
            shutil.rmtree(self.fetched.folder, ignore_errors=True)
        seconds = self._clock() - began
        _log.info("downloaded checkpoint %s in %.1f s: %d bytes", name, seconds, manifest.size_bytes)
        self.fetched = Fetched(manifest, str(store.url), folder, seconds, own=task_sha256 is not None)
        return self.fetched
