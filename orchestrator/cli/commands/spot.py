"""`orch spot`: import histories of spot capacity, prices and interruption bands, and show what they say."""

from __future__ import annotations

import time
from dataclasses import asdict, fields, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from cloud.spot.bands import InterruptionBands, band_facts
from cloud.spot.history import Facts, History, facts
from cloud.spot.prices import PriceHistory, price_facts
from cloud.spot.sources import FORMATS, Record
from cloud.spot.stored import Stored, read_any
from cloud.spot.warnings import warnings
from cloud.vm_report import printable_values
from metrics.readable import duration
from orchestrator.cli.render.output import SCHEMA_VERSION, Format, as_json, rows_text
from orchestrator.cli.render.terminal import say
from orchestrator.errors import UsageError
from orchestrator.home import home_folder
from orchestrator.spot_store import find, read_all, read_imports, remove, stored_names, write_import

FormatName = Literal[
    "auto",
    "bamboo",
    "bamboo-counts",
    "parcae",
    "parcae-trace",
    "skypilot",
    "aws-prices",
    "skypilot-catalog",
    "spot-advisor",
    "spotinfo",
]

_LS = ("name", "kind", "format", "place", "accelerator", "duration_h", "availability", "interruptions")
_CSV = (*_LS, "source", "sha256", "file")
_SERIES = (
    *("region", "zone", "instance", "product", "accelerator", "prices"),
    *("lowest_usd_per_h", "median_usd_per_h", "highest_usd_per_h"),
)
_BANDS = ("region", "system", "instance", "label", "savings_percent")
_SHOWN = 40  # rows of a text page; JSON has all
_HOUR = 3600.0

_spot = typer.Typer(name="spot", no_args_is_help=True, help="Import spot histories, and show what they say.")


def register(app: typer.Typer) -> None:
    """Add the commands to the application."""
    app.add_typer(_spot)


def _complete(incomplete: str) -> list[str]:
    return [name for name in stored_names(home_folder()) if name.startswith(incomplete)]


_Name = Annotated[str, typer.Argument(metavar="NAME", help="Name of the import.", autocompletion=_complete)]


@_spot.command("import")
def _import(
    files: Annotated[list[Path], typer.Argument(metavar="FILE", help="Files to import.")],
    form: Annotated[
        FormatName, typer.Option("--format", help="Format of the files; auto: by their content.")
    ] = "auto",
    place: Annotated[
        str,
        typer.Option(
            metavar="INFRA", help="Where it was observed: cloud/region/zone, or cloud/region. [unknown]"
        ),
    ] = "",
    accelerator: Annotated[
        str, typer.Option(metavar="A", help="Accelerator of the VMs, for example T4:1. [unknown]")
    ] = "",
    name: Annotated[
        str, typer.Option(metavar="NAME", help="Name of the import, for one file. [the file's name]")
    ] = "",
) -> None:
    """Import histories of spot capacity, spot prices or interruption bands into orch's home.

    Reads the published formats of Bamboo, Parcae, SkyPilot, AWS and spotinfo (docs/spot-histories.md); the files
    are copied as JSON of orch's own, which names the source and its SHA-256. If one of the files cannot be read,
    none is imported. Importing the same file again changes nothing, or only the place or accelerator. Prints a
    line for each file; doubts about a file are on stderr.

    Exit: 0 imported or there already, 2 a file cannot be read or used, or invalid command.
    """
    from cloud.places import expand

    if name and len(files) > 1:
        raise UsageError("--name: only for one file; leave it out, or import the files one by one")
    if place:
        expand(place)
    home, now_s = home_folder(), time.time()
    accelerators = _accelerator(accelerator) if accelerator else None
    found = read_imports(files, form, place or None, accelerators, name, now_s, home)
    for one in found:
        write_import(one, home)
    known, problems = read_all(home)
    for one in found:
        typer.echo(f"{one.name}: {one.outcome} ({one.stored.form}, {_summary(one.stored.record)})")
        others = {other: stored.record for other, stored in known.items() if other != one.name}
        for warning in warnings(one.stored.record, others, now_s):
            say(f"{one.name}: {warning.text}")
    for sentence in problems:
        say(sentence)


