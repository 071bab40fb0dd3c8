"""Store a data set: shards as they are made, uploaded in parallel, then the index that makes them a whole."""

from __future__ import annotations

import hashlib
import io
import json
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from cloud.storage.client import is_transient, storage_errors, translate
from cloud.storage.digits import make_bucket
from cloud.storage.errors import (
    BadUrlError,
    BucketMissingError,
    DataSourceError,
    KeyMissingError,
    PrefixTakenError,
    StorageError,
    StoreRefusedError,
)
from cloud.storage.shards import (
    HELDOUT,
    INDEX_FORMAT,
    INDEX_NAME,
    SHARD_NAME,
    SPLITS,
    TRAIN,
    MaxSamples,
    Record,
    Shard,
    ShardWriter,
    shard_pattern,
)
from cloud.storage.url import S3Url

_AT_ONCE = 4
_ATTEMPTS = 6
_PART_BYTES = 32 << 20  # larger objects are sent in parts of this size
_TAR_TYPE = "application/x-tar"
_JSON_TYPE = "application/json"


@dataclass(slots=True)
class Progress:
    """What has happened so far; passed to the `progress` callback, from several threads."""

    samples: int = 0
    shards: int = 0  # written
    uploaded: int = 0
    uploaded_bytes: int = 0
    unchanged: int = 0  # the store had them


@dataclass(slots=True)
class Index:
    """The content of index.json. `made` says from what and how the data set was made."""

    made: dict[str, Any]
    shards: list[Shard] = field(default_factory=list)
    files: list[dict[str, Any]] = field(default_factory=list)  # others, such as tokenizer.json
    complete: bool = True

    def of(self, split: str) -> list[Shard]:
        return [shard for shard in self.shards if shard.split == split]

    def samples(self, split: str) -> int:
        return sum(shard.samples for shard in self.of(split))

    def size_bytes(self, split: str) -> int:
        return sum(shard.size_bytes for shard in self.of(split))

    def to_json(self) -> str:
        splits = {
            split: {
                "shards": [shard.as_dict() for shard in self.of(split)],
                "samples": self.samples(split),
                "bytes": self.size_bytes(split),
            }
            for split in SPLITS
            if self.of(split)
        }
        document = {
            "format": INDEX_FORMAT,
            "complete": self.complete,
            "made": self.made,
            "splits": splits,
            "files": self.files,
        }
        return json.dumps(document, indent=1, ensure_ascii=False) + "\n"

    @classmethod
    def from_json(cls, text: str, url: str) -> Index:
        """Parse an index. Raises BadUrlError naming `url` if it is not one that this version reads."""
        try:
            document = json.loads(text)
            if document["format"] != INDEX_FORMAT:
                raise BadUrlError(
                    f"{url} has format {document['format']}, and this version of orch reads format {INDEX_FORMAT}; "
                    "use the version that wrote it, or create the data set again"
                )
            shards = [
                Shard(s["name"], split, s["samples"], s["bytes"], s["sha256"], s["members"])
                for split, part in document["splits"].items()
                for s in part["shards"]
            ]
            if not isinstance(document["made"], dict):
                raise TypeError("made is no object")
            return cls(document["made"], shards, document["files"], document["complete"])
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise BadUrlError(
                f"{url} is not an index of a data set ({type(error).__name__}: {error}); create the data set again"
            ) from error


def splits_table(index: Index, to_url: str) -> list[dict[str, Any]]:
    """Return a row for each split: the pattern of its shards, samples, number of shards and bytes."""
    place = S3Url.parse(to_url)
    return [
        {
            "split": split,
            "shards": str(place.join(shard_pattern([shard.name for shard in index.of(split)]))),
            "samples": index.samples(split),
            "count": len(index.of(split)),
            "bytes": index.size_bytes(split),
        }
        for split in SPLITS
        if index.of(split)
    ]


