"""Shards of the digits data set behind an HTTP server that implements S3's GET."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from cloud.storage.digits import write_shards
from tests.experiments.peer_rig import serve_folder


@contextlib.contextmanager
def serve_shards(folder: Path) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Write the shards and serve them as s3://bucket/...; yields the endpoint and the URLs of the training shards."""
    made = write_shards(folder, 8, samples_per_shard=128)
    with serve_folder(folder) as endpoint:
        yield endpoint, tuple(f"s3://bucket/{name}" for name in made.train)
