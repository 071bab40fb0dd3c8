"""A pulled checkpoint: the model's files directly in a folder, so that `from_pretrained(folder)` loads them.

DIR/model.safetensors, config.json, tokenizer.json, ...   of the checkpoint's model/
    state/optimizer.safetensors, state/state.json         not with --model-only
    manifest.json                                         as in the store
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.errors import UsageError

if TYPE_CHECKING:
    from experiments.checkpoints.manifest import Manifest
    from experiments.checkpoints.store import Source

_MODEL = "model/"


def is_of_model(file: str) -> bool:
    """Whether a file of a checkpoint belongs to the model."""
    return file.startswith(_MODEL)


def pulled_name(file: str) -> str:
    """Where a file of a checkpoint is in a pulled folder."""
    return file.removeprefix(_MODEL)


def pull(
    source: Source, name: str, folder: Path, *, model_only: bool, on_bytes: Callable[[int], None]
) -> Manifest:
    """Pull a checkpoint into `folder`; see `experiments.checkpoints.download.download`.

    Raises UsageError if the folder has other content or cannot be written, CheckpointError, StorageError.
    """
    from experiments.checkpoints.download import download
    from experiments.checkpoints.errors import CheckpointError

    if folder.exists() and not folder.is_dir():
        raise UsageError(f"{folder} is not a folder; choose another one with -o")
    try:
        return download(
            source,
            name,
            folder.absolute(),
            on_bytes,
            wanted=is_of_model if model_only else lambda file: True,
            placed=pulled_name,
        )
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise UsageError(
            f"{folder} cannot be written ({error.strerror or error}); choose another folder with -o"
        ) from error
    except CheckpointError as error:
        if error.code == "foreign" and folder.exists() and any(folder.iterdir()):
            raise UsageError(f"{str(error).partition(';')[0]}; choose another one with -o") from error
        raise


def open_pulled(folder: Path) -> Manifest:
    """Read the manifest of a pulled folder and verify its model's files. Raises UsageError, CheckpointError."""
    from experiments.checkpoints.errors import CheckpointError
    from experiments.checkpoints.layout import MANIFEST
    from experiments.checkpoints.manifest import Manifest
    from experiments.checkpoints.upload import sha256_of

    path = folder / MANIFEST
    try:
        manifest = Manifest.from_json(path.read_text(encoding="utf-8"), str(path))
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(
            f"{folder} has no readable {MANIFEST}; give a run, or a folder that `orch pull` wrote"
        ) from error
    for file, about in manifest.files.items():
        place = folder / pulled_name(file)
        if is_of_model(file) and not (place.is_file() and sha256_of(place) == about.sha256):
            raise CheckpointError(
                "corrupt",
                f"{place} is missing or was changed since it was pulled; pull {manifest.name} again",
            )
    return manifest
