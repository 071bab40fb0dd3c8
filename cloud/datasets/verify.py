"""Read a stored data set in full and report what is corrupt or inconsistent, by shard and key."""

from __future__ import annotations

import hashlib
import io
import json
import wave
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, BinaryIO

from cloud.datasets.in_order import in_order
from cloud.storage.errors import KeyMissingError, ShardError
from cloud.storage.npy import read_npy
from cloud.storage.opener import ShardOpener
from cloud.storage.publish import Index
from cloud.storage.samples import read_shard
from cloud.storage.shards import HELDOUT, TRAIN
from cloud.storage.url import S3Url

IMAGES = ("jpg", "jpeg", "png", "webp")
SOUNDS = ("wav", "flac", "mp3", "ogg")
TEXTS = ("txt", "json", "cls")
_MAGIC = {
    "wav": (b"RIFF",),
    "flac": (b"fLaC",),
    "ogg": (b"OggS",),
    "mp3": (b"ID3", b"\xff\xfb", b"\xff\xf3", b"\xff\xf2"),
}
_AT_ONCE = 4
_STREAMED_BYTES = 2**32 - 2**20  # a wav written to a pipe promises as much as its header can


@dataclass(frozen=True, slots=True)
class Problem:
    """Something wrong. `key` is "" if it concerns a whole shard, `shard` is "" if it concerns the data set."""

    shard: str
    key: str
    what: str


@dataclass(slots=True)
class ShardFound:
    """What one shard holds."""

    url: str
    size_bytes: int | None = None  # None: it could not be read to its end
    sha256: str = ""
    keys: list[str] = field(default_factory=list)
    extensions: Counter[tuple[str, ...]] = field(default_factory=Counter)
    first_with: dict[tuple[str, ...], list[str]] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)

    @property
    def name(self) -> str:
        return self.url.rpartition("/")[2]

    @property
    def split(self) -> str:
        return HELDOUT if self.name.startswith(f"{HELDOUT}-") else TRAIN


@dataclass(slots=True)
class Verified:
    """The shards in the order given, and all problems."""

    shards: list[ShardFound]
    problems: list[Problem]

    def of(self, split: str) -> list[ShardFound]:
        return [shard for shard in self.shards if shard.split == split]

    def samples(self, split: str) -> int:
        return sum(len(shard.keys) for shard in self.of(split))

    def size_bytes(self, split: str) -> int | None:
        """Bytes of the shards of a split; None if one could not be read."""
        sizes = [shard.size_bytes for shard in self.of(split)]
        return None if None in sizes else sum(size for size in sizes if size is not None)


