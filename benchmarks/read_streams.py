"""Measure what several streams gain over a long path: MB/s and samples/s of a SampleReader, by number of streams.

The shards are random bytes in memory. `--link 210,103` limits each stream to 210 Mb/s with a round trip of 103 ms
(cloud.storage.link); the rest is what a peer runs: opener, streams, tar reader. Prints a row per number of streams, and
exits with 1 if any number gives other samples than one stream.

    python -m benchmarks.read_streams --link 210,103 --streams 1 2 4 8
"""

from __future__ import annotations

import argparse
import hashlib
import io
import random
import tarfile
import time
from typing import Any

from cloud.storage.link import Link, linked
from cloud.storage.opener import ShardOpener
from cloud.storage.samples import SampleReader


class MemoryStore:
    """An S3 client whose objects are `count` shards of `samples` samples of `sample_bytes` each."""

    def __init__(self, count: int, samples: int, sample_bytes: int) -> None:
        draws = random.Random(0)
        self.objects: dict[str, bytes] = {}
        for number in range(count):
            target = io.BytesIO()
            with tarfile.open(fileobj=target, mode="w") as tar:
                for sample in range(samples):
                    member = tarfile.TarInfo(f"{number:03d}-{sample:05d}.jpg")
                    member.size = sample_bytes
                    tar.addfile(member, io.BytesIO(draws.randbytes(sample_bytes)))
            self.objects[f"train-{number:06d}.tar"] = target.getvalue()

    def get_object(self, *, Key: str, **_: Any) -> dict[str, Any]:
        """Answer as boto3 does."""
        data = self.objects[Key]
        return {"ETag": Key, "ContentLength": len(data), "Body": io.BytesIO(data)}


def read_pass(store: MemoryStore, samples: int, link: Link, streams: int) -> tuple[float, str]:
    """Read one pass. Returns its seconds and a SHA-256 of keys and bytes in their order."""
    opener = ShardOpener(linked(lambda: store, link))
    urls = [f"s3://benchmark/{name}" for name in store.objects]
    reader = SampleReader(urls, opener.open, streams=streams)
    found = hashlib.sha256()
    began_s = time.monotonic()
    for _ in range(samples):
        sample = next(reader)
        found.update(sample["__key__"].encode())
        found.update(sample["jpg"])
    took_s = time.monotonic() - began_s
    reader.close()
    return took_s, found.hexdigest()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--link", type=Link.parse, default=Link(210, 103), help="Mb/s of a stream, ms")
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 2, 4, 8])
    parser.add_argument("--shards", type=int, default=16)
    parser.add_argument("--samples", type=int, default=40, help="of a shard")
    parser.add_argument("--sample-bytes", type=int, default=255_000)
    options = parser.parse_args()
    store = MemoryStore(options.shards, options.samples, options.sample_bytes)
    count = options.shards * options.samples
    size_bytes = sum(map(len, store.objects.values()))
    _, expected = read_pass(store, count, Link(1e6, 0), 1)
    link = f"{options.link.rate_mbps:g} Mb/s a stream, {options.link.rtt_ms:g} ms"
    print(f"{options.shards} shards, {size_bytes / 1e6:.0f} MB, {count} samples; {link}")
    same = True
    for streams in options.streams:
        took_s, found = read_pass(store, count, options.link, streams)
        same = same and found == expected
        print(
            f"streams {streams:2d}: {took_s:7.2f} s, {size_bytes / took_s / 1e6:7.1f} MB/s, {count / took_s:7.1f} samples/s"
            f"{'' if found == expected else ', OTHER SAMPLES'}"
        )
    return 0 if same else 1


if __name__ == "__main__":
    raise SystemExit(main())
