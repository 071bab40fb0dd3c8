"""Check that photos come out of a pipeline the same, bit for bit, however they are read.

Photos are generated and stored in the embedded store. The `imagenet` pipeline then reads one pass of them with threads and
processes, 1, 2 and 4 streams, in and out of order, decoded ahead and stored with each codec, over connections that are cut,
and in a process that is killed again and again. Prints a row per way of reading: samples, and whether keys and SHA-256 of
the tensors are those of the first row. Exits with 1 if any differ.

    python -m benchmarks.same_tensors --samples 500
"""

from __future__ import annotations

import argparse
import hashlib
import json
import multiprocessing
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, cast

from cloud.storage.opener import RetryPolicy, ShardOpener
from cloud.storage.samples import Cursor
from experiments.peer.training.bad_samples import BadSamples
from experiments.peer.training.decoding import Decoder, Workers
from experiments.peer.training.loader import TaskSource
from experiments.pipeline.pipeline import Item
from experiments.pipeline.store_shards import store_prefix, stored_pipeline
from experiments.pipeline.stored import STORED_CODECS, Prefix
from orchestrator.pipeline.opened import OpenInput, open_input
from orchestrator.pipeline.target import find_target

Digests = dict[str, str]
"""SHA-256 of an item's values by the sample's key."""

_BATCH_SAMPLES = 10
_SEED = 11
_CUT_BYTES = 300_000  # after which a connection is cut
_KILL_AFTER_BATCHES = 3


class CutClient:
    """A client whose connections are shut down after `_CUT_BYTES` of an object have been read. `cuts` counts them."""

    def __init__(self, client: Any) -> None:
        self._client, self.cuts = client, 0

    def get_object(self, **request: Any) -> dict[str, Any]:
        """Get an object over a connection that will be cut."""
        answer = self._client.get_object(**request)
        return {**answer, "Body": _CutBody(answer["Body"], self)}


class _CutBody:
    def __init__(self, body: Any, client: CutClient) -> None:
        self._body, self._client, self._left = body, client, _CUT_BYTES

    def read(self, size: int) -> bytes:
        if self._left <= 0:
            with suppress(OSError, AttributeError):  # already closed
                self._body._raw_stream._connection.sock.shutdown(socket.SHUT_RDWR)
                self._client.cuts += 1
        data = self._body.read(size)
        self._left -= len(data)
        return data

    def close(self) -> None:
        self._body.close()


def digest(item: Item) -> str:
    """SHA-256 of an item's values with their types and shapes."""
    import numpy as np

    found = hashlib.sha256()
    for name in sorted(item):
        value = np.asarray(item[name])
        found.update(f"{name} {value.dtype} {value.shape} ".encode())
        found.update(value.tobytes())
    return found.hexdigest()


def source(
    opened: OpenInput, opener: ShardOpener, workers: Workers, streams: int, cursor: Cursor | None = None
) -> TaskSource:
    """The source of a peer's training batches, which are lists of items here."""
    return TaskSource(
        opened.shards,
        opener.open,
        Decoder(opened.pipeline, _SEED),
        list,
        workers,
        BadSamples("fail", lambda _: None),
        cursor=cursor,
        streams=streams,
    )


def batches(made: TaskSource) -> Iterator[tuple[Digests, Cursor, bool]]:
    """Digests of the samples of pass 0 in each batch, the cursor after it, and whether all samples of pass 0 have been read.

    Out of order, samples of pass 0 may come after batches of the next pass; the cursor is behind all samples that came.
    """
    while True:
        loaded = made.next_batch(_BATCH_SAMPLES)
        passes = [span.pass_number for span in loaded.spans for _ in range(span.first, span.end)]
        places = zip(passes, loaded.samples, loaded.batch, strict=True)
        first = {key: digest(item) for number, (_, key), item in places if number == 0}
        yield first, loaded.cursor, loaded.cursor.epoch > 0


def one_pass(opened: OpenInput, opener: ShardOpener, workers: Workers, streams: int) -> Digests:
    """Digests of all samples of pass 0. Raises AssertionError if a sample comes twice."""
    found: Digests = {}
    with closing(source(opened, opener, workers, streams)) as made:
        for first, _, all_read in batches(made):
            assert not found.keys() & first.keys(), "a sample came twice in one pass"
            found |= first
            if all_read:
                return found
    raise AssertionError("the source ended")


def _read_until_killed(opened: OpenInput, workers: Workers, streams: int, log: Path, at: Cursor) -> None:
    os.setsid()  # its worker processes end with it, by their own death signal
    opener = ShardOpener(opened.client, endpoint=opened.endpoint)
    with log.open("a") as file:
        for first, cursor, all_read in batches(source(opened, opener, workers, streams, at)):
            file.write(json.dumps({"digests": first, "cursor": asdict(cursor), "all_read": all_read}) + "\n")
            file.flush()
            if all_read:
                return


