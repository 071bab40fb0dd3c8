"""Files of a task's settings that lie in the object store, such as weights to start from."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO

from experiments.peer.config import PeerConfig
from experiments.tasks.build import BUILT_IN
from experiments.tasks.settings import stored_files

_FOLDER = "stored"


def with_stored_files(config: PeerConfig, folder: Path, open_url: Callable[[str], BinaryIO]) -> PeerConfig:
    """Copy the files that the settings of a built-in task name by s3:// URLs, and return a config that names the copies.

    `folder`: the config's. Raises StorageError, OSError.
    """
    task = config.task
    if task is None or task["call"] not in BUILT_IN.values():
        return config
    settings = {**task.get("with", {}), **_copied(task.get("with", {}), folder / _FOLDER, open_url)}
    return replace(config, task={**task, "with": settings})


def _copied(settings: Mapping[str, Any], folder: Path, open_url: Callable[[str], BinaryIO]) -> dict[str, str]:
    copies: dict[str, str] = {}
    for key, url in stored_files(settings).items():
        folder.mkdir(exist_ok=True)
        copy = folder / f"{key}-{url.rpartition('/')[2]}"
        with open_url(url) as stored, copy.open("wb") as file:
            shutil.copyfileobj(stored, file, 1 << 20)
        copies[key] = str(copy)
    return copies
