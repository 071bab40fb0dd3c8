"""Write samples as tar shards: the same samples in the same order give the same bytes, and an index describes them."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, cast

from cloud.storage.errors import DataSourceError

TRAIN = "train"
HELDOUT = "heldout"
SPLITS = (TRAIN, HELDOUT)
INDEX_NAME = "index.json"
INDEX_FORMAT = 1
SHARD_NAME = re.compile(rf"({TRAIN}|{HELDOUT})-\d{{6,}}\.tar")

_BAD_KEY = re.compile(r"[\x00-\x1f\x7f]")
_BLOCK_BYTES = 512

MaxSamples = int | Callable[[str, int], int]
"""The most samples of a shard (0: no limit), for all shards or as a function of split and number."""


@dataclass(frozen=True, slots=True)
class Record:
    """A sample to be written: members by extension. `split` is "" if the hash of the key decides."""

    key: str
    members: Mapping[str, bytes]
    split: str = ""


@dataclass(frozen=True, slots=True)
class Shard:
    """A finished shard. `members` are the bytes of its members by extension, without the tar's headers."""

    name: str
    split: str
    samples: int
    size_bytes: int
    sha256: str
    members: Mapping[str, int]
    path: Path | None = field(default=None, compare=False)

    def as_dict(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "samples": self.samples,
            "bytes": self.size_bytes,
            "sha256": self.sha256,
            "members": dict(sorted(self.members.items())),
        }


def fraction_of(key: str, seed: int = 0) -> float:
    """Map a key to a number from 0 to 1, evenly distributed and the same everywhere."""
    digest = hashlib.blake2b(f"{seed}\0{key}".encode("utf-8", "surrogateescape"), digest_size=8).digest()
    return int.from_bytes(digest, "big") / 2**64


def split_of(key: str, heldout: float) -> str:
    """Return the split of a key, where a share of `heldout` of all keys is held out.

    A larger share keeps what was held out before. Adding samples moves no other one.
    """
    return HELDOUT if fraction_of(key) < heldout else TRAIN


def shard_pattern(names: list[str] | tuple[str, ...]) -> str:
    """Return the brace pattern of shard names that differ only in their number: `train-{000000..000031}.tar`."""
    first, last = names[0], names[-1]
    if first == last:
        return first
    stem, _, low = first.removesuffix(".tar").rpartition("-")
    return f"{stem}-{{{low}..{last.removesuffix('.tar').rpartition('-')[2]}}}.tar"


def safe_key(text: str) -> str:
    """Turn a name into a key: the dots of its last part, which would start an extension, become underscores."""
    folder, slash, base = text.strip("/").rpartition("/")
    return folder + slash + base.replace(".", "_")