@_spot.command("ls")
def _ls(
    output: Annotated[
        Format, typer.Option("--output", "-o", help="table, json, yaml or csv.")
    ] = Format.table,
) -> None:
    """List imported spot histories, prices and interruption bands by name.

    Prices and bands have no availability and no interruptions. An import that cannot be read is named on stderr.

    Exit: 0 listed.

    \b
    JSON: {"schema_version", "imports": [{"name", "kind": "history"|"prices"|"bands", "format", "place",
      "accelerator", "duration_h", "availability" (fraction of the time with capacity), "interruptions" (changes
      from some capacity to none), "source", "sha256", "file"}], "problems": [sentence]}; unknown is null
    """
    home = home_folder()
    found, problems = read_all(home)
    rows = [_row(name, stored, home) for name, stored in found.items()]
    if output is Format.table:
        rows = [
            {key: "" if value is None and row["kind"] != "history" else value for key, value in row.items()}
            for row in rows
        ]
    columns = _LS if output is Format.table else _CSV
    typer.echo(rows_text("imports", rows, columns, output, {"problems": problems}), nl=False)
    for sentence in problems:
        say(sentence)


@_spot.command("show")
def _show(
    name: _Name,
    instance: Annotated[
        str, typer.Option(metavar="TYPE", help="Of prices and bands: only this instance type.")
    ] = "",
    output: Annotated[
        Literal["text", "json"], typer.Option("--output", "-o", help="text or json.", show_choices=True)
    ] = "text",
) -> None:
    """Show the facts of an import: source, duration, availability, lifetimes, and what is doubtful.

    Lifetimes are of what began and ended within the history, which leaves out the longest ones; no distribution
    is assumed. Prices say nothing of capacity, and bands nothing of times or lifetimes.

    Exit: 0 shown, 2 no such import, or its file cannot be used.

    \b
    JSON: {"schema_version", "name", "kind": "history"|"prices"|"bands", "format", "source", "sha256", "place",
      "accelerator", "file", "begins_at", "ends_at" (UTC; null: the source has no date), "warnings": [{"code":
      "identical_bytes"|"identical_history"|"contradictions"|"future"|"gaps"|"no_complete_lifetime", "text"}],
      "facts": of a history {"duration_s", "availability", "interruptions", "median_lifetime_s",
        "mean_lifetime_s" (of spells with capacity), "longest_outage_s", "lowest_capacity", "highest_capacity",
        "mean_capacity", "capacity_lost", "nodes_complete", "nodes_censored", "node_median_lifetime_s",
        "node_mean_lifetime_s", "gap_s", "longest_gap_s"};
        of prices {"prices", "contradictions", "series": [{"region", "zone", "instance", "product",
        "accelerator", "prices", "lowest_usd_per_h", "median_usd_per_h", "highest_usd_per_h"}]};
        of bands {"bands", "regions", "instances", "by_label", "contradictions", "rows": [{"region", "system",
        "instance", "label", "low_percent", "high_percent", "savings_percent"}]}}; unknown is null
    """
    home = home_folder()
    path = find(name, home)
    stored = read_any(path)
    known, problems = read_all(home)
    others = {other: one.record for other, one in known.items() if other != name}
    doubts = warnings(stored.record, others, time.time())
    record = _of_instance(stored.record, instance) if instance else stored.record
    began_s, ended_s = _span(record)
    document = printable_values(
        {
            "schema_version": SCHEMA_VERSION,
            "name": name,
            "kind": FORMATS[stored.form].kind,
            "format": stored.form,
            "source": record.source,
            "sha256": record.sha256,
            "place": record.place,
            "accelerator": record.accelerator,
            "file": str(path),
            "begins_at": _utc(began_s),
            "ends_at": _utc(ended_s),
            "warnings": [asdict(doubt) for doubt in doubts],
            "facts": _facts(record),
        }
    )
    typer.echo(as_json(document) if output == "json" else _page(document, record), nl=False)
    for sentence in problems:
        say(sentence)