def read_index(client: Any, to_url: str, *, endpoint: str = "") -> Index | None:
    """Return the index at s3://bucket[/prefix], None if there is none. Raises StorageError."""
    url = S3Url.parse(to_url).join(INDEX_NAME)
    try:
        with storage_errors(endpoint, url.bucket, url.key):
            text = client.get_object(Bucket=url.bucket, Key=url.key)["Body"].read()
    except KeyMissingError:
        return None
    try:
        return Index.from_json(text.decode("utf-8"), str(url))
    except UnicodeDecodeError as error:
        raise BadUrlError(
            f"{url} is not an index of a data set ({error}); create the data set again"
        ) from error


def list_objects(client: Any, to_url: str, *, endpoint: str = "") -> dict[str, int]:
    """Return the objects directly under a prefix: their names and sizes. Raises StorageError."""
    place = S3Url.parse(to_url).join("")
    found: dict[str, int] = {}
    with storage_errors(endpoint, place.bucket):
        pages = client.get_paginator("list_objects_v2").paginate(
            Bucket=place.bucket, Prefix=place.key, Delimiter="/"
        )
        for page in pages:
            for item in page.get("Contents", ()):
                found[item["Key"].removeprefix(place.key)] = int(item["Size"])
    return found


def publish(
    records: Iterable[Record],
    to_url: str,
    client: Any,
    *,
    folder: Path,
    made: Mapping[str, Any],
    files: Callable[[], Mapping[str, bytes]] | None = None,
    heldout: float = 0.0,
    max_samples: MaxSamples = 0,
    max_bytes: int = 0,
    endpoint: str = "",
    replace: bool = False,
    at_once: int = _AT_ONCE,
    progress: Callable[[Progress], None] | None = None,
    sleep: Callable[[float], None] = time.sleep,
) -> Index:
    """Write `records` as shards below `folder`, upload them to s3://bucket[/prefix] and return the index.

    The bucket is created if needed. An index that says `complete: false` is stored first and the complete one last, so
    an interrupted upload is recognised. The same call again uploads only the objects that the store does not have with
    equal size and SHA-256. Shards are deleted from `folder` as soon as they are stored. `files` is called after the
    last record and returns further objects by name. Shards of the same data set that are no longer part of it are
    deleted.

    Raises PrefixTakenError if the prefix has shards or an index of another data set and `replace` is false,
    DataSourceError if there are no records, and StorageError.
    """
    place = S3Url.parse(to_url)
    ensure_bucket(client, place.bucket, endpoint)
    index = Index(dict(made))
    _claim(client, to_url, index, endpoint, replace)
    upload = _Upload(client, endpoint, at_once, progress or (lambda _: None), sleep)
    writer = ShardWriter(folder, heldout=heldout, max_samples=max_samples, max_bytes=max_bytes)
    try:
        for record in records:
            for shard in writer.write(record):
                index.shards.append(shard)
                upload.put(place.join(shard.name), shard)
            upload.count(1)
        if not upload.progress.samples:
            raise DataSourceError(f"there are no samples for {to_url}; give a source that has some")
        for shard in writer.close():
            index.shards.append(shard)
            upload.put(place.join(shard.name), shard)
        _require(index, heldout, to_url)
        for name, data in (files() if files else {}).items():
            url = place.join(name)
            digest = hashlib.sha256(data).hexdigest()
            upload.send(
                url, lambda data=data: io.BytesIO(data), len(data), digest, "application/octet-stream"
            )
            index.files.append({"name": name, "bytes": len(data), "sha256": digest})
        upload.wait()
    except BaseException:
        writer.abandon()
        upload.stop()
        raise
    _remove_old(client, to_url, index, endpoint)
    put_index(client, place, index, endpoint)
    return index


def ensure_bucket(client: Any, bucket: str, endpoint: str) -> None:
    """Create the bucket if it does not exist. Asks first: many credentials may write but not create buckets."""
    try:
        with storage_errors(endpoint, bucket):
            client.head_bucket(Bucket=bucket)
    except BucketMissingError:
        make_bucket(client, bucket, endpoint=endpoint)
    except StoreRefusedError:
        pass  # writing the index will tell


