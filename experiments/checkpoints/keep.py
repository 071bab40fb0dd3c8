"""Copies the newest checkpoint of a run out of a store that is about to be removed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from cloud.storage.errors import BucketMissingError
from experiments.checkpoints.download import download
from experiments.checkpoints.errors import CheckpointError
from experiments.checkpoints.store import CheckpointStore


def keep_newest(arguments: Mapping[str, Any], report: Callable[[Any], None]) -> None:
    """Copy the newest checkpoint that can be read to a folder of its name.

    `arguments`: {"prefix": of the run, "folder": in which the copy is made, "endpoint", "access_key", "secret_key"}.
    `report` gets {"name": of the copied checkpoint or None, "problems": why newer ones were not copied}. Raises StorageError
    and OSError; the next call resumes.
    """
    settings = {key: arguments[key] for key in ("endpoint", "access_key", "secret_key")}
    store, problems = CheckpointStore(arguments["prefix"], settings), list[str]()
    try:
        found = store.list()
    except BucketMissingError:  # the run ended before its data set was made
        found = ()
    for listed in found:
        if listed.problem is not None:
            if not listed.unfinished:
                problems.append(str(listed.problem))
            continue
        try:
            download(store, listed.name, Path(arguments["folder"]) / listed.name)
        except CheckpointError as error:
            problems.append(str(error))
            continue
        report({"name": listed.name, "problems": problems})
        return
    report({"name": None, "problems": problems})