class ShardWriter:
    """Writes records to the current shard of their split, in `folder`.

    A shard ends before the record with which it would have more than `max_samples` or `max_bytes` (0: no limit); one
    record alone may be larger. `max_samples` may be a function of a shard's split and number. `split_of` decides for
    records without a split of their own.
    """

    def __init__(
        self, folder: Path, *, heldout: float = 0.0, max_samples: MaxSamples = 0, max_bytes: int = 0
    ) -> None:
        if callable(max_samples):
            self._max_samples = max_samples
        elif max_samples < 0 or max_bytes < 0 or not (max_samples or max_bytes):
            raise ValueError(
                f"shards of {max_samples} samples and {max_bytes} bytes: one limit must be positive"
            )
        else:
            self._max_samples = lambda _split, _number: max_samples
        if not 0 <= heldout < 1:
            raise ValueError(f"a held-out share of {heldout}: it must be at least 0 and below 1")
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._heldout = heldout
        self._max_bytes = max_bytes
        self._open: dict[str, _OpenShard] = {}
        self._shards: Counter[str] = Counter()
        self._seen: set[bytes] = set()

    def write(self, record: Record) -> list[Shard]:
        """Write one record and return the shards that this finished. Raises DataSourceError for a bad or double key."""
        _check(record)
        digest = hashlib.blake2b(record.key.encode("utf-8", "surrogateescape"), digest_size=12).digest()
        if digest in self._seen:
            raise DataSourceError(
                f"the key '{record.key}' occurs twice; give each sample a name of its own (dots count as underscores)"
            )
        self._seen.add(digest)
        split = record.split or split_of(record.key, self._heldout)
        size = sum(
            _BLOCK_BYTES + -(-len(data) // _BLOCK_BYTES) * _BLOCK_BYTES for data in record.members.values()
        )
        done: list[Shard] = []
        shard = self._open.get(split)
        if shard is not None and shard.is_full(size, self._max_bytes):
            done.append(self._finish(split))
            shard = None
        if shard is None:
            name = f"{split}-{self._shards[split]:06d}.tar"
            most = self._max_samples(split, self._shards[split])
            shard = self._open[split] = _OpenShard(self._folder / name, split, most)
            self._shards[split] += 1
        shard.write(record, size)
        return done

    def close(self) -> list[Shard]:
        """Finish the last shard of each split."""
        return [self._finish(split) for split in sorted(self._open, reverse=True)]

    def abandon(self) -> None:
        """Delete the unfinished shards."""
        for shard in self._open.values():
            shard.abandon()
        self._open.clear()

    def _finish(self, split: str) -> Shard:
        return self._open.pop(split).finish()


class _OpenShard:
    """A shard being written, of at most `max_samples` samples (0: no limit)."""

    def __init__(self, path: Path, split: str, max_samples: int) -> None:
        from webdataset.writer import TarWriter

        self.file = _HashingFile(path.open("wb"))
        self._path = path
        self._split = split
        self._max_samples = max_samples
        # tarfile only calls write() on a stream
        self._tar = TarWriter(
            cast(Any, self.file), encoder=False, compress=False, user="", group="", mode=0o644, mtime=0
        )
        self._samples = 0
        self._bytes = 0
        self._members: Counter[str] = Counter()

    def is_full(self, more_bytes: int, max_bytes: int) -> bool:
        """Whether the shard has no room for one more record of `more_bytes`."""
        end_bytes = self._bytes + more_bytes + 2 * _BLOCK_BYTES
        many = self._max_samples and self._samples >= self._max_samples
        return bool(many or (max_bytes and end_bytes > max_bytes))

    def write(self, record: Record, size_bytes: int) -> None:
        self._tar.write({"__key__": record.key, **record.members})
        self._samples += 1
        self._bytes += size_bytes
        for extension, data in record.members.items():
            self._members[extension] += len(data)

    def finish(self) -> Shard:
        self._tar.close()
        self.file.close()
        return Shard(
            self._path.name,
            self._split,
            self._samples,
            self.file.size_bytes,
            self.file.sha256.hexdigest(),
            dict(self._members),
            self._path,
        )

    def abandon(self) -> None:
        self._tar.close()
        self.file.close()
        self._path.unlink(missing_ok=True)


class _HashingFile:
    """A file for writing that computes the SHA-256 of what is written."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.sha256 = hashlib.sha256()
        self.size_bytes = 0

    def write(self, data: bytes) -> int:
        self.sha256.update(data)
        self.size_bytes += len(data)
        return self._file.write(data)

    def close(self) -> None:
        self._file.close()


def _check(record: Record) -> None:
    base = record.key.rpartition("/")[2]
    if not base or "." in base or record.key.startswith("/") or _BAD_KEY.search(record.key):
        raise DataSourceError(
            f"'{record.key}' cannot be a sample's key; use a name without dots and control characters"
        )
    if not record.members:
        raise DataSourceError(f"sample {record.key} has no members; give it at least one file or column")
    for extension in record.members:
        if not extension or extension.startswith(("_", ".")) or "/" in extension:
            raise DataSourceError(
                f"sample {record.key}: '{extension}' cannot be an extension; use one such as jpg, txt or cls"
            )
