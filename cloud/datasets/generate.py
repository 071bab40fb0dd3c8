"""The data sets that any machine can make, by name: their usual sizes, and their records."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from cloud.datasets import stdlib
from cloud.datasets.photos import OPENIMAGES
from cloud.datasets.speech import WAV
from cloud.storage.shards import Record

STDLIB = "stdlib"
PAGES = "pages"
_HELDOUT_PART = 8  # an eighth as many samples as the training samples are held out


@dataclass(frozen=True, slots=True)
class Size:
    """Size of a data set where none is given. `shards` None: as many as its samples fill."""

    shards: int | None
    samples_per_shard: int


SIZES: Mapping[str, Size] = {
    "glyphs": Size(32, 512),
    STDLIB: Size(None, 512),
    "photos": Size(16, 64),
    "speech": Size(16, 256),
    PAGES: Size(None, 64),
    "power": Size(16, 64),
}
"""The data sets of `generate`. The digits (cloud/storage/digits.py) have shards of an older form."""


@dataclass(frozen=True, slots=True)
class Generated:
    """The records of both splits, and what their bytes depend on. `note` says what is missing for the usual ones."""

    records: Iterable[Record]
    made: Mapping[str, Any]
    note: str = ""


def heldout_of(train: int) -> int:
    """Return the default number of held-out samples for `train` training samples."""
    return max(1, train // _HELDOUT_PART)


def generate(
    dataset: str,
    train: int,
    heldout: int | None = None,
    *,
    seed: int = 0,
    chunk_bytes: int = stdlib.CHUNK_BYTES,
    vocabulary: int = stdlib.VOCABULARY,
    sizes: str = OPENIMAGES,
    sound: str = WAV,
) -> Generated:
    """Return a data set with `train` training samples and `heldout` (an eighth as many) held-out ones.

    stdlib has all its texts instead, of at most `chunk_bytes`, and pages all pages; `vocabulary` is that of the tokenizer
    that belongs to them (`stdlib.train_tokenizer`). `sizes`: of photos; `sound`: the form of speech. Raises
    DataSourceError, also from the records, if this machine lacks something, and KeyError for another name.
    """
    heldout = heldout_of(train) if heldout is None else heldout
    if dataset == "glyphs":
        from cloud.datasets.glyphs import glyph_records, glyphs_made

        return Generated(glyph_records(train, heldout, seed=seed), glyphs_made(train, heldout, seed))
    if dataset == "photos":
        from cloud.datasets.photos import photo_records, photos_made

        return Generated(
            photo_records(train, heldout, seed=seed, sizes=sizes), photos_made(train, heldout, seed, sizes)
        )
    if dataset == "speech":
        from cloud.datasets.speech import find_synthesiser, speech_made, speech_records

        synthesiser = find_synthesiser()
        records = speech_records(train, heldout, seed=seed, synthesiser=synthesiser, sound=sound)
        made = speech_made(train, heldout, seed, synthesiser, sound)
        return Generated(records, made, note=synthesiser.reason)
    if dataset == STDLIB:
        made = stdlib.stdlib_made(chunk_bytes, stdlib.HELD_OUT_SHARE, vocabulary, seed)
        return Generated(stdlib.stdlib_records(chunk_bytes=chunk_bytes, seed=seed), made)
    if dataset == PAGES:
        from cloud.datasets.pages import page_records, pages_made

        return Generated(page_records(seed=seed), pages_made(stdlib.HELD_OUT_SHARE, vocabulary, seed))
    if dataset == "power":
        from cloud.datasets.power import power_made, power_records

        return Generated(power_records(train, heldout, seed=seed), power_made(train, heldout, seed))
    raise KeyError(dataset)