def verify(
    urls: Sequence[str],
    opener: ShardOpener,
    *,
    index: Index | None = None,
    stored: Mapping[str, int] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Verified:
    """Read all shards and decode every member that has a known extension.

    `index` adds a comparison with what was written, `stored` (names and sizes under the prefix) with what is there now.
    `progress` receives the numbers of shards read and of samples. Raises StorageError if the store does not answer or
    refuses; damage is reported, not raised.
    """
    classes = _classes(index)
    found: list[ShardFound] = []
    samples = 0
    for shard in in_order(
        lambda url: _read(url, opener, classes), urls, threads=_AT_ONCE, ahead=2 * _AT_ONCE
    ):
        found.append(shard)
        samples += len(shard.keys)
        if progress is not None:
            progress(len(found), samples)
    problems = [problem for shard in found for problem in shard.problems]
    problems += [*_members(found), *_keys(found), *_index(found, index, stored)]
    return Verified(found, problems)


def bad_member(extension: str, data: bytes, classes: int | None = None) -> str:
    """Say what is wrong with a member, "" if nothing is or its extension is unknown."""
    kind = extension.rpartition(".")[2].lower()
    if not data:
        return "is empty"
    try:
        if kind in IMAGES:
            _decode_image(data)
        elif kind == "txt":
            data.decode("utf-8")
        elif kind == "json":
            json.loads(data)
        elif kind == "cls":
            label = int(data)
            if label < 0 or (classes is not None and label >= classes):
                return f"is label {label}, out of range" + (f" 0 to {classes - 1}" if classes else "")
        elif kind == "npy":
            read_npy(data)
        elif kind in SOUNDS:
            _decode_sound(kind, data)
    except UnicodeDecodeError as error:
        return f"is not UTF-8 ({error.reason} at byte {error.start})"
    except Exception as error:  # noqa: BLE001 - decoders raise what they like
        return f"cannot be decoded ({str(error) or type(error).__name__})"
    return ""


def _decode_image(data: bytes) -> None:
    from PIL import Image

    with Image.open(io.BytesIO(data)) as image:
        image.load()


def _decode_sound(kind: str, data: bytes) -> None:
    if kind == "wav":
        _check_wave_is_whole(data)
    try:
        import soundfile
    except (ImportError, OSError):  # without it only the beginning of compressed files is looked at
        if not data.startswith(_MAGIC[kind]):
            raise ValueError(f"does not begin as a {kind} file") from None
        return
    samples, _ = soundfile.read(io.BytesIO(data))
    if not len(samples):
        raise ValueError("has no sound")


def _check_wave_is_whole(data: bytes) -> None:
    """Raise ValueError for a wav whose end is missing, which libsndfile reads as a shorter sound."""
    try:
        with wave.open(io.BytesIO(data)) as file:
            frame_bytes = file.getnchannels() * file.getsampwidth()
            promised, present = file.getnframes() * frame_bytes, len(file.readframes(file.getnframes()))
    except wave.Error:  # not PCM, or no wav: libsndfile tells
        return
    if present < promised < _STREAMED_BYTES:
        raise ValueError(f"{promised - present} bytes are missing at the end")


def _classes(index: Index | None) -> int | None:
    listed = index.made.get("classes") if index is not None else None
    return len(listed) if listed else None


def _read(url: str, opener: ShardOpener, classes: int | None) -> ShardFound:
    found = ShardFound(url)
    try:
        file = _Hashing(opener.open(url))
        for sample in read_shard(url, file):  # type: ignore[arg-type]  # it has read and close
            key = sample["__key__"]
            members = tuple(sorted(name for name in sample if not name.startswith("__")))
            found.keys.append(key)
            found.extensions[members] += 1
            keys = found.first_with.setdefault(members, [])
            if len(keys) < 1000:
                keys.append(key)
            for extension in members:
                what = bad_member(extension, sample[extension], classes)
                if what:
                    found.problems.append(Problem(url, key, f"member {extension} {what}"))
    except (ShardError, KeyMissingError) as error:
        found.problems.append(Problem(url, "", str(error).removeprefix(f"{url}: ")))
        return found
    found.size_bytes, found.sha256 = file.size_bytes, file.sha256.hexdigest()
    if not found.keys:
        found.problems.append(Problem(url, "", "the shard has no samples"))
    return found


def _members(found: Sequence[ShardFound]) -> Iterator[Problem]:
    """Samples that have other members than most."""
    total: Counter[tuple[str, ...]] = Counter()
    for shard in found:
        total.update(shard.extensions)
    if len(total) < 2:
        return
    usual = total.most_common(1)[0][0]
    for shard in found:
        for members, keys in shard.first_with.items():
            lacks = [e for e in usual if e not in members]
            more = [e for e in members if e not in usual]
            if not lacks and not more:
                continue
            parts = ([f"lacks {', '.join(lacks)}"] if lacks else []) + (
                [f"also has {', '.join(more)}"] if more else []
            )
            what = f"{' and '.join(parts)}, unlike most samples"
            yield from (Problem(shard.url, key, what) for key in keys)


def _keys(found: Sequence[ShardFound]) -> Iterator[Problem]:
    first: dict[str, ShardFound] = {}
    for shard in found:
        for key in shard.keys:
            other = first.setdefault(key, shard)
            if other is not shard and other.split == shard.split:
                yield Problem(shard.url, key, f"the key is also in {other.name}")
            elif other is not shard:
                yield Problem(shard.url, key, f"the key is also in the other split, in {other.name}")


def _index(
    found: Sequence[ShardFound], index: Index | None, stored: Mapping[str, int] | None
) -> Iterator[Problem]:
    if index is None:
        return
    if not index.complete:
        yield Problem(
            "",
            "",
            "the upload was not finished: its index is incomplete; run the command that writes it again",
        )
        return
    listed = {shard.name: shard for shard in index.shards}
    for shard in found:
        wanted = listed.get(shard.name)
        if wanted is None:
            yield Problem(shard.url, "", "the shard is not in the index")
        elif shard.size_bytes is not None and shard.sha256 != wanted.sha256:
            yield Problem(shard.url, "", "its SHA-256 is not the index's: it was changed or replaced")
        elif shard.size_bytes is not None and len(shard.keys) != wanted.samples:
            yield Problem(
                shard.url, "", f"it has {len(shard.keys)} samples, and the index says {wanted.samples}"
            )
    for file in index.files:
        if stored is not None and stored.get(file["name"]) != file["bytes"]:
            yield Problem("", "", f"{file['name']} is missing or has another size than the index says")


def shard_urls_of(to_url: str, index: Index | None, stored: Mapping[str, int]) -> list[str]:
    """Return the shards to read of a prefix: those of the index, and others that are there."""
    place = S3Url.parse(to_url)
    names = {name for name in stored if name.endswith(".tar")}
    if index is not None and index.complete:
        names |= {shard.name for shard in index.shards}
    return [str(place.join(name)) for name in sorted(names, key=lambda n: (n.startswith(f"{HELDOUT}-"), n))]


class _Hashing:
    """A file being read, with the SHA-256 of what was read."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.sha256 = hashlib.sha256()
        self.size_bytes = 0

    def read(self, size: int = -1) -> bytes:
        data = self._file.read(size)
        self.sha256.update(data)
        self.size_bytes += len(data)
        return data

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> _Hashing:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()
