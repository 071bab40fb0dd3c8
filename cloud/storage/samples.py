"""Samples of tar shards: strict about damage, endless, shuffled by a seed, and resumable from a cursor."""

from __future__ import annotations

import heapq
import random
import tarfile
import threading
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from hashlib import blake2b
from typing import Any, BinaryIO, cast

from cloud.storage.errors import BadUrlError, CorruptShardError, TruncatedShardError
from cloud.storage.streams import Streams

Sample = dict[str, Any]
"""Members of one sample by extension (bytes), with `__key__` (its name) and `__url__` (its shard's URL)."""

_DRAIN_BYTES = 1 << 20


def read_shard(shard: str, file: BinaryIO) -> Iterator[Sample]:
    """Yield the samples of one WebDataset tar in order; `file` is read to its end and closed.

    Members with the same name up to the first dot form one sample; extensions keep their case. Entries that are not
    regular files and names with a leading dot are skipped. Raises TruncatedShardError and CorruptShardError; damage is
    never skipped, nor is data after the end-of-archive mark.

    webdataset's readers are not used: its tar iterator takes damage between two members for the end of the shard
    (docs/design.md), and it imports torch.
    """
    for _, sample in read_entries(shard, file):
        yield sample


def read_entries(shard: str, file: BinaryIO) -> Generator[tuple[tarfile.TarInfo, Sample], None, None]:
    """Do the same, and give the tar's entry of each sample's first member; its `offset` counts from the file's start."""
    first = tarfile.TarInfo()
    sample: Sample = {}
    with file:
        for entry, data in _members(shard, file):
            key, extension = _split(entry.name)
            if key is None or extension is None:
                continue
            if key != sample.get("__key__"):
                if sample:
                    yield first, sample
                first = entry
                sample = {"__key__": key, "__url__": shard}
            if extension in sample:
                raise CorruptShardError(shard, None, f"member {entry.name} occurs twice")
            sample[extension] = data
        if sample:
            yield first, sample


@dataclass(frozen=True, slots=True)
class Cursor:
    """Position of a reader: `samples` of `shard` have been read, in pass `epoch`, after the shards in `done`.

    `epoch` is a pass over the share here, not a Hivemind epoch.
    """

    epoch: int = 0
    done: tuple[str, ...] = ()
    shard: str = ""  # "" between two shards
    samples: int = 0


class SampleReader:
    """An endless iterator over the samples of a share of the shards.

    Each pass visits the shards in a new order and shuffles the samples of a shard with a buffer of `shuffle` samples (0:
    the tar's order); both depend only on `seed`. `cursor` is the reader's position; a reader created with it continues
    with the next sample. `set_shards` may be called at any time from any thread and takes effect after the current
    shard. Iteration raises the errors of `open_shard` and read_shard.

    `streams`: shards that are downloaded at once, in other threads, in which `open_shard` is called: the one being read and
    the next ones; when a shard has been read into the buffer, the one after them begins. They change neither the samples nor
    their order, nor the sample before which an error is raised.
    """

    def __init__(
        self,
        shards: Sequence[str],
        open_shard: Callable[[str], BinaryIO],
        *,
        seed: int = 0,
        shuffle: int = 0,
        cursor: Cursor | None = None,
        streams: int = 1,
    ) -> None:
        self._streams = Streams(open_shard, streams)
        self._seed = seed
        self._shuffle = shuffle
        self._cursor = cursor or Cursor()
        self._lock = threading.Lock()
        self._shards: frozenset[str] = frozenset()
        self.set_shards(shards)
        self._samples = self._endless()
        self._sizes: dict[str, int] = {}

    @property
    def shard_samples(self) -> Mapping[str, int]:
        """Number of samples of each shard that has been read to its end. May be read in any thread."""
        return self._sizes.copy()

    @property
    def cursor(self) -> Cursor:
        """Position after the last sample returned."""
        return self._cursor

    @property
    def shards(self) -> tuple[str, ...]:
        """The share of the shards, sorted."""
        with self._lock:
            return tuple(sorted(self._shards))

    def set_shards(self, shards: Sequence[str]) -> None:
        """Change the share. Raises BadUrlError if it is empty."""
        if not shards:
            raise BadUrlError(
                "there are no shards to read; give the experiment's data a pattern that names some"
            )
        with self._lock:
            self._shards = frozenset(shards)
        self._streams.retain(shards)

    def start_at(self, cursor: Cursor) -> None:
        """Change the position before the first sample is read."""
        self._cursor = cursor

    def __iter__(self) -> Iterator[Sample]:
        return self

    def __next__(self) -> Sample:
        return next(self._samples)

    def close(self) -> None:
        """Close the shard being read, and end the downloads of the next ones."""
        self._samples.close()
        self._streams.close()

    def _endless(self) -> Generator[Sample, None, None]:
        while True:
            at = self._cursor
            shard, skip = (at.shard, at.samples) if at.shard else (self._next_shard(at), 0)
            if not shard:
                self._cursor = Cursor(at.epoch + 1)
                continue
            mixed = _mixed(self._whole(shard, at), self._shuffle, self._order(at.epoch, shard))
            for given, sample in enumerate(mixed, start=1):
                if given > skip:
                    self._cursor = Cursor(at.epoch, at.done, shard, given)
                    yield sample
            self._cursor = Cursor(at.epoch, (*at.done, shard))

    def _next_shard(self, at: Cursor) -> str:
        """Return the next shard of this pass; "" at the end of the pass."""
        with self._lock:
            left = self._shards.difference(at.done)
        return min(left, key=lambda shard: self._order(at.epoch, shard), default="")

    def _following(self, epoch: int, done: Collection[str], most: int, reading: str = "") -> list[str]:
        """At most `most` shards that come next if the share stays, all different and not `reading`.

        They end before a shard that comes again: it may be in the cache by then.
        """
        found: list[str] = []
        while len(found) < most:
            with self._lock:
                left = self._shards.difference(done)
            following = heapq.nsmallest(
                most - len(found), left, key=partial(self._order, epoch)
            )  # each is hashed once a pass
            for one in following:
                if one == reading or one in found:
                    return found
                found.append(one)
            epoch, done = epoch + 1, ()
        return found

    def _whole(self, shard: str, at: Cursor) -> Iterator[Sample]:
        done, count = (*at.done, shard), 0
        ahead = self._following(at.epoch, done, self._streams.count - 1, shard)
        for sample in read_shard(shard, self._streams.open(shard, ahead)):
            count += 1
            yield sample
        if not count:
            raise CorruptShardError(shard, 0, "the tar contains no samples")
        self._sizes[shard] = count
        # the buffer still holds samples of this shard: without this, nothing would be downloaded while they are used
        self._streams.begin(self._following(at.epoch, done, self._streams.count))

    def _order(self, epoch: int, shard: str) -> bytes:
        # Ordered by hash instead of a shuffled list: changing the share does not change the order of the other shards.
        return blake2b(f"{self._seed}\0{epoch}\0{shard}".encode(), digest_size=16).digest()


