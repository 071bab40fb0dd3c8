"""Store a checkpoint: its files first, its manifest last."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from cloud.storage.client import storage_errors
from cloud.storage.url import S3Url
from experiments.checkpoints.errors import CheckpointError
from experiments.checkpoints.layout import MANIFEST, is_file_name
from experiments.checkpoints.listing import examine
from experiments.checkpoints.manifest import Manifest, StoredFile
from experiments.checkpoints.store import CheckpointStore

PART_BYTES = 8 << 20
"""Larger files are sent in parts of this size."""


def upload(
    store: CheckpointStore,
    folder: Path,
    manifest: Manifest,
    on_bytes: Callable[[int], None] = lambda count: None,
    stopped: Callable[[], bool] = lambda: False,
) -> Manifest:
    """Store the files of `folder` (model/ and state/) as the checkpoint that `manifest` describes, whose `files` are
    ignored. Returns the manifest that was stored.

    The remains of this VM's earlier uploads are deleted first, and a checkpoint of the same name. `on_bytes` is called
    with numbers of bytes as they are sent (negative if a part is sent again). Raises CheckpointError if `stopped` becomes
    true or the run's prefix is not the manifest's, StorageError, OSError.
    """
    if manifest.run_id != store.run_id:
        raise CheckpointError("foreign", f"{store.url} is not the prefix of run {manifest.run_id}")
    manifest = replace(manifest, files=describe(folder))
    if not manifest.files:
        raise CheckpointError("incomplete", f"{folder} has no files of a checkpoint")
    store.make_room(manifest.name)
    for name in manifest.files:
        with (folder / name).open("rb") as file:
            _send(store, store.url_of(manifest.name, name), file, on_bytes, stopped)
    # Another writer's retention may have taken these files for remains.
    sizes = store.sizes_of(manifest.name)
    found = examine(manifest.name, store.where(manifest.name), store.run_id, sizes, manifest.to_json())
    if found.problem is not None:
        raise found.problem
    with io.BytesIO(manifest.to_json().encode()) as file:
        _send(store, store.url_of(manifest.name, MANIFEST), file, lambda count: None, stopped)
    return manifest


def describe(folder: Path) -> dict[str, StoredFile]:
    """Sizes and SHA-256 of the files of a checkpoint in a folder, by relative name."""
    found: dict[str, StoredFile] = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.is_file() and is_file_name(name):
            found[name] = StoredFile(path.stat().st_size, sha256_of(path))
    return found


def sha256_of(path: Path) -> str:
    """SHA-256 of a file, as hex digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _send(
    store: CheckpointStore,
    url: S3Url,
    file: io.BufferedIOBase,
    on_bytes: Callable[[int], None],
    stopped: Callable[[], bool],
) -> None:
    from boto3.s3.transfer import TransferConfig

    with storage_errors(store.client.endpoint, url.bucket, url.key):
        store.client().upload_fileobj(
            _Stoppable(file, stopped, str(url)),
            url.bucket,
            url.key,
            Callback=on_bytes,
            # In this thread: the requests have one order, and a part is all that is held in memory.
            Config=TransferConfig(
                multipart_threshold=PART_BYTES, multipart_chunksize=PART_BYTES, use_threads=False
            ),
        )


class _Stoppable(io.RawIOBase):
    """A file that raises CheckpointError when it is read once `stopped` is true, which ends the request that sends it."""

    def __init__(self, file: io.BufferedIOBase, stopped: Callable[[], bool], what: str) -> None:
        super().__init__()
        self._file, self._stopped, self._what = file, stopped, what

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        if self._stopped():
            raise CheckpointError("incomplete", f"the upload of {self._what} was stopped")
        return self._file.read(size)

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        return self._file.seek(offset, whence)

    def tell(self) -> int:
        return self._file.tell()
