"""Check before a run that the shards exist and are complete, so that wrong credentials do not cost any VM time."""

from __future__ import annotations

import tarfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from cloud.storage.client import storage_errors
from cloud.storage.errors import BadUrlError, CorruptShardError, TruncatedShardError
from cloud.storage.url import S3Url

_BLOCK_BYTES = tarfile.BLOCKSIZE  # 512
_AT_ONCE = 8
_LOOKED_AT = 64  # two requests each, which takes a few seconds even for a distant store


def check_shards(shards: Sequence[str], client: Any, *, endpoint: str = "", most: int = _LOOKED_AT) -> int:
    """Read the first and last block of each shard and return the first shard's size in bytes.

    This detects files that are not tars and incomplete uploads. If there are more than `most` shards, `most` of them,
    evenly spread, are checked. Uses GET, since the answer to a HEAD does not tell whether the bucket is missing. Raises
    BadUrlError for an empty list; StorageError if a shard is unreachable, refused, missing, truncated or corrupt.
    """
    if not shards:
        raise BadUrlError("there are no shards to read; give the experiment's data a pattern that names some")
    first, *others = dict.fromkeys(shards)
    if len(others) > most - 1:
        others = [others[(n + 1) * len(others) // (most - 1) - 1] for n in range(most - 1)]
    look = partial(_look, client, endpoint)
    size_bytes = look(first)  # alone, since a problem with the store affects all shards
    pool = ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="check-shards")
    try:
        for _ in pool.map(look, others):
            pass
    finally:
        pool.shutdown(cancel_futures=True)
    return size_bytes


def _look(client: Any, endpoint: str, shard: str) -> int:
    """Check one shard and return its size in bytes."""
    head, size_bytes, ranges = _read(client, endpoint, shard, 0)
    try:
        tarfile.TarInfo.frombuf(head, "utf-8", "surrogateescape")
    except (tarfile.EmptyHeaderError, tarfile.TruncatedHeaderError) as error:  # type: ignore[attr-defined]
        raise TruncatedShardError(shard, len(head)) from error
    except tarfile.EOFHeaderError as error:  # type: ignore[attr-defined]
        raise CorruptShardError(shard, 0, "the tar contains no samples") from error
    except (tarfile.HeaderError, ValueError) as error:
        raise CorruptShardError(shard, 0, f"not a tar header ({error})") from error
    if ranges:
        tail, _, _ = _read(client, endpoint, shard, max(0, size_bytes - _BLOCK_BYTES))
        if any(tail):  # a tar ends with blocks of zeros
            raise TruncatedShardError(shard, size_bytes)
    return size_bytes


def _read(client: Any, endpoint: str, shard: str, at: int) -> tuple[bytes, int, bool]:
    """Return the block at `at`, the whole object's size, and whether the store supports ranges."""
    from botocore.exceptions import ClientError

    url = S3Url.parse(shard)
    with storage_errors(endpoint, url.bucket, url.key):
        try:
            answer = client.get_object(
                Bucket=url.bucket, Key=url.key, Range=f"bytes={at}-{at + _BLOCK_BYTES - 1}"
            )
        except ClientError as error:
            if error.response.get("ResponseMetadata", {}).get("HTTPStatusCode") == 416:  # it is empty
                raise TruncatedShardError(shard, 0) from error
            raise
        body = answer["Body"]
        block = body.read(_BLOCK_BYTES)
        body.close()
    # A store that ignores ranges sends the whole object, so the length is its size.
    total = str(answer.get("ContentRange", "")).rpartition("/")[2]
    return block, int(total) if total.isdigit() else int(answer["ContentLength"]), total.isdigit()
