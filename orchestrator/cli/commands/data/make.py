"""`orch data make`: generate a data set and store it as shards."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from orchestrator.cli.render.output import Format, rows_text
from orchestrator.cli.render.terminal import say

if TYPE_CHECKING:
    from cloud.storage.publish import Index
    from cloud.storage.shards import Record

_COLUMNS = ("split", "shards", "samples", "count")


class _Dataset(StrEnum):
    digits = "digits"
    glyphs = "glyphs"
    stdlib = "stdlib"
    photos = "photos"
    speech = "speech"
    pages = "pages"
    power = "power"


class _Sizes(StrEnum):
    openimages = "openimages"
    imagenet = "imagenet"


class _Sound(StrEnum):
    wav = "wav"
    flac = "flac"
    mp3 = "mp3"


_TEXTS = (_Dataset.stdlib, _Dataset.pages)  # they have as many samples as this Python gives, and a tokenizer
_ONLY_FOR = {
    "chunk_bytes": (_Dataset.stdlib,),
    "vocabulary": _TEXTS,
    "tokenizer_file": _TEXTS,
    "sizes": (_Dataset.photos,),
    "sound": (_Dataset.speech,),
}
"""The data sets that an option is for."""


@dataclass(frozen=True, slots=True)
class _Recipe:
    """What to publish: the records, what describes them, and further objects."""

    records: Iterable[Record]
    made: Mapping[str, Any]
    files: Callable[[], Mapping[str, bytes]] | None = None


def make(
    dataset: Annotated[
        _Dataset,
        typer.Argument(
            help="digits: scikit-learn's handwritten digits, augmented (png, cls). "
            "glyphs: characters in the fonts that matplotlib installs, distorted, 64x64, 62 classes (jpg, cls). "
            "stdlib: source text of Python's standard library, with a tokenizer trained on it (txt). "
            "photos: scikit-learn's two photos, cropped, turned, noised, in OpenImages' or ImageNet's sizes (jpg, cls). "
            "speech: spoken digits with transcripts (wav, flac or mp3; txt). "
            "pages: pydoc's HTML pages of Python's standard library, with a tokenizer trained on their text (html). "
            "power: mains voltage and current by formulas, in which an appliance is switched on (npy, cls).",
        ),
    ],
    to: Annotated[
        str,
        typer.Option(
            "--to", help="Destination: s3://bucket or s3://bucket/prefix. The bucket is created if needed."
        ),
    ],
    shards: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=100_000,
            help="Number of training shards; not for stdlib and pages. [32; photos, speech and power 16]",
        ),
    ] = None,
    samples_per_shard: Annotated[
        int | None,
        typer.Option(
            min=1, max=1_000_000, help="Samples per shard. [512; photos, pages and power 64, speech 256]"
        ),
    ] = None,
    endpoint: Annotated[
        str, typer.Option(help="Endpoint of the store, http(s)://host:port. [boto3's default]")
    ] = "",
    seed: Annotated[
        int, typer.Option(min=0, help="Seed of the data; the same seed gives the same bytes.")
    ] = 0,
    replace: Annotated[
        bool, typer.Option("--replace", help="Replace another data set at the destination; not for digits.")
    ] = False,
    chunk_bytes: Annotated[
        int | None,
        typer.Option(min=16, max=1_000_000, help="stdlib: greatest size of a text, cut at line ends. [512]"),
    ] = None,
    vocabulary: Annotated[
        int | None,
        typer.Option(min=512, max=65_536, help="stdlib, pages: number of tokens of the tokenizer. [2048]"),
    ] = None,
    tokenizer_file: Annotated[
        Path | None,
        typer.Option(
            help="stdlib, pages: where to write the tokenizer on this machine too. [tokenizer.json]"
        ),
    ] = None,
    sizes: Annotated[
        _Sizes | None,
        typer.Option(
            help="photos: the data set whose files they are like. openimages: 1024x768, median 255 kB; imagenet: 500x375, "
            "median 102 kB. [openimages]"
        ),
    ] = None,
    sound: Annotated[
        _Sound | None, typer.Option(help="speech: the form of the sounds; flac and mp3 need soundfile. [wav]")
    ] = None,
    form: Annotated[
        Format, typer.Option("-o", "--output", help="Output format.", show_choices=True)
    ] = Format.table,
) -> None:
    """Write a data set as WebDataset shards to an object store.

    Credentials come from boto3's usual chain (AWS_ACCESS_KEY_ID ..., a profile). Writes training
    shards and held-out shards; no training sample is derived from a held-out original, font, file
    or voice. Everything is generated on this machine. The same versions of the packages give the
    same bytes. After Ctrl-C or an error, run the same command again: what the store already has
    is not uploaded again. index.json, written last, has the counts and SHA-256 of every shard.

    JSON: {"schema_version": 1, "splits": [{"split": "train"|"heldout", "shards": pattern for an
    experiment's data, "samples": n, "count": shards, "bytes" (not for digits)}]}; table and CSV
    have the first four as columns.
    """
    given = {
        "chunk_bytes": chunk_bytes,
        "vocabulary": vocabulary,
        "tokenizer_file": tokenizer_file,
        "sizes": sizes,
        "sound": sound,
    }
    for name, only in _ONLY_FOR.items():
        if dataset not in only and given[name] is not None:
            raise typer.BadParameter(
                f"only for {' and '.join(d.value for d in only)}, not for {dataset.value}",
                param_hint=f"--{name.replace('_', '-')}",
            )
    if dataset in _TEXTS and shards is not None:
        raise typer.BadParameter(
            f"not for {dataset.value}, whose text fills as many as it needs; use --samples-per-shard",
            param_hint="--shards",
        )
    if dataset is _Dataset.digits:
        from cloud.storage.digits import SAMPLES_PER_SHARD, SHARDS

        shards, samples_per_shard = shards or SHARDS, samples_per_shard or SAMPLES_PER_SHARD
        rows = _digits(to, shards, samples_per_shard, seed, endpoint)
    else:
        from cloud.datasets.generate import SIZES
        from cloud.storage.publish import splits_table

        usual = SIZES[dataset.value]
        samples_per_shard = samples_per_shard or usual.samples_per_shard
        with tempfile.TemporaryDirectory(prefix="orch-data-") as folder:
            if dataset in _TEXTS:
                local = tokenizer_file or Path("tokenizer.json")
                recipe = _texts(dataset, chunk_bytes, vocabulary, seed, local)
            else:
                train = (shards or usual.shards or 0) * samples_per_shard
                recipe = _generated(dataset, train, seed, sizes or _Sizes.openimages, sound or _Sound.wav)
            index = store(
                recipe.records,
                to,
                Path(folder),
                made=recipe.made,
                files=recipe.files,
                max_samples=samples_per_shard,
                endpoint=endpoint,
                replace=replace,
            )
        rows = splits_table(index, to)
    typer.echo(rows_text("splits", rows, _COLUMNS, form), nl=False)


def store(records: Iterable[Record], to: str, folder: Path, **options: Any) -> Index:
    """Publish the records with progress on stderr; `options` are those of cloud.storage.publish.publish."""
    from cloud.storage.client import make_client
    from cloud.storage.publish import Progress, publish
    from orchestrator.cli.render.progress import ProgressLine

    line = ProgressLine()

    def text(progress: Progress) -> str:
        return (
            f"{progress.samples} samples, {progress.shards} shards; stored {progress.uploaded} objects "
            f"({progress.uploaded_bytes / 1e6:.1f} MB), {progress.unchanged} were there"
        )

    last = Progress()

    def show(progress: Progress) -> None:
        nonlocal last
        last = progress
        line.show(lambda: text(progress))

    client = make_client(options.get("endpoint", ""))
    say(f"making shards for {to}")
    try:
        index = publish(records, to, client, folder=folder, progress=show, **options)
    except KeyboardInterrupt:
        line.clear()
        say(f"interrupted after {text(last)}; run the same command again to go on")
        raise
    finally:
        line.clear()
    say(text(last))
    return index


def _digits(to: str, shards: int, samples_per_shard: int, seed: int, endpoint: str) -> list[dict[str, Any]]:
    from cloud.storage.client import make_client
    from cloud.storage.digits import make_digits
    from cloud.storage.shards import shard_pattern
    from cloud.storage.url import S3Url

    place = S3Url.parse(to)
    client = make_client(endpoint)
    say(f"generating {shards} shards of {samples_per_shard} digits for {to}")
    with tempfile.TemporaryDirectory(prefix="orch-data-") as folder:
        made = make_digits(
            shards,
            to,
            client,
            folder=Path(folder),
            samples_per_shard=samples_per_shard,
            seed=seed,
            endpoint=endpoint,
        )
    say(f"{made.size_bytes} bytes written")
    return [
        {"split": split, "shards": str(place.join(shard_pattern(names))), "samples": n, "count": len(names)}
        for split, names, n in (
            ("train", made.train, made.train_samples),
            ("heldout", made.heldout, made.heldout_samples),
        )
    ]


def _generated(dataset: _Dataset, train: int, seed: int, sizes: _Sizes, sound: _Sound) -> _Recipe:
    """The data sets whose number of samples is chosen."""
    from cloud.datasets.generate import generate

    found = generate(dataset.value, train, seed=seed, sizes=sizes.value, sound=sound.value)
    if found.note:
        say(found.note)
    return _Recipe(found.records, found.made)


def _texts(
    dataset: _Dataset, chunk_bytes: int | None, vocabulary: int | None, seed: int, local: Path
) -> _Recipe:
    """The data sets of texts, whose tokenizer is trained on the training samples while they are written."""
    from cloud.datasets import stdlib
    from cloud.datasets.generate import generate

    chunk_bytes = chunk_bytes or stdlib.CHUNK_BYTES
    vocabulary = vocabulary or stdlib.VOCABULARY
    if dataset is _Dataset.pages:
        say("making pydoc's pages of Python's standard library, which takes up to a minute")
    found = generate(dataset.value, 0, seed=seed, chunk_bytes=chunk_bytes, vocabulary=vocabulary)
    text = stdlib.text_member if dataset is _Dataset.stdlib else _page_text
    records = stdlib.TrainTexts(found.records, text)

    def files() -> dict[str, bytes]:
        say(f"training a tokenizer of {vocabulary} tokens on {len(records.texts)} texts")
        tokenizer = stdlib.train_tokenizer(records.texts, vocabulary)
        _write_tokenizer(local, tokenizer)
        return {stdlib.TOKENIZER_NAME: tokenizer}

    return _Recipe(records, found.made, files)


def _page_text(record: Record) -> str:
    from experiments.pipeline.builtin.html_text import text_of_html

    return text_of_html(record.members["html"])


def _write_tokenizer(path: Path, content: bytes) -> None:
    from orchestrator.errors import UsageError

    try:
        if path.exists() and path.read_bytes() != content:
            raise UsageError(
                f"{path} exists and is another tokenizer; move it, or name another file with --tokenizer-file"
            )
        path.write_bytes(content)
    except OSError as error:
        raise UsageError(
            f"{path} cannot be written ({error.strerror}); name another file with --tokenizer-file"
        ) from error
    say(f"the tokenizer is in {path}")