@_spot.command("rm")
def _rm(
    names: Annotated[
        list[str], typer.Argument(metavar="NAME", help="Names of imports.", autocompletion=_complete)
    ],
) -> None:
    """Remove imports; the files they were read from stay.

    Exit: 0 removed, 2 no such import; then none is removed.
    """
    home = home_folder()
    names = list(dict.fromkeys(names))
    for name in names:
        find(name, home)
    for name in names:
        remove(name, home)
        typer.echo(f"{name}: removed")


def _accelerator(text: str) -> str:
    """`T4:1` for T4 or T4:1. Raises UsageError."""
    import re

    from cloud.places import nearest
    from experiments.catalog import ACCELERATORS

    kind, colon, count = text.partition(":")
    if kind not in ACCELERATORS:
        near = nearest(kind[:40], ACCELERATORS)
        raise UsageError(
            f"--accelerator: unknown accelerator '{kind[:40]}' (known: {', '.join(ACCELERATORS)}){near}"
        )
    if colon and not re.fullmatch("[1-9]|1[0-6]", count):
        raise UsageError(
            f"--accelerator: '{text[:40]}' is not an accelerator and a count from 1 to 16, such as 'T4:1'"
        )
    return text if colon else f"{text}:1"


def _span(record: Record) -> tuple[float | None, float | None]:
    """First and last Unix time of a record; None: its source has no date."""
    if isinstance(record, History) and record.began_at_s is not None:
        return record.began_at_s + record.times_s[0], record.began_at_s + record.end_s
    if isinstance(record, PriceHistory):
        seen = price_facts(record)
        return seen.first_at_s, seen.last_at_s
    return None, None


def _utc(at_s: float | None) -> str | None:
    return None if at_s is None else f"{datetime.fromtimestamp(at_s, UTC):%Y-%m-%dT%H:%M:%SZ}"


def _row(name: str, stored: Stored, home: Path) -> dict[str, Any]:
    record = stored.record
    seen = facts(record) if isinstance(record, History) else None
    began_s, ended_s = _span(record)
    duration_s = (
        seen.duration_s if seen else None if began_s is None or ended_s is None else ended_s - began_s
    )
    return printable_values(
        {
            "name": name,
            "kind": FORMATS[stored.form].kind,
            "format": stored.form,
            "place": record.place,
            "accelerator": record.accelerator,
            "duration_h": None if duration_s is None else duration_s / _HOUR,
            "availability": seen.availability if seen else None,
            "interruptions": seen.interruptions if seen else None,
            "source": record.source,
            "sha256": record.sha256,
            "file": str(find(name, home)),
        }
    )


def _summary(record: Record) -> str:
    """What was read, in a few words."""
    if isinstance(record, History):
        seen = facts(record)
        return f"{seen.duration_s / _HOUR:.1f} h, {seen.lowest_capacity} to {seen.highest_capacity} VMs"
    if isinstance(record, PriceHistory):
        return f"{len(record.prices)} prices"
    return f"{len(record.bands)} bands"


def _of_instance(record: Record, instance: str) -> PriceHistory | InterruptionBands:
    """The rows of one instance type. Raises UsageError if there is none, and for a history."""
    from cloud.places import nearest

    if isinstance(record, History):
        raise UsageError("--instance: only for prices and bands; a history is of one kind of VM")
    rows = record.prices if isinstance(record, PriceHistory) else record.bands
    names = {row.instance for row in rows if row.instance}
    if instance not in names:
        raise UsageError(f"--instance: it has no '{instance[:80]}'{nearest(instance[:80], sorted(names))}")
    if isinstance(record, PriceHistory):
        return replace(record, prices=tuple(p for p in record.prices if p.instance == instance))
    return replace(record, bands=tuple(band for band in record.bands if band.instance == instance))


