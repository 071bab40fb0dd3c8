"""Copies a checkpoint of a run out of a store that is about to be removed, and into another one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from cloud.storage.errors import BucketMissingError
from experiments.checkpoints.download import download
from experiments.checkpoints.errors import CheckpointError
from experiments.checkpoints.layout import MANIFEST
from experiments.checkpoints.manifest import Manifest
from experiments.checkpoints.store import CheckpointStore
from experiments.checkpoints.upload import describe, upload

_KEYS = ("endpoint", "access_key", "secret_key")


def keep_newest(arguments: Mapping[str, Any], report: Callable[[Any], None]) -> None:
    """Copy the newest checkpoint that can be read to a folder of its name.

    `arguments`: {"prefix": of the run, "folder": in which the copy is made, "endpoint", "access_key", "secret_key"}.
    `report` gets {"name": of the copied checkpoint or None, "problems": why newer ones were not copied}. Raises StorageError
    and OSError; the next call resumes.
    """
    settings = {key: arguments[key] for key in _KEYS}
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


def put_back(arguments: Mapping[str, Any], report: Callable[[Any], None]) -> None:
    """Store the checkpoint in a folder of this machine.

    `arguments`: {"prefix": of its run, "folder": the checkpoint's own, "endpoint", "access_key", "secret_key"}. `report` gets
    {"checkpoint_bytes": sent so far}. Raises CheckpointError if the folder differs from its manifest, StorageError, OSError.
    """
    folder, sent = Path(arguments["folder"]), 0
    place = folder / MANIFEST
    manifest = Manifest.from_json(place.read_text(encoding="utf-8"), str(place))
    if describe(folder) != dict(manifest.files):
        raise CheckpointError("corrupt", f"{folder} differs from its manifest: files were changed")

    def on_bytes(count: int) -> None:
        nonlocal sent
        sent += count
        report({"checkpoint_bytes": sent})

    store = CheckpointStore(arguments["prefix"], {key: arguments[key] for key in _KEYS})
    upload(store, folder, manifest, on_bytes)
