"""Are the shards there? Asked before a run begins, so that a wrong secret costs seconds and no VM."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cloud.storage.client import storage_errors
from cloud.storage.errors import BadUrlError
from cloud.storage.url import S3Url

__all__ = ["check_shards"]


def check_shards(shards: Sequence[str], client: Any, *, endpoint: str = "") -> int:
    """Reads one byte of the first and of the last shard; returns the first one's size in bytes.

    A GET, because the answer to a HEAD does not say whether it is the bucket that is missing.
    Raises BadUrlError for an empty list, and StorageError: unreachable, refused, missing.
    """
    if not shards:
        raise BadUrlError("there are no shards to read; give the experiment's data a pattern that names some")
    sizes: list[int] = []
    for text in dict.fromkeys((shards[0], shards[-1])):
        url = S3Url.parse(text)
        with storage_errors(endpoint, url.bucket, url.key):
            answer = client.get_object(Bucket=url.bucket, Key=url.key, Range="bytes=0-0")
            answer["Body"].close()
        # A store that ignores ranges sends the whole object: the length is then the size.
        total = str(answer.get("ContentRange", "")).rpartition("/")[2]
        sizes.append(int(total) if total.isdigit() else int(answer["ContentLength"]))
    return sizes[0]
