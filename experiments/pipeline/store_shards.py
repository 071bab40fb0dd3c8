"""Write the shards of a strategy's stored prefix, one for each source shard; an interrupted writing goes on."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from cloud.storage.client import storage_errors
from cloud.storage.errors import BadUrlError, CorruptShardError, KeyMissingError, PrefixTakenError
from cloud.storage.opener import ShardOpener
from cloud.storage.publish import (
    Index,
    differences,
    ensure_bucket,
    is_stored,
    list_objects,
    put_index,
    put_shard,
    read_index,
)
from cloud.storage.samples import read_shard
from cloud.storage.shards import INDEX_NAME, SHARD_NAME, TRAIN, Record, Shard, ShardWriter
from cloud.storage.url import S3Url
from experiments.pipeline.errors import BadSampleError, PipelineError
from experiments.pipeline.pipeline import Pipeline
from experiments.pipeline.stored import Prefix, resumed

STORED = "stored"  # key of the manifest in an index's `made`
_SOURCE = "source"


def store_prefix(
    prefix: Prefix,
    shards: Sequence[str],
    opener: ShardOpener,
    client: Any,
    to_url: str,
    *,
    folder: Path,
    endpoint: str = "",
    bad_sample: Callable[[BadSampleError], None] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Index:
    """Store the values of `shards`, in their sorted order, as train-000000.tar ... under `to_url`, and return the index.

    `client` and `endpoint` are those of the destination, whose store has the sources too; `opener` reads them. Each
    shard is written in `folder` and deleted when it is stored. The index names the shards that are finished and is
    complete only at the end, so the same call goes on after the last of them. Its `made` has the manifest, and size
    and ETag of each source.
    `bad_sample` gets what is wrong with a sample, which is left out then; None: it is raised. `progress` gets the number
    of finished shards and of all. Raises PrefixTakenError if other data lies there, BadSampleError, PipelineError,
    StorageError, OSError.
    """
    if not shards:
        raise BadUrlError("there are no shards to read; give a pattern that names some")
    sources = sorted(set(shards))
    place = S3Url.parse(to_url)
    made = {STORED: prefix.manifest(), _SOURCE: [_version(client, url, endpoint) for url in sources]}
    ensure_bucket(client, place.bucket, endpoint)
    index = _begun(client, to_url, json.loads(json.dumps(made)), endpoint)
    if index.complete:
        return index
    finished = {shard.name: shard for shard in index.shards}
    index.shards = []
    put_index(client, place, Index(index.made, list(finished.values()), complete=False), endpoint)
    for number, source in enumerate(sources):
        name = f"{TRAIN}-{number:06d}.tar"
        shard = finished.pop(name, None)
        if shard is not None and is_stored(client, place, shard, endpoint):
            index.shards.append(shard)
        else:
            shard = _written(prefix, source, name, opener, folder, bad_sample)
            put_shard(client, place, shard, endpoint)
            index.shards.append(shard)
            so_far = [*index.shards, *finished.values()]
            put_index(client, place, Index(index.made, so_far, complete=False), endpoint)
        if progress is not None:
            progress(number + 1, len(sources))
    index.complete = True
    put_index(client, place, index, endpoint)
    return index


def stored_pipeline(
    pipeline: Pipeline, shards: Sequence[str], open_url: Callable[[str], BinaryIO]
) -> Pipeline:
    """Return the pipeline that reads the stored `shards` and runs the operations left of `pipeline`.

    Raises PipelineError if they are not shards of one strategy, are unfinished, or were made by other operations;
    StorageError.
    """
    places = sorted({url.rpartition("/")[0] for url in shards})
    if len(places) != 1:
        raise PipelineError(
            f"stored shards lie under one prefix, but these lie under {', '.join(places) or 'none'}; name those of one"
        )
    at_url = places[0]
    try:
        with open_url(f"{at_url}/{INDEX_NAME}") as file:
            index = Index.from_json(file.read().decode(errors="replace"), f"{at_url}/{INDEX_NAME}")
    except KeyMissingError:
        index = Index({})
    if STORED not in index.made:
        raise PipelineError(
            f"{at_url} has no stored values of a pipeline; correct the shards, or remove data.stored"
        )
    if not index.complete:
        raise PipelineError(
            f"{at_url} holds {len(index.shards)} finished shards of {len(index.made.get(_SOURCE, ()))}; "
            "store the rest by the same call"
        )
    known = {shard.name for shard in index.shards}
    if unknown := [url for url in shards if url.rpartition("/")[2] not in known]:
        raise PipelineError(
            f"{unknown[0]} is none of the {len(known)} stored shards under {at_url}; correct the shards"
        )
    return resumed(pipeline, index.made[STORED], at_url)


def _begun(client: Any, to_url: str, made: dict[str, Any], endpoint: str) -> Index:
    """The index of this prefix that is there, or a new one. Raises PrefixTakenError."""
    old = read_index(client, to_url, endpoint=endpoint)
    advice = "choose another prefix"
    if old is not None and old.made != made:
        raise PrefixTakenError(f"{to_url} has another data set ({differences(old.made, made)}); {advice}")
    if old is None and any(SHARD_NAME.fullmatch(n) for n in list_objects(client, to_url, endpoint=endpoint)):
        raise PrefixTakenError(f"{to_url} has shards without an index, of another data set; {advice}")
    return old or Index(made, complete=False)


def _version(client: Any, url: str, endpoint: str) -> dict[str, Any]:
    """URL, size and ETag of a source."""
    at = S3Url.parse(url)
    with storage_errors(endpoint, at.bucket, at.key):
        head = client.head_object(Bucket=at.bucket, Key=at.key)
    return {"url": url, "bytes": int(head["ContentLength"]), "etag": head["ETag"]}


def _written(
    prefix: Prefix,
    source: str,
    name: str,
    opener: ShardOpener,
    folder: Path,
    bad_sample: Callable[[BadSampleError], None] | None,
) -> Shard:
    """Write the stored shard of one source. A file of an earlier attempt is overwritten."""
    number = int(name.removesuffix(".tar").rpartition("-")[2])
    writer = ShardWriter(folder / f"{number:06d}", max_samples=lambda _split, _number: 0)
    samples = 0
    try:
        for sample in read_shard(source, opener.open(source)):
            samples += 1
            try:
                record = prefix.record(sample)
            except BadSampleError as error:
                if bad_sample is None:
                    raise
                bad_sample(error)
                continue
            writer.write(Record(record.key, record.members, TRAIN))
        found = writer.close()
    except BaseException:
        writer.abandon()
        raise
    if not found:
        raise CorruptShardError(
            source, None, "it has no good sample" if samples else "the tar contains no samples"
        )
    shard = found[0]
    assert shard.path is not None  # it was just written
    path = shard.path.replace(folder / name)
    shard.path.parent.rmdir()
    return Shard(name, shard.split, shard.samples, shard.size_bytes, shard.sha256, shard.members, path)
