"""`orch data pack`: store a user's own files as shards."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

import typer

from orchestrator.cli.commands.data.make import store
from orchestrator.cli.render.output import Format, rows_text
from orchestrator.cli.render.terminal import say

_COLUMNS = ("split", "shards", "samples", "count", "bytes")
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*(kB|MB|GB|B)?")
_UNITS = {"B": 1, "kB": 10**3, "MB": 10**6, "GB": 10**9}
_MOST_SHOWN = 10


def pack(
    source: Annotated[
        Path,
        typer.Argument(
            help="Folder with a folder of images for each class; .csv, .tsv, .jsonl or .parquet file, or a folder "
            "of them; folder of sounds with transcripts; folder that datasets.save_to_disk wrote."
        ),
    ],
    to: Annotated[
        str,
        typer.Argument(
            metavar="URL", help="s3://bucket or s3://bucket/prefix. The bucket is created if needed."
        ),
    ],
    kind: Annotated[
        Literal["auto", "images", "table", "audio", "dataset"],
        typer.Option(help="What SOURCE is.", show_choices=True),
    ] = "auto",
    column: Annotated[
        list[str] | None,
        typer.Option(
            metavar="EXTENSION=COLUMN",
            help="Tables: column to store as a member, such as txt=review. Repeatable.",
        ),
    ] = None,
    file: Annotated[
        list[str] | None,
        typer.Option(
            metavar="EXTENSION=COLUMN",
            help="Tables: column with paths, relative to the table, of files to store. Repeatable.",
        ),
    ] = None,
    key: Annotated[
        str, typer.Option(metavar="COLUMN", help="Tables: column with the names of samples.")
    ] = "",
    shard_size: Annotated[
        str, typer.Option(metavar="SIZE", help="Greatest size of a shard: a number with kB, MB or GB.")
    ] = "64MB",
    samples_per_shard: Annotated[
        int, typer.Option(min=0, max=10_000_000, help="Greatest number of samples in a shard; 0: no limit.")
    ] = 0,
    text_bytes: Annotated[
        str,
        typer.Option(
            metavar="SIZE",
            help="Texts: join short ones and cut long ones into samples of at most this size, such as 2kB. [one "
            "sample per text]",
        ),
    ] = "",
    heldout: Annotated[
        float,
        typer.Option(min=0, max=0.9, help="Share of the samples to hold out, chosen by a hash of the key."),
    ] = 0.1,
    bad_samples: Annotated[
        Literal["fail", "skip"],
        typer.Option(help="What to do with samples that cannot be read.", show_choices=True),
    ] = "fail",
    seed: Annotated[int, typer.Option(min=0, help="Seed of the order of the samples.")] = 0,
    endpoint: Annotated[
        str, typer.Option(help="Endpoint of the store, http(s)://host:port. [boto3's default]")
    ] = "",
    replace: Annotated[
        bool, typer.Option("--replace", help="Replace another data set at the destination.")
    ] = False,
    form: Annotated[
        Format, typer.Option("-o", "--output", help="Output format.", show_choices=True)
    ] = Format.table,
) -> None:
    """Store your own files as WebDataset shards.

    Files are stored as they are, after they were decoded once. Members: images jpg, png or webp
    with cls; sounds with txt, from a .txt of the same name or LibriSpeech's .trans.txt; tables what
    --column and --file say, else the columns text, label, image and audio. Labels that are names
    become numbers in the order of the sorted names, which index.json lists. Where SOURCE has train
    and validation (or val, valid, dev, test, heldout), these are the splits; else a hash of each
    sample's key decides. The order of samples is mixed; the same files give the same bytes.
    Tables are read into memory. A language model reads one sequence from a sample: --text-bytes
    makes samples of about its length of short and long texts.

    After Ctrl-C or an error, run the same command again: what the store has is not uploaded again.
    index.json, written last, has the counts and SHA-256 of every shard.

    JSON: {"schema_version": 1, "splits": [{"split": "train"|"heldout", "shards": pattern for an
    experiment's data, "samples", "count": shards, "bytes"}]}
    """
    from cloud.datasets.sources import open_source, records_of
    from cloud.datasets.texts import packed_texts
    from cloud.storage.publish import splits_table
    from cloud.storage.url import S3Url

    S3Url.parse(to)  # before the source is read
    max_bytes = _bytes(shard_size, "--shard-size", least=10_000)
    max_text_bytes = _bytes(text_bytes, "--text-bytes", least=16) if text_bytes else 0
    columns, files = _pairs(column, "--column"), _pairs(file, "--file")
    found = open_source(
        source, "" if kind == "auto" else kind, columns=columns, files=files, key=key, seed=seed
    )
    share = 0.0 if found.has_splits else heldout
    say(f"{source}: {len(list(found.items))} samples ({found.kind})")
    if found.ignored:
        say(f"{found.ignored} other files are ignored")
    made = {
        "dataset": "packed",
        "kind": found.kind,
        "source": source.resolve().name,
        "content": found.content,
        "columns": columns,
        "files": files,
        "key": key,
        "heldout": "the source's own" if found.has_splits else heldout,
        "shard_bytes": max_bytes,
        "samples_per_shard": samples_per_shard,
        "seed": seed,
        "classes": found.classes,
        "bad_samples": bad_samples,
    }
    records = records_of(found, skip=bad_samples == "skip")
    if max_text_bytes:
        made["text_bytes"] = max_text_bytes
        records = packed_texts(records, max_text_bytes, share)
    with tempfile.TemporaryDirectory(prefix="orch-data-") as folder:
        index = store(
            records,
            to,
            Path(folder),
            made=made,
            heldout=share,
            max_bytes=max_bytes,
            max_samples=samples_per_shard,
            endpoint=endpoint,
            replace=replace,
        )
    for sentence in found.bad[:_MOST_SHOWN]:
        say(sentence)
    if found.bad:
        say(f"{len(found.bad)} samples were left out because they cannot be read")
    typer.echo(rows_text("splits", splits_table(index, to), _COLUMNS, form), nl=False)


def _bytes(text: str, option: str, *, least: int) -> int:
    found = _SIZE.fullmatch(text.strip())
    size = int(float(found[1]) * _UNITS[found[2] or "B"]) if found else 0
    if size < least:
        raise typer.BadParameter(
            f"'{text[:40]}' is not a size of at least {least:,} bytes, such as 64MB", param_hint=option
        )
    return size


def _pairs(given: Sequence[str] | None, option: str) -> dict[str, str]:
    pairs: dict[str, str] = {}
    for text in given or ():
        extension, mark, column = text.partition("=")
        if not mark or not extension or not column or extension in pairs:
            raise typer.BadParameter(
                f"'{text[:80]}' is not EXTENSION=COLUMN, or the extension occurs twice", param_hint=option
            )
        pairs[extension] = column
    return pairs
