"""A run's checkpoints in an object store."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any, BinaryIO, Protocol

from cloud.storage.client import ClientPerProcess, storage_errors
from cloud.storage.errors import (
    BucketMissingError,
    KeyMissingError,
    ShardChangedError,
    StoreFailedError,
    StoreRefusedError,
)
from cloud.storage.opener import RetryPolicy, ShardStream
from cloud.storage.url import S3Url
from experiments.checkpoints.errors import CheckpointError
from experiments.checkpoints.layout import MANIFEST, parse_key, parse_name
from experiments.checkpoints.listing import Listed, examine, just_stored, newest_first, removable
from experiments.checkpoints.manifest import MAX_BYTES, Manifest

_log = logging.getLogger(__name__)
_PROBE = "write-check"  # object that `check_writable` stores and deletes


class Source(Protocol):
    """Where checkpoints of a run can be read: an object store, or a folder."""

    run_id: str

    def list(self) -> tuple[Listed, ...]:
        """All checkpoints and remains, newest first."""
        ...

    def where(self, name: str, file: str = "") -> str:
        """URL or path of a checkpoint or of its file, for messages."""
        ...

    def open(self, name: str, file: str, size_bytes: int, start_bytes: int = 0) -> BinaryIO:
        """Open a file of a checkpoint, unbuffered, from a byte on. Raises CheckpointError if it has another size."""
        ...


class CheckpointStore:
    """The checkpoints below `prefix`, s3://bucket/.../<run id>, as `layout.run_prefix` makes it.

    `client_settings`: keyword arguments of `cloud.storage.client.make_client`, such as endpoint and region; clients are
    created in the process that uses them. All methods raise StorageError if the store cannot be used.
    """

    def __init__(
        self,
        prefix: str,
        client_settings: Mapping[str, Any] | None = None,
        *,
        retry: RetryPolicy | None = None,
    ) -> None:
        self.url = S3Url.parse(prefix.rstrip("/"))
        self.run_id = self.url.key.rpartition("/")[2]
        if not self.run_id:
            raise ValueError(f"{prefix} does not end with a run's id")
        self.client = ClientPerProcess(**dict(client_settings or {}))
        self._retry = retry

    def list(self) -> tuple[Listed, ...]:
        """All checkpoints and remains of uploads, newest first. Files are compared by size, not by content."""
        sizes: dict[str, dict[str, int]] = {}
        for key, size in self._objects().items():
            if (parsed := parse_key(key)) is not None:
                sizes.setdefault(parsed[0], {})[parsed[1]] = size
        return newest_first(
            [
                examine(
                    name,
                    self.where(name),
                    self.run_id,
                    files,
                    self._text(name) if files.get(MANIFEST, MAX_BYTES + 1) <= MAX_BYTES else None,
                )
                for name, files in sizes.items()
            ]
        )

    def newest(self) -> Manifest | None:
        """The newest complete checkpoint; None if there is none."""
        return next((one.manifest for one in self.list() if one.problem is None), None)

    def prune(self, keep: int, stored: str | None = None) -> tuple[str, ...]:
        """Delete all complete checkpoints but the newest `keep` (at least one), and remains of epochs before that of `stored`,
        the checkpoint that was just stored (default: the newest complete one), which is kept: `listing.removable`. Returns
        the names of those deleted.

        Only objects of our layout below the run's prefix are deleted.
        """
        listed = self.list()
        names, newest = removable(listed, keep, stored), just_stored(listed, stored)
        self.delete(names)
        before = -1 if newest is None else newest.epoch
        aborted = self._abort_uploads(lambda epoch, vm: epoch < before)
        return tuple(dict.fromkeys((*names, *aborted)))

    def delete(self, names: Iterable[str]) -> None:
        """Delete checkpoints and remains, each one's manifest first: what is interrupted leaves remains only."""
        doomed = set(names)
        if not doomed:
            return
        keys = [key for key in self._objects() if (parsed := parse_key(key)) and parsed[0] in doomed]
        for key in sorted(keys, key=lambda key: (not key.endswith(f"/{MANIFEST}"), key)):
            self._delete(key)

    def make_room(self, name: str) -> None:
        """Delete the checkpoint `name`, if there is one, and incomplete uploads of its VM, which begins another one now."""
        parsed = parse_name(name)
        assert parsed is not None
        vm = parsed[1]
        self.delete(
            one.name
            for one in self.list()
            if one.name == name
            or (one.vm == vm and one.problem is not None and one.problem.code == "incomplete")
        )
        self._abort_uploads(lambda epoch, owner: owner == vm)

    def check_writable(self) -> None:
        """Store and delete a small object. Raises CheckpointError (unwritable) if that is refused or has no space,
        StorageError if the store does not answer.
        """
        place = self.url.join(_PROBE)
        try:
            with storage_errors(self.client.endpoint, place.bucket, place.key):
                self.client().put_object(Bucket=place.bucket, Key=place.key, Body=b"")
                self.client().delete_object(Bucket=place.bucket, Key=place.key)
        except (StoreRefusedError, BucketMissingError) as error:
            raise CheckpointError(
                "unwritable",
                f"checkpoints cannot be stored below {self.url} ({error}); allow these credentials to put and delete "
                "objects there (s3:PutObject, s3:DeleteObject), or set checkpoint.to to a place that is writable",
            ) from error

    def where(self, name: str, file: str = "") -> str:
        """URL of a checkpoint or of its file."""
        return str(self.url_of(name, file) if file else self.url.join(name))

    def url_of(self, name: str, file: str) -> S3Url:
        """URL of a checkpoint's file."""
        return self.url.join(f"{name}/{file}")

    def open(self, name: str, file: str, size_bytes: int, start_bytes: int = 0) -> BinaryIO:
        """A stream over a file that reopens broken connections. Raises CheckpointError for a missing file or another
        size.
        """
        url = self.url_of(name, file)
        stream = ShardStream(
            self.client(), url, endpoint=self.client.endpoint, retry=self._retry, start_bytes=start_bytes
        )
        try:
            stream.connect()
        except KeyMissingError as error:
            raise CheckpointError("incomplete", f"{url} does not exist") from error
        except ShardChangedError as error:  # the range is not satisfiable
            raise CheckpointError(
                "corrupt", f"{url} is cut: it has less than {start_bytes} of {size_bytes} bytes"
            ) from error
        if stream.size_bytes != size_bytes:
            stream.close()
            raise CheckpointError("corrupt", f"{url} has {stream.size_bytes} bytes instead of {size_bytes}")
        return stream  # type: ignore[return-value]

    def sizes_of(self, name: str) -> dict[str, int]:
        """Sizes of a checkpoint's objects by relative name."""
        sizes = self._objects(f"{name}/")
        return {found[1]: size for key, size in sizes.items() if (found := parse_key(key)) is not None}

    def _objects(self, below: str = "") -> dict[str, int]:
        """Sizes of all objects below the run's prefix, by key relative to it."""
        place = self.url.join(below)
        root = self.url.join("").key
        found: dict[str, int] = {}
        with storage_errors(self.client.endpoint, place.bucket):
            pages = (
                self.client().get_paginator("list_objects_v2").paginate(Bucket=place.bucket, Prefix=place.key)
            )
            for page in pages:
                for item in page.get("Contents", ()):
                    found[item["Key"].removeprefix(root)] = int(item["Size"])
        return found

    def _text(self, name: str) -> str | None:
        """The manifest's text; None if it has been deleted since it was listed."""
        url = self.url_of(name, MANIFEST)
        try:
            with storage_errors(self.client.endpoint, url.bucket, url.key):
                body = self.client().get_object(Bucket=url.bucket, Key=url.key)["Body"]
                with contextlib.closing(body):
                    return body.read(MAX_BYTES + 1).decode("utf-8", errors="replace")
        except KeyMissingError:
            return None

    def _delete(self, key: str) -> None:
        url = self.url.join(key)
        with storage_errors(self.client.endpoint, url.bucket, url.key):
            self.client().delete_object(Bucket=url.bucket, Key=url.key)

    def _abort_uploads(self, chosen: Callable[[int, str], bool]) -> tuple[str, ...]:
        """Abort multipart uploads of our layout whose (epoch, VM) are chosen; returns the checkpoints' names."""
        root = self.url.join("")
        aborted: list[str] = []
        try:
            with storage_errors(self.client.endpoint, root.bucket):
                pages = (
                    self.client()
                    .get_paginator("list_multipart_uploads")
                    .paginate(Bucket=root.bucket, Prefix=root.key)
                )
                uploads = [
                    (item["Key"], item["UploadId"]) for page in pages for item in page.get("Uploads", ())
                ]
        except (StoreRefusedError, StoreFailedError) as error:
            if isinstance(error, StoreFailedError) and not _is_not_implemented(error):
                raise
            _log.warning(
                "unfinished multipart uploads below %s cannot be listed, so they stay (%s); allow "
                "s3:ListBucketMultipartUploads if the store knows it, or set a lifecycle rule that aborts them",
                root,
                error,
            )
            return ()
        for key, upload_id in uploads:
            parsed = parse_key(key.removeprefix(root.key)) if key.startswith(root.key) else None
            owner = parse_name(parsed[0]) if parsed is not None else None
            if parsed is None or owner is None or not chosen(*owner):
                continue
            try:
                with storage_errors(self.client.endpoint, root.bucket, key):
                    self.client().abort_multipart_upload(Bucket=root.bucket, Key=key, UploadId=upload_id)
            except KeyMissingError:
                continue  # it has ended since it was listed
            aborted.append(parsed[0])
        return tuple(aborted)


def _is_not_implemented(error: StoreFailedError) -> bool:
    """Whether the store does not have the operation, as some that are compatible with S3."""
    response = getattr(error.__cause__, "response", {})
    return response.get("ResponseMetadata", {}).get("HTTPStatusCode") in (405, 501)
