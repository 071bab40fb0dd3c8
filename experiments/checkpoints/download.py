"""Fetch a checkpoint into a folder: resuming, verified, all or nothing."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from cloud.storage.errors import ShardChangedError
from experiments.checkpoints.errors import CheckpointError
from experiments.checkpoints.layout import MANIFEST
from experiments.checkpoints.listing import Listed, older_than
from experiments.checkpoints.manifest import Manifest, StoredFile
from experiments.checkpoints.store import Source
from experiments.checkpoints.upload import sha256_of

_READ_BYTES = 1 << 20


def download(
    source: Source,
    name: str,
    folder: Path,
    on_bytes: Callable[[int], None] = lambda count: None,
    stopped: Callable[[], bool] = lambda: False,
    *,
    task_sha256: str | None = None,
    wanted: Callable[[str], bool] = lambda file: True,
    placed: Callable[[str], str] = lambda file: file,
) -> Manifest:
    """Fetch the checkpoint `name` into `folder`, which must not exist, be empty, or hold this checkpoint.

    Files are fetched into the sibling folder `.NAME.partial`. A later call reuses its content: complete files are kept,
    partial ones are resumed. Each file's SHA-256 is verified, then the folder gets its name. `on_bytes` is called
    with numbers of bytes as they arrive or are found on the disk. `task_sha256`: refuse checkpoints of another task.
    `wanted`: which files to fetch, by relative name; `placed`: where each one is put, relative to `folder`. The manifest is
    stored and returned as it is in the source.

    Raises CheckpointError (its message and `older` say which older checkpoint can be used instead), StorageError, OSError.
    """
    listed = source.list()
    try:
        manifest = _usable(source, listed, name, task_sha256)
        targets = {placed(file): file for file in manifest.files if wanted(file)}
        if MANIFEST in targets or len(targets) < sum(map(wanted, manifest.files)):
            raise CheckpointError("foreign", f"{source.where(name)} has files of the same name")
        _fetch_all(source, manifest, targets, folder, on_bytes, stopped)
    except CheckpointError as error:
        older = older_than(name, listed)
        advice = f"use the older checkpoint {older}" if older else "there is no older complete checkpoint"
        raise CheckpointError(error.code, f"{error}; {advice}", older) from error
    return manifest


def partial_folder(folder: Path) -> Path:
    """Where an unfinished download to `folder` is kept."""
    return folder.with_name(f".{folder.name}.partial")


def _usable(source: Source, listed: Sequence[Listed], name: str, task_sha256: str | None) -> Manifest:
    found = next((one for one in listed if one.name == name), None)
    if found is None:
        raise CheckpointError("none", f"{source.where(name)} does not exist")
    if found.problem is not None:
        raise found.problem
    assert found.manifest is not None
    if task_sha256 is not None and found.manifest.task_sha256 != task_sha256:
        raise CheckpointError(
            "foreign",
            f"{source.where(name)} is of another task ({found.manifest.ran}, SHA-256 "
            f"{found.manifest.task_sha256[:12] or 'none'} instead of {task_sha256[:12] or 'none'})",
        )
    return found.manifest


def _fetch_all(
    source: Source,
    manifest: Manifest,
    targets: Mapping[str, str],
    folder: Path,
    on_bytes: Callable[[int], None],
    stopped: Callable[[], bool],
) -> None:
    """`targets`: by where it is put, the file's name in the checkpoint."""
    if folder.exists() and any(folder.iterdir()):
        _verify_present(manifest, targets, folder)
        on_bytes(sum(manifest.files[file].size_bytes for file in targets.values()))
        return
    partial = partial_folder(folder)
    partial.mkdir(parents=True, exist_ok=True)
    for path in sorted(partial.rglob("*"), reverse=True):
        if path.is_dir() and not path.is_symlink():
            if not any(path.iterdir()):
                path.rmdir()
        elif path.relative_to(partial).as_posix() not in targets:
            path.unlink()
    for place, file in targets.items():
        about, target = manifest.files[file], partial / place
        target.parent.mkdir(parents=True, exist_ok=True)
        for last in (False, True):
            resumed = _fetch(source, manifest.name, file, about, target, on_bytes, stopped)
            if sha256_of(target) == about.sha256:
                break
            target.unlink()
            on_bytes(-about.size_bytes)
            if last or not resumed:
                raise CheckpointError(
                    "corrupt", f"{source.where(manifest.name, file)} differs from the SHA-256 in its manifest"
                )
    (partial / MANIFEST).write_text(manifest.to_json(), encoding="utf-8")
    if folder.exists():
        folder.rmdir()
    os.replace(partial, folder)


def _fetch(
    source: Source,
    name: str,
    file: str,
    about: StoredFile,
    target: Path,
    on_bytes: Callable[[int], None],
    stopped: Callable[[], bool],
) -> bool:
    """Complete the target file; returns whether part of it was there."""
    have = target.stat().st_size if target.exists() else 0
    if have > about.size_bytes:
        target.unlink()
        have = 0
    on_bytes(have)
    with target.open("ab") as out:
        if have == about.size_bytes:
            return have > 0
        try:
            with source.open(name, file, about.size_bytes, have) as body:
                while data := body.read(_READ_BYTES):
                    if stopped():
                        raise CheckpointError("incomplete", f"the download of {name} was stopped")
                    out.write(data)
                    on_bytes(len(data))
        except ShardChangedError as error:
            raise CheckpointError(
                "corrupt", f"{source.where(name, file)} changed while it was read"
            ) from error
    return have > 0


def _verify_present(manifest: Manifest, targets: Mapping[str, str], folder: Path) -> None:
    """Check that the folder holds these files of this checkpoint."""
    path = folder / MANIFEST
    try:
        held = Manifest.from_json(path.read_text(encoding="utf-8"), str(path))
    except (FileNotFoundError, CheckpointError):
        held = None
    if held is None or (held.run_id, held.name) != (manifest.run_id, manifest.name):
        raise CheckpointError(
            "foreign",
            f"{folder} has other content than {manifest.name} of run {manifest.run_id}; choose another folder",
        )
    for place, file in targets.items():
        if not (folder / place).is_file() or sha256_of(folder / place) != manifest.files[file].sha256:
            raise CheckpointError(
                "corrupt",
                f"{folder / place} is missing or was changed; remove {folder}, or choose another folder",
            )


def remove_partial(folder: Path) -> None:
    """Delete what an unfinished download to `folder` left."""
    shutil.rmtree(partial_folder(folder), ignore_errors=True)