def _claim(client: Any, to_url: str, index: Index, endpoint: str, replace: bool) -> None:
    """Check that the destination is free or has the same data set, and that it is writable."""
    place = S3Url.parse(to_url)
    try:
        old = read_index(client, to_url, endpoint=endpoint)
    except BadUrlError:
        if not replace:
            raise
        old = None
    if not replace:
        advice = "choose another prefix, or replace it with --replace"
        if old is not None and old.made != json.loads(json.dumps(index.made)):
            raise PrefixTakenError(
                f"{place} has another data set ({differences(old.made, index.made)}); {advice}"
            )
        if old is None and any(
            SHARD_NAME.fullmatch(n) for n in list_objects(client, to_url, endpoint=endpoint)
        ):
            raise PrefixTakenError(f"{place} has shards without an index, of another data set; {advice}")
    try:
        put_index(client, place, Index(index.made, complete=False), endpoint)
    except StoreRefusedError as error:
        raise StoreRefusedError(
            f"{place} cannot be written ({error}); allow these credentials to put objects there (s3:PutObject)"
        ) from error


def _short(value: Any) -> str:
    text = "absent" if value is None else json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 60 else text[:57] + "..."


def _require(index: Index, heldout: float, to_url: str) -> None:
    for split, wanted in ((TRAIN, True), (HELDOUT, heldout > 0)):
        if wanted and not index.of(split):
            raise DataSourceError(
                f"all samples for {to_url} are in the other split, and {split} is empty; "
                "add samples, or choose another held-out share (0: none is held out)"
            )


def _remove_old(client: Any, to_url: str, index: Index, endpoint: str) -> None:
    """Delete shards of an earlier version that the new index does not name."""
    place = S3Url.parse(to_url)
    kept = {shard.name for shard in index.shards}
    for name in list_objects(client, to_url, endpoint=endpoint):
        if SHARD_NAME.fullmatch(name) and name not in kept:
            url = place.join(name)
            with storage_errors(endpoint, url.bucket, url.key):
                client.delete_object(Bucket=url.bucket, Key=url.key)


def put_index(client: Any, place: S3Url, index: Index, endpoint: str) -> None:
    """Store the index of the data set at `place`. Raises StorageError."""
    url = place.join(INDEX_NAME)
    with storage_errors(endpoint, url.bucket, url.key):
        client.put_object(
            Bucket=url.bucket, Key=url.key, Body=index.to_json().encode("utf-8"), ContentType=_JSON_TYPE
        )


def put_shard(client: Any, place: S3Url, shard: Shard, endpoint: str = "") -> None:
    """Store a shard under `place`, unless it is there with equal size and SHA-256, and delete its file.

    Raises StorageError.
    """
    upload = _Upload(client, endpoint, 1, lambda _: None, time.sleep)
    try:
        upload.put(place.join(shard.name), shard)
        upload.wait()
    except BaseException:
        upload.stop()
        raise


def is_stored(client: Any, place: S3Url, shard: Shard, endpoint: str = "") -> bool:
    """Whether the store has a shard with its size and SHA-256. Raises StorageError."""
    url = place.join(shard.name)
    with storage_errors(endpoint, url.bucket, url.key):
        return _is_there(client, url, shard.size_bytes, shard.sha256)


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> str:
    """What differs between two descriptions of how a data set was made, in words."""
    keys = sorted(k for k in {*old, *new} if old.get(k) != new.get(k))
    return "; ".join(f"{k} {_short(old.get(k))} there, {_short(new.get(k))} here" for k in keys)


