"""`orch export`: write a run as files. `orch bill`: compare a run's estimated cost with a provider's bill."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from metrics.readable import usd
from orchestrator.cli.names import find_run
from orchestrator.cli.render.output import SCHEMA_VERSION, Format, as_json, rows_text

if TYPE_CHECKING:
    from analysis.export.bill import BillComparison, ServiceRow

_COLUMNS = ("provider", "service", "estimate_usd", "bill_usd", "difference_usd", "difference_pct", "note")


class ExportForm(StrEnum):
    """Output format of `orch export`."""

    parquet = "parquet"
    csv = "csv"
    focus = "focus"
    tensorboard = "tensorboard"
    mlflow = "mlflow"
    wandb = "wandb"


_TRACKERS = (ExportForm.tensorboard, ExportForm.mlflow, ExportForm.wandb)


def register(app: typer.Typer) -> None:
    """Add the commands to the application."""
    app.command("export")(_export)
    app.command("bill")(_bill)


_Run = Annotated[
    str, typer.Argument(metavar="RUN", help="Run id, a unique prefix of one, `latest`, or a run folder.")
]


def _export(
    run: _Run,
    to: Annotated[
        ExportForm,
        typer.Option(
            "--to",
            help="parquet or csv: all records; focus: the costs as FOCUS 1.2 rows; tensorboard, mlflow or wandb: settings "
            "and figures for that tracker.",
        ),
    ],
    out: Annotated[Path | None, typer.Option("--out", help="Folder to create. [./<run id>-<format>]")] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing export.")] = False,
    known_only: Annotated[
        bool, typer.Option("--known-only", help="focus: omit and list charges whose cost is unknown.")
    ] = False,
) -> None:
    """Export a run's records, its costs as FOCUS 1.2 rows, or its settings and figures for an experiment tracker.

    Prints the folder. `orch replay FOLDER` reads a Parquet or CSV export back without loss. A run that is still
    in progress is exported in its current state. Keys and logs are never exported, and nothing is sent anywhere.

    FOCUS is the format in which clouds export their bills. Each row is marked as an estimate. Exits with 2 if
    a cost is unknown, unless --known-only is given. docs/export.md describes the columns.
    """
    from analysis.export.focus_file import export_focus
    from analysis.export.tables import export_tables

    folder = _folder(run)
    chosen = out or Path(f"{folder.name}-{to}")
    if to in _TRACKERS:
        from analysis.export.trackers import export_tracked

        export_tracked(folder / "run.db", chosen, to.value, force)
    elif to is ExportForm.focus:
        left_out = export_focus(folder / "run.db", chosen, force, known_only)["left_out"]
        for line, charges in Counter(left_out).items():
            often = f" ({charges} charges)" if charges > 1 else ""
            typer.echo(f"omitted, cost unknown: {line}{often}", err=True)
    else:
        export_tables(folder / "run.db", chosen, to.value, force)
    typer.echo(str(chosen))


def _bill(
    run: _Run,
    against: Annotated[
        Path, typer.Option("--against", help="The provider's FOCUS export: .csv, .csv.gz or .parquet.")
    ],
    output: Annotated[
        Format, typer.Option("--output", "-o", help="table, json, yaml or csv.")
    ] = Format.table,
) -> None:
    """Compare a run's estimated cost with the provider's bill.

    The bill is a FOCUS export (any 1.x version) and may contain other charges. The rows of the run are those
    tagged `orch-run` = run id; if there are none, those that name the run's VMs; otherwise, with a warning, all
    usage in the run's regions during the run. The difference is bill minus estimate.

    \b
    JSON: {"schema_version", "run_id", "file", "currency", "selected_by", "rows_read", "rows_selected",
      "services": [{"provider", "service", "estimate_usd", "bill_usd", "difference_usd",
        "difference_pct", "charges", "note"}], "total": {same},
      "unmatched": {"estimate": [VMs missing from the bill], "bill": [VMs that are not part of the run]},
      "warnings": []}
    """
    from analysis.export.bill import compare_bill
    from analysis.export.bill_file import read_bill
    from metrics.run import RunNumbers
    from metrics.store.database import RunStore

    with RunStore.open_reader(_folder(run) / "run.db") as store:
        numbers = RunNumbers.of(store)
    found = compare_bill(numbers, read_bill(against), str(against))
    if output is Format.json:
        typer.echo(as_json(_document(found, against)), nl=False)
        return
    shown = _shown if output is Format.table else asdict
    rows = [shown(row) for row in (*found.rows, found.total)]
    typer.echo(rows_text("services", rows, _COLUMNS, output), nl=False)
    for sentence in (*found.warnings, *_unmatched(found)):
        typer.echo(sentence, err=True)


def _document(found: BillComparison, against: Path) -> dict[str, Any]:
    return {
        "schema_version": SCHEMA_VERSION,
        "run_id": found.run_id,
        "file": str(against),
        "currency": "USD",
        "selected_by": found.selected_by,
        "rows_read": found.read,
        "rows_selected": found.selected,
        "services": [asdict(row) for row in found.rows],
        "total": asdict(found.total),
        "unmatched": {"estimate": found.unmatched_estimate, "bill": found.unmatched_bill},
        "warnings": found.warnings,
    }


def _shown(row: ServiceRow) -> dict[str, Any]:
    absent = "-" if row.one_sided else "unknown"
    cells = asdict(row)
    shown = {
        name: absent if cells[name] is None else usd(cells[name])
        for name in ("estimate_usd", "bill_usd", "difference_usd")
    }
    percent = row.difference_pct
    return cells | shown | {"difference_pct": absent if percent is None else f"{percent:+.1f} %"}


def _unmatched(found: BillComparison) -> list[str]:
    sentences: list[str] = []
    if found.unmatched_estimate:
        sentences.append(f"The bill has no charge for {', '.join(found.unmatched_estimate)}.")
    if found.unmatched_bill:
        sentences.append(f"On the bill but not part of the run: {', '.join(found.unmatched_bill)}.")
    return sentences


def _folder(run: str) -> Path:
    """Return `run` if it is a run folder, else the folder of the run with that id."""
    typed = Path(run)
    return typed.resolve() if (typed / "run.db").is_file() else find_run(run).folder
