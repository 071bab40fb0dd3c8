"""`orch cost`: what runs cost, by kind and by link, as measured and on the paper's basis."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from orchestrator.cli.names import find_source
from orchestrator.cli.render.output import SCHEMA_VERSION, as_json, rows_text
from orchestrator.cli.render.output import Format as _Text
from orchestrator.cli.render.terminal import say

_STUDY_BOOK = "study-2023-04"
_COLUMNS = (
    "run_id", "label", "basis", "vm_usd", "egress_usd", "data_usd", "storage_usd", "controller_usd", "total_usd",
    "usd_per_vm_h", "usd_per_1m_samples", "steady_usd_per_vm_h", "steady_usd_per_1m_samples", "price_book",
    "price_book_sha256", "target", "emulated", "scales", "host_contended",
)  # fmt: skip
_SHOWN = {
    "run": "run_id", "label": "label", "basis": "basis", "vm": "vm_usd", "egress": "egress_usd", "data": "data_usd",
    "total": "total_usd", "$/VM-h": "usd_per_vm_h", "$/1M": "usd_per_1m_samples", "steady $/VM-h": "steady_usd_per_vm_h",
    "steady $/1M": "steady_usd_per_1m_samples", "on": "on", "host": "host",
}  # fmt: skip
_LINKED = 3  # links and warnings are printed for up to this many runs


class Basis(StrEnum):
    """The assumptions on which costs are computed."""

    measured = "measured"
    published = "published"


class Output(StrEnum):
    """Output format of costs."""

    table = "table"
    json = "json"
    csv = "csv"


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command("cost")(_cost)


def _cost(
    targets: Annotated[
        list[str],
        typer.Argument(
            metavar="RUN|DIR...", help="Runs on this machine; folders of logs or of exported runs."
        ),
    ],
    index: Annotated[
        Path | None,
        typer.Option(help="CSV with the run, role, host, place and GPU of each log file."),
    ] = None,
    only: Annotated[
        list[str] | None, typer.Option("--run", metavar="RUN_ID", help="Only this run. Repeatable.")
    ] = None,
    prices: Annotated[
        str | None,
        typer.Option(help="Price book to bill all runs by: a name or a CSV file. [each run's own]"),
    ] = None,
    basis: Annotated[Basis | None, typer.Option(help="Show only this basis. [both]")] = None,
    output: Annotated[Output, typer.Option("--output", "-o", help="table, json or csv.")] = Output.table,
) -> None:
    """Show what runs cost, by kind and by link.

    Costs are given per hour and per 1M samples, on two bases. measured: VM seconds rounded as the provider
    bills them, the bytes actually sent (for imported logs: the traffic of the network card, split equally among
    the other VMs), priced by the run's price book, and samples by wall clock. Given for the whole run and as
    "steady", for the measured epochs only (for one GPU without a swarm: an hour at its wall-clock rate, epochs
    0). published: the paper's assumptions at its own prices: GB of 1.024e9 bytes, rates over the whole log, its
    split of the egress, its throughput (one GPU: phase timers). docs/numbers.md describes both in full.

    \b
    JSON: {"schema_version", "runs": [{"run_id", "label", "model", "peers", "target", "emulated",
      "scales", "host_contended",
      "measured": {"price_book", "price_book_sha256",
        "run": {"usd": {"vm", "egress", "data", "storage", "controller", "total"},
          "estimated_usd", "vm_hours", "samples", "usd_per_vm_h", "usd_per_1m_samples"},
        "steady": {"usd_per_vm_h_by_kind": {"vm", "egress", "data"}, "usd_per_vm_h",
          "epochs", "vm_hours", "samples", "usd_per_1m_samples", "unknown": []} or null,
        "links": [{"src", "dst", "kind", "class", "src_location", "dst_location", "tier",
          "month", "bytes", "usd", "estimated"}], "unknown": []},
      "published": {"price_book", "price_book_sha256", "usd": {"vm", "inside", "regions",
          "clouds", "between", "oceania", "loading", "total"}, "usd_per_vm_h_by_kind": {same},
        "usd_per_vm_h", "leaving_usd_per_vm_h", "usd_per_1m_samples",
        "usd_per_1m_samples_without_loading" (as in the paper's Figures 1 and 15), "sps", "sps_basis",
        "egress_gb_per_vm_h", "loading_gb_per_vm_h", "split": {kind: "8/20"}, "unknown": []},
      "difference", "warnings": []}], "problems": []}
    Unknown values are null, with the reasons in "unknown" and "warnings". CSV: one row per run
    and basis. Exits with 2 if no run has a figure.
    """
    from analysis.costs import BASES, cost_row
    from analysis.sources import opened
    from cloud.prices.book import load
    from metrics.store.database import RunStore, StoreError
    from orchestrator.errors import UsageError

    study = load(_STUDY_BOOK)
    book = load(prices) if prices else None
    places = [find_source(text) for text in targets]
    rows: list[dict[str, Any]] = []
    with opened(places, index=index, only=only or (), book=book or study) as found:
        problems = list(found.problems)
        for source in found.runs:
            try:
                with RunStore.open_reader(source.folder / "run.db") as store:
                    rows.append(cost_row(store, study, book, (basis.value,) if basis else BASES))
            except StoreError as error:
                problems.append(f"{source.run_id}: {error}")
    for problem in problems:
        say(f"problem: {problem}")
    if not any(_known(row) for row in rows):
        why = [text for row in rows for text in row["warnings"]]
        raise UsageError(" ".join([f"{', '.join(targets)}: no cost could be computed.", *dict.fromkeys(why)]))
    typer.echo(_text(rows, problems, output), nl=False)


def _known(row: Mapping[str, Any]) -> bool:
    """Whether any cost of a run is known."""
    figures: list[Any] = []
    if "measured" in row:
        figures += row["measured"]["run"]["usd"].values()
    if "published" in row:
        figures += row["published"]["usd"].values()
    return any(figures)


def _text(rows: Sequence[Mapping[str, Any]], problems: Sequence[str], form: Output) -> str:
    if form is Output.json:
        return as_json({"schema_version": SCHEMA_VERSION, "runs": rows, "problems": problems})
    flat = [line for row in rows for line in _lines(row)]
    if form is Output.csv:
        return rows_text("runs", flat, _COLUMNS, _Text.csv)
    shown = [{name: _amount(key, line[key]) for name, key in _SHOWN.items()} for line in flat]
    text = rows_text("runs", shown, tuple(_SHOWN), _Text.table)
    few = len(rows) <= _LINKED
    for row in rows:
        if "difference" in row:
            text += f"{row['run_id']}: {row['difference']}\n"
        if few and "measured" in row:
            text += "\n" + rows_text(
                "links", _links(row), ("run", "kind", "class", "from", "to", "sent", "usd"), _Text.table
            )
    notes = [f"{row['run_id']}: {note}" for row in rows for note in row["warnings"]]
    if few:
        return text + "".join(f"{note}\n" for note in notes)
    return (
        text
        + f"{len(notes)} notes on {len(rows)} runs: use `-o json` for all, `--run RUN_ID` for those of one run\n"
    )


def _lines(row: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Flatten a run to one row per basis; columns that a basis lacks are empty."""
    from metrics.provenance import host_mark, origin_mark, scales_mark

    lines: list[dict[str, Any]] = []
    names = {"run_id": row["run_id"], "label": row["label"] or "", "target": row["target"]}
    names |= {"emulated": row["emulated"], "host_contended": row["host_contended"]}
    names |= {"scales": scales_mark(row["scales"]), "on": origin_mark(row["target"], row["emulated"])}
    names["host"] = host_mark(row["host_contended"], row["target"])
    if "measured" in row:
        ours = row["measured"]
        every, even = ours["run"], ours["steady"] or {}
        lines.append(
            {**names, "basis": "measured"}
            | {f"{kind}_usd": usd for kind, usd in every["usd"].items()}
            | {key: every[key] for key in ("usd_per_vm_h", "usd_per_1m_samples")}
            | {f"steady_{key}": even.get(key) for key in ("usd_per_vm_h", "usd_per_1m_samples")}
            | {key: ours[key] for key in ("price_book", "price_book_sha256")}
        )
    if "published" in row:
        theirs = row["published"]
        usd = theirs["usd"]
        egress = [usd[kind] for kind in usd if kind not in ("vm", "loading", "total")]
        lines.append(
            {
                **names,
                "basis": "published",
                "vm_usd": usd["vm"],
                "data_usd": usd["loading"],
                "total_usd": usd["total"],
            }
            | {"egress_usd": None if None in egress else sum(egress)}
            | {
                key: ""
                for key in (
                    "storage_usd",
                    "controller_usd",
                    "steady_usd_per_vm_h",
                    "steady_usd_per_1m_samples",
                )
            }
            | {
                key: theirs[key]
                for key in ("usd_per_vm_h", "usd_per_1m_samples", "price_book", "price_book_sha256")
            }
        )
    return lines


def _links(row: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Sum bytes and dollars by pair of locations."""
    from metrics.readable import size, usd
    from metrics.traffic import CLASS_WORDS

    cells: dict[tuple[str, ...], list[Any]] = {}
    for link in row["measured"]["links"]:
        ends = (link["src_location"] or link["src"], link["dst_location"] or link["dst"] or "unknown")
        words = str(CLASS_WORDS.get(link["class"], link["class"]))
        name = f"{words} (estimated)" if link["estimated"] else words
        cell = cells.setdefault((link["kind"], name, *ends), [0.0, 0])
        cell[0] = None if link["bytes"] is None or cell[0] is None else cell[0] + link["bytes"]
        cell[1] = None if link["usd"] is None or cell[1] is None else cell[1] + link["usd"]
    names = ("kind", "class", "from", "to")
    return [
        {
            "run": row["run_id"],
            **dict(zip(names, key, strict=True)),
            "sent": size(cell[0]),
            "usd": usd(cell[1]),
        }
        for key, cell in sorted(cells.items())
    ]


def _amount(key: str, value: Any) -> str:
    """Format a cell of the table: dollars as a person reads them, `-` for what a basis does not have."""
    from metrics.readable import usd

    if value == "":
        return "-"
    return usd(value) if "usd" in key else str(value)