class _Upload:
    """Uploads in the background, a few at once; `put` blocks while as many are waiting."""

    def __init__(
        self,
        client: Any,
        endpoint: str,
        at_once: int,
        report: Callable[[Progress], None],
        sleep: Callable[[float], None],
    ) -> None:
        self.progress = Progress()
        self._client = client
        self._endpoint = endpoint
        self._report = report
        self._sleep = sleep
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._free = threading.Semaphore(2 * at_once)
        self._pool = ThreadPoolExecutor(at_once, thread_name_prefix="upload")
        self._running: list[Future[None]] = []

    def count(self, samples: int) -> None:
        with self._lock:
            self.progress.samples += samples
        self._report(self.progress)

    def put(self, url: S3Url, shard: Shard) -> None:
        """Upload a shard and delete its file. Raises the error of an earlier upload."""
        path = shard.path
        assert path is not None  # it was just written
        with self._lock:
            self.progress.shards += 1
        self.send(url, lambda: path.open("rb"), shard.size_bytes, shard.sha256, _TAR_TYPE, then=path.unlink)

    def send(
        self,
        url: S3Url,
        body: Callable[[], BinaryIO],
        size_bytes: int,
        sha256: str,
        content_type: str,
        then: Callable[[], None] | None = None,
    ) -> None:
        while not self._free.acquire(timeout=0.2):
            self._raise_first()
        self._raise_first()

        def work() -> None:
            try:
                self._store(url, body, size_bytes, sha256, content_type)
                if then is not None:
                    then()
            finally:
                self._free.release()

        self._running.append(self._pool.submit(work))

    def wait(self) -> None:
        """Return when everything is stored. Raises StorageError."""
        for future in self._running:
            future.result()
        self._pool.shutdown()

    def stop(self) -> None:
        """Break off: parts of objects that were sent are deleted, and no object is stored in part."""
        self._stopped.set()
        self._pool.shutdown(cancel_futures=True)

    def _raise_first(self) -> None:
        running, self._running = self._running, []
        for future in running:
            if future.done():
                future.result()
            else:
                self._running.append(future)

    def _store(
        self, url: S3Url, body: Callable[[], BinaryIO], size_bytes: int, sha256: str, content_type: str
    ) -> None:
        for attempt in range(_ATTEMPTS):
            try:
                if _is_there(self._client, url, size_bytes, sha256):
                    with self._lock:
                        self.progress.unchanged += 1
                else:
                    with body() as file:
                        self._send(url, _Stoppable(file, self._stopped), sha256, content_type)
                    with self._lock:
                        self.progress.uploaded += 1
                        self.progress.uploaded_bytes += size_bytes
                break
            except StorageError:
                raise
            except Exception as error:
                if self._stopped.is_set():
                    return
                if attempt == _ATTEMPTS - 1 or not is_transient(error):
                    raise translate(error, self._endpoint, url.bucket, url.key) from error
                self._sleep(min(10.0, 0.2 * 2**attempt))
        self._report(self.progress)

    def _send(self, url: S3Url, file: _Stoppable, sha256: str, content_type: str) -> None:
        from boto3.s3.transfer import TransferConfig

        self._client.upload_fileobj(
            file,
            url.bucket,
            url.key,
            ExtraArgs={"Metadata": {"sha256": sha256}, "ContentType": content_type},
            Config=TransferConfig(
                multipart_threshold=2 * _PART_BYTES, multipart_chunksize=_PART_BYTES, use_threads=False
            ),
        )


def _is_there(client: Any, url: S3Url, size_bytes: int, sha256: str) -> bool:
    from botocore.exceptions import ClientError

    try:
        head = client.head_object(Bucket=url.bucket, Key=url.key)
    except ClientError as error:
        # A store answers 403 for a missing object to keys that may not list; the upload itself will tell.
        if error.response.get("ResponseMetadata", {}).get("HTTPStatusCode") in (403, 404):
            return False
        raise
    return int(head["ContentLength"]) == size_bytes and head.get("Metadata", {}).get("sha256") == sha256


class _Stopped(Exception):
    """The upload was broken off."""


class _Stoppable(io.RawIOBase):
    """A file that cannot be read any more once `stopped` is set, which ends the request that sends it."""

    def __init__(self, file: BinaryIO, stopped: threading.Event) -> None:
        super().__init__()
        self._file = file
        self._stopped = stopped

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        if self._stopped.is_set():
            raise _Stopped
        return self._file.read(size)

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        return self._file.seek(offset, whence)

    def tell(self) -> int:
        return self._file.tell()