def killed_and_resumed(opened: OpenInput, workers: Workers, streams: int, log: Path) -> tuple[Digests, int]:
    """Read pass 0 in processes that are killed after some batches each, the next from where the last one was.

    Returns the digests and the number of kills. Raises AssertionError if a sample that came again differs.
    """
    found: Digests = {}
    cursor, kills = Cursor(), 0
    context = multiprocessing.get_context("spawn")
    sent = replace(opened, opener=cast(Any, None))  # the child makes its own
    while True:
        log.write_text("")
        child = context.Process(target=_read_until_killed, args=(sent, workers, streams, log, cursor))
        child.start()
        while child.is_alive() and log.read_bytes().count(b"\n") < _KILL_AFTER_BATCHES:
            time.sleep(0.02)
        if child.is_alive():
            assert child.pid is not None
            os.kill(child.pid, signal.SIGKILL)
            kills += 1
        child.join()
        rows = [json.loads(line) for line in log.read_text().splitlines(keepends=True) if line.endswith("\n")]
        assert rows, "a process ended before its first batch"
        for row in rows:
            changed = [key for key, value in row["digests"].items() if found.get(key, value) != value]
            assert not changed, f"samples {changed} came again and differ"
            found |= row["digests"]
            if row["all_read"]:
                return found, kills
        cursor = Cursor(**{**rows[-1]["cursor"], "done": tuple(rows[-1]["cursor"]["done"])})


def ways(opened: OpenInput, codecs: Sequence[str]) -> Iterator[tuple[str, Callable[[], Digests]]]:
    """Each way of reading with its name; the first is the one that the others are compared with."""
    plain = opened.opener
    yield "1 thread", lambda: one_pass(opened, plain, Workers(), 1)
    for streams in (2, 4):
        yield f"1 thread, {streams} streams", lambda n=streams: one_pass(opened, plain, Workers(), n)
    yield "2 threads", lambda: one_pass(opened, plain, Workers("thread", 2), 1)
    yield (
        "2 threads, not in order, 2 streams",
        lambda: one_pass(opened, plain, Workers("thread", 2, in_order=False), 2),
    )
    yield "2 processes", lambda: one_pass(opened, plain, Workers("process", 2), 1)
    yield (
        "2 processes, not in order, 4 streams",
        lambda: one_pass(opened, plain, Workers("process", 2, in_order=False), 4),
    )

    def cut() -> Digests:
        client = CutClient(opened.client())
        retry = RetryPolicy(first_wait_s=0.01)
        found = one_pass(
            opened, ShardOpener(lambda: client, endpoint=opened.endpoint, retry=retry), Workers(), 4
        )
        assert client.cuts, "no connection was cut"
        return found

    yield "4 streams over connections that are cut", cut

    def killed() -> Digests:
        found, kills = killed_and_resumed(opened, Workers("thread", 2), 2, opened.folder / "killed.jsonl")
        assert kills, "no process was killed"
        return found

    yield "2 streams, killed and resumed", killed
    for codec in codecs:
        yield f"decode stored with {codec}", lambda codec=codec: _stored(opened, codec)


def _stored(opened: OpenInput, codec: Any) -> Digests:
    folder = opened.folder / codec
    folder.mkdir()
    to_url = f"s3://orch-pipeline/stored-{codec}"
    index = store_prefix(
        Prefix(opened.pipeline, 1, codec),
        opened.shards,
        opened.opener,
        opened.client(),
        to_url,
        folder=folder,
        endpoint=opened.endpoint,
    )
    shards = tuple(f"{to_url}/{shard.name}" for shard in index.shards)
    online = stored_pipeline(opened.pipeline, shards, opened.opener.open)
    return one_pass(replace(opened, shards=shards, pipeline=online), opened.opener, Workers("thread", 2), 2)


def compare(samples: int, codecs: Sequence[str], say: Callable[[str], None] = print) -> bool:
    """Whether all ways give the same set of keys and digests, of as many samples."""
    same = True
    with open_input(find_target("imagenet"), samples=samples) as opened:
        first: Digests = {}
        for name, read in ways(opened, codecs):
            began_s = time.monotonic()
            found = read()
            first = first or found
            good = found == first and len(found) == samples
            same = same and good
            say(
                f"{name:42} {len(found):5} samples  {'same' if good else 'DIFFERENT':9}  {time.monotonic() - began_s:6.1f} s"
            )
    return same


def main() -> int:
    """Returns 1 if any way of reading gives other tensors."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--samples", type=int, default=500)
    return 0 if compare(parser.parse_args().samples, STORED_CODECS) else 1


if __name__ == "__main__":
    sys.exit(main())
