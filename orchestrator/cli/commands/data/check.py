"""`orch data check`: read a data set in full, and say what a pass over it costs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from cloud.targets import TARGETS
from orchestrator.cli.choosing import Where
from orchestrator.cli.render.output import SCHEMA_VERSION, as_json, rows_text
from orchestrator.cli.render.output import Format as TableFormat
from orchestrator.cli.render.terminal import say

if TYPE_CHECKING:
    from cloud.datasets.verify import Verified

_SPLITS = ("split", "samples", "shards", "bytes", "bytes_per_sample")
_PEERS = ("peer", "location", "bytes", "usd", "usd_alone")
_SHOWN = 50


def check(
    data: Annotated[
        str,
        typer.Argument(
            metavar="URL",
            help="s3://bucket/prefix, or a pattern such as s3://bucket/train-{000000..000031}.tar.",
        ),
    ],
    experiment: Annotated[
        str,
        typer.Option(
            "--for",
            metavar="FILE|NAME",
            help="Also say what one pass costs in egress to each peer of this experiment.",
        ),
    ] = "",
    on: Annotated[
        Where,
        typer.Option("--on", help="Which prices --for uses: local, those of the emulated cloud, or sky."),
    ] = Where.local,
    endpoint: Annotated[
        str, typer.Option(help="Endpoint of the store, http(s)://host:port. [boto3's default]")
    ] = "",
    output: Annotated[
        str, typer.Option("--output", "-o", metavar="table|json", help="Output format.")
    ] = "table",
) -> None:
    """Read a data set in full: corrupt or inconsistent samples, counts, sizes, cost of a pass.

    Decodes every image, text, label, JSON and sound; compares the shards with index.json if there is
    one; finds keys that occur twice or in both splits. The bytes per sample include the tar's
    headers. Reading costs the egress of one pass from the store to this machine.

    With --for, `usd` is what the store bills when each peer reads its share of the training shards
    once, and `usd_alone` when one peer reads all of them.

    Exit: 0 nothing is wrong, 1 something is, 2 invalid command, or no such data.

    \b
    JSON: {"schema_version", "url", "ok", "splits": [{"split", "samples", "shards", "bytes" or null,
      "bytes_per_sample" or null}], "problems": [{"shard", "key", "what"}],
      "passes" (with --for): [{"peer", "location", "bytes", "usd", "usd_alone"}]}; unknown is null
    """
    from cloud.datasets.verify import shard_urls_of, verify
    from cloud.storage.client import ClientPerProcess
    from cloud.storage.errors import BadUrlError
    from cloud.storage.opener import ShardOpener
    from cloud.storage.publish import list_objects, read_index
    from experiments.parse.load import load
    from experiments.schema.shards import ShardPatternError, shard_urls
    from orchestrator.cli.exits import FAILED
    from orchestrator.cli.render.progress import ProgressLine

    if output not in ("table", "json"):
        raise typer.BadParameter(f"'{output[:80]}' is not table or json", param_hint="--output")
    spec = load(experiment, (), ()) if experiment else None
    if spec is not None and not endpoint:
        endpoint = spec.data.endpoint
    client = ClientPerProcess(endpoint)
    index, stored = None, None
    if data.endswith(".tar"):
        try:
            urls = list(shard_urls(data))
        except ShardPatternError as error:
            raise BadUrlError(str(error)) from error
    else:
        index = read_index(client(), data, endpoint=endpoint)
        stored = list_objects(client(), data, endpoint=endpoint)
        urls = shard_urls_of(data, index, stored)
    if not urls and index is None:
        raise BadUrlError(
            f"{data} has no shards (objects that end in .tar); correct the prefix, or make some"
        )
    line = ProgressLine()
    try:
        found = verify(
            urls,
            ShardOpener(client, endpoint=endpoint),
            index=index,
            stored=stored,
            progress=lambda shards, samples: line.show(
                lambda: f"{shards}/{len(urls)} shards, {samples} samples read"
            ),
        )
    finally:
        line.clear()
    splits = _split_rows(found)
    passes = None if spec is None else _passes(spec, found, TARGETS[on].rents)
    if output == "json":
        document: dict[str, Any] = {
            "schema_version": SCHEMA_VERSION,
            "url": data,
            "ok": not found.problems,
            "splits": splits,
            "problems": [{"shard": p.shard, "key": p.key, "what": p.what} for p in found.problems],
        }
        typer.echo(as_json(document if passes is None else {**document, "passes": passes}), nl=False)
    else:
        typer.echo(rows_text("splits", splits, _SPLITS, TableFormat.table), nl=False)
        if passes is not None:
            typer.echo("\n" + rows_text("passes", passes, _PEERS, TableFormat.table), nl=False)
        for problem in found.problems[:_SHOWN]:
            typer.echo(": ".join(part for part in (problem.shard, problem.key, problem.what) if part))
        if len(found.problems) > _SHOWN:
            typer.echo(f"... and {len(found.problems) - _SHOWN} more; -o json lists all")
    if found.problems:
        say(f"{len(found.problems)} problems; create the shards named again and upload them")
        raise typer.Exit(FAILED)


def _split_rows(found: Verified) -> list[dict[str, Any]]:
    from cloud.storage.shards import SPLITS

    rows = []
    for split in SPLITS:
        if not found.of(split):
            continue
        size, samples = found.size_bytes(split), found.samples(split)
        rows.append(
            {
                "split": split,
                "samples": samples,
                "shards": len(found.of(split)),
                "bytes": size,
                "bytes_per_sample": None if size is None or not samples else size / samples,
            }
        )
    return rows


def _passes(spec: Any, found: Verified, rented: bool) -> list[dict[str, Any]]:
    """What each slot of an experiment reads in one pass at its first place, and what the store bills for it."""
    from cloud.prices.book import load_for
    from cloud.storage.shards import TRAIN
    from cloud.storage.shares import shards_for
    from experiments.schema.slots import slots

    book = load_for(spec.prices, rented=rented)
    sizes = {shard.url: shard.size_bytes for shard in found.of(TRAIN)}
    peers = slots(spec)
    names = [slot.name for slot in peers]

    def usd(location: str, size_bytes: int | None) -> float | None:
        price = None if size_bytes is None else book.store_egress(spec.data.location, location, size_bytes)
        return None if price is None else float(price)

    rows = []
    for slot in peers:
        location = slot.places[0].infra
        share = [sizes[url] for url in shards_for(slot.name, names, list(sizes))] if sizes else [None]
        mine = None if None in share else sum(size for size in share if size is not None)
        rows.append(
            {
                "peer": slot.name,
                "location": location,
                "bytes": mine,
                "usd": usd(location, mine),
                "usd_alone": usd(location, found.size_bytes(TRAIN) if sizes else None),
            }
        )
    return rows