def _mixed(samples: Iterator[Sample], size: int, seed: bytes) -> Iterator[Sample]:
    if size <= 1:
        yield from samples
        return
    rng = random.Random(seed)
    held: list[Sample] = []
    for sample in samples:
        if len(held) < size:
            held.append(sample)
            continue
        index = rng.randrange(size)
        held[index], sample = sample, held[index]
        yield sample
    rng.shuffle(held)
    yield from held


def _members(shard: str, file: BinaryIO) -> Iterator[tuple[tarfile.TarInfo, bytes]]:
    source = _Counting(file)
    try:
        # tarfile only calls read() on a stream
        with tarfile.open(fileobj=cast(Any, source), mode="r|", tarinfo=_strict(shard, source)) as tar:
            for member in tar:
                if not member.isreg():
                    continue
                content = tar.extractfile(member)
                assert content is not None  # a regular file has one
                data = content.read()
                tar.members.clear()  # type: ignore[attr-defined]  # tarfile would keep every header
                yield member, data
            _check_rest(shard, tar.fileobj)
    except tarfile.StreamError as error:
        raise CorruptShardError(shard, source.position, f"the tar cannot be read ({error})") from error
    except tarfile.ReadError as error:
        if source.ended:
            raise TruncatedShardError(shard, source.position) from error
        raise CorruptShardError(shard, source.position, f"the tar cannot be read ({error})") from error


def _check_rest(shard: str, rest: Any) -> None:
    """Read the rest of the object, which a cache needs too: only zeros may follow the end-of-archive mark."""
    while data := rest.read(_DRAIN_BYTES):
        if data.count(0) != len(data):
            raise CorruptShardError(
                shard, None, "data follows the end-of-archive mark (a zeroed block, or two tars in one file)"
            )


class _Counting:
    """The stream that tarfile reads: tracks the position and whether the end was reached."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.position = 0
        self.ended = False

    def read(self, size: int) -> bytes:
        data = self._file.read(size)
        self.position += len(data)
        self.ended = self.ended or len(data) < size
        return data


def _strict(shard: str, source: _Counting) -> type[tarfile.TarInfo]:
    """Return a TarInfo class that raises where tarfile treats a missing or broken header as the end of the archive."""

    class StrictTarInfo(tarfile.TarInfo):
        @classmethod
        def fromtarfile(cls, tarfile_: tarfile.TarFile) -> StrictTarInfo:
            at = tarfile_.fileobj.tell()  # type: ignore[union-attr]
            try:
                return super().fromtarfile(tarfile_)
            except (tarfile.EmptyHeaderError, tarfile.TruncatedHeaderError) as error:  # type: ignore[attr-defined]
                raise TruncatedShardError(shard, source.position) from error
            except tarfile.EOFHeaderError:  # type: ignore[attr-defined]  # the end-of-archive mark
                raise
            except (tarfile.HeaderError, ValueError, OverflowError) as error:
                raise CorruptShardError(shard, at, f"not a tar header ({error})") from error

    return StrictTarInfo


def _split(name: str) -> tuple[str, str] | tuple[None, None]:
    """Split 'dir/0001.cls.txt' into ('dir/0001', 'cls.txt'); (None, None) if it is not a sample's member."""
    folder, slash, base = name.rpartition("/")
    stem, _, extension = base.partition(".")
    return (folder + slash + stem, extension) if stem and extension else (None, None)