def _facts(record: Record) -> dict[str, Any]:
    if isinstance(record, History):
        return asdict(facts(record))
    if isinstance(record, PriceHistory):
        seen = price_facts(record)
        series = [{field.name: getattr(one, field.name) for field in fields(one)} for one in seen.series]
        return {"prices": seen.prices, "contradictions": seen.contradictions, "series": series}
    rows = [
        {
            "region": band.region,
            "system": band.system,
            "instance": band.instance,
            "label": band.label,
            "low_percent": band.percent[0],
            "high_percent": band.percent[1],
            "savings_percent": band.savings_percent,
        }
        for band in record.bands
    ]
    return {**asdict(band_facts(record)), "rows": rows}


def _page(document: dict[str, Any], record: Record) -> str:
    """The page of `orch spot show`."""
    lines = [
        ("name", document["name"]),
        ("source", f"{document['source']} ({document['format']}), sha256 {document['sha256']}"),
        ("place", document["place"] or "unknown"),
        ("accelerator", document["accelerator"] or "unknown"),
        ("begins", document["begins_at"] or "no date in the source"),
        ("ends", document["ends_at"] or "no date in the source"),
    ]
    table = ""
    if isinstance(record, History):
        lines += _history_lines(facts(record))
    elif isinstance(record, PriceHistory):
        lines.append(("says", f"{document['facts']['prices']} prices; nothing of capacity or interruptions"))
        table = _some_rows("series", document["facts"]["series"], _SERIES)
    else:
        counts = document["facts"]["by_label"].items()
        lines.append(("says", "share of VMs interrupted in a month; nothing of times, lifetimes or capacity"))
        lines.append(("bands", ", ".join(f"{label}: {count}" for label, count in counts)))
        table = _some_rows("rows", document["facts"]["rows"], _BANDS)
    lines += [("warning", doubt["text"]) for doubt in document["warnings"]]
    width = max(len(label) for label, _ in lines)
    return "".join(f"{label.ljust(width)}  {text}\n" for label, text in lines) + (table and f"\n{table}")


def _some_rows(name: str, rows: list[dict[str, Any]], columns: tuple[str, ...]) -> str:
    rest = len(rows) - _SHOWN
    more = f"... and {rest} more; -o json lists all, --instance those of one type\n" if rest > 0 else ""
    return rows_text(name, rows[:_SHOWN], columns, Format.table) + more


def _history_lines(seen: Facts) -> list[tuple[str, str]]:
    censored = seen.nodes_censored or 0
    spells, nodes = (
        "unknown" if median is None or mean is None else f"median {duration(median)}, mean {duration(mean)}"
        for median, mean in (
            (seen.median_lifetime_s, seen.mean_lifetime_s),
            (seen.node_median_lifetime_s, seen.node_mean_lifetime_s),
        )
    )
    of_nodes = (
        "unknown: the source names no nodes"
        if seen.nodes_complete is None
        else f"{nodes} ({seen.nodes_complete} complete; begin or end not seen: {censored})"
    )
    return [
        ("duration", duration(seen.duration_s)),
        ("availability", f"{100 * seen.availability:.1f} % of the time with a VM"),
        ("interruptions", f"{seen.interruptions} (from some VMs to none)"),
        ("longest outage", duration(seen.longest_outage_s) if seen.longest_outage_s else "none"),
        (
            "capacity",
            f"{seen.lowest_capacity} to {seen.highest_capacity} VMs, mean {seen.mean_capacity:.1f}; "
            f"at least {seen.capacity_lost} lost",
        ),
        ("spells", f"lifetime {spells}"),
        ("nodes", f"lifetime {of_nodes}"),
    ]
