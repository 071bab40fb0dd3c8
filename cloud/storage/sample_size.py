"""The size of a shard's samples, from its beginning."""

from __future__ import annotations

import io
import tarfile
from typing import Any

from cloud.storage.client import storage_errors
from cloud.storage.url import S3Url

_READ_BYTES = 4 * 2**20


def bytes_per_sample(
    shard: str, client: Any, *, endpoint: str = "", most_bytes: int = _READ_BYTES
) -> float | None:
    """Return the mean bytes of the samples at the start of a shard, with the tar's headers and padding.

    Reads `most_bytes` at most. None if they hold no whole sample. Raises StorageError.
    """
    url = S3Url.parse(shard)
    with storage_errors(endpoint, url.bucket, url.key):
        answer = client.get_object(Bucket=url.bucket, Key=url.key, Range=f"bytes=0-{most_bytes - 1}")
        body = answer["Body"]
        data = body.read(most_bytes)
        body.close()
    ends: dict[str, int] = {}  # where each sample ends, by key
    try:
        with tarfile.open(fileobj=io.BytesIO(data), mode="r:") as tar:
            for member in tar:
                if not member.isfile():
                    continue
                end = member.offset_data + -(-member.size // tarfile.BLOCKSIZE) * tarfile.BLOCKSIZE
                if end > len(data):
                    break
                folder, slash, name = member.name.rpartition("/")
                if not name.startswith("."):  # such as ._0001.jpg, which is part of no sample
                    ends[folder + slash + name.partition(".")[0]] = end
    except tarfile.ReadError:  # not even one header is whole
        return None
    if len(data) >= most_bytes and ends:
        ends.popitem()  # there may be more members of it
    return max(ends.values()) / len(ends) if ends else None
