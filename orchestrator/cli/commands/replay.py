"""`orch replay`: compute the figures of imported logs with the records and functions used for own runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cloud.targets import target_of
from orchestrator.cli.names import find_source
from orchestrator.cli.render.output import SCHEMA_VERSION, Format, as_json, plain, rows_text
from orchestrator.cli.render.terminal import say

if TYPE_CHECKING:
    from analysis.replay import RunRow
    from analysis.sources import Source

_TABLE = (
    "run", "label", "model", "peers", "sps", "low", "high", "n", "gran", "calc_s", "comm_s", "egress_gb", "speedup", "notes",
)  # fmt: skip
_FEW = 3  # warnings are printed for up to this many runs, and only counted for more


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command("replay")(_replay)


def _replay(
    targets: Annotated[
        list[str],
        typer.Argument(
            metavar="DIR|RUN...", help="Folders of logs or of exported runs; runs on this machine."
        ),
    ],
    index: Annotated[
        Path | None,
        typer.Option(help="CSV with the run, role, host, place, model and GPU of each file."),
    ] = None,
    only: Annotated[
        list[str] | None, typer.Option("--run", metavar="RUN_ID", help="Only this run. Repeatable.")
    ] = None,
    prices: Annotated[
        str, typer.Option(help="Price book for the VMs of imported runs: a name or a CSV file.")
    ] = "study-2023-04",
    save: Annotated[
        bool,
        typer.Option(
            "--save", help="Keep the imported runs, so that commands such as `orch report RUN` find them."
        ),
    ] = False,
    output: Annotated[
        Format, typer.Option("--output", "-o", help="table, json, yaml or csv.")
    ] = Format.table,
) -> None:
    """Compute the figures of existing logs or runs.

    Reads the paper's W&B exports, exported runs and runs on this machine. Logs are imported into the records
    that orch's own runs write, and every figure is computed from those. Without --index, INDEX.csv in the
    folder is used; without that, run, role and host are derived from the file names. Items that cannot be read
    are reported on stderr, and the rest is computed. Exits with 2 if nothing could be computed.

    \b
    JSON: {"schema_version", "runs": [{"label", "run_id", "model", "peers", "tbs",
      "sps_epoch_mean" (the authors' figure: mean of all logged rates except the first), "sps"
      (samples over time of the measured epochs), "n_epochs", "sps_low", "sps_high" (95 %),
      "granularity_phase_timed" (the authors' rule), "granularity" (wall clock), "calc_s",
      "comm_s", "epoch_s", "egress_bytes_per_vm_epoch", "ingress_bytes_per_vm_h",
      "sps_wall", "sps_phase_timed" (single GPU, on both clocks), "speedup" (one clock),
      "speedup_phase_timed" (two clocks, as in the paper), "target", "emulated", "scales", "host_contended",
      "warnings": []}], "problems": []}
    Figures that a log does not contain are null, with the reason in "warnings".
    """
    from analysis.replay import read_folder, replay_rows
    from analysis.sources import opened
    from cloud.prices.book import load
    from metrics.store.database import StoreError
    from orchestrator.errors import UsageError

    book = load(prices)
    places = [find_source(text) for text in targets]
    problems: list[str] = []
    rows: list[RunRow] = []
    refused: list[str] = []
    say(f"reading {', '.join(str(place) for place in places)}")
    with opened(places, index=index, only=only or (), book=book) as found:
        problems += found.problems
        for source in found.runs:
            try:
                rows.append(read_folder(source.folder).row)
            except StoreError as error:
                problems.append(f"{source.run_id}: {error}")
                continue
            if save and source.imported:
                try:
                    say(f"saved as {_keep(source)}")
                except UsageError as error:
                    refused.append(str(error))
    for problem in problems:
        say(f"problem: {problem}")
    if not rows:
        raise UsageError(f"{', '.join(targets)}: no run could be computed; see the problems above")
    typer.echo(_text(replay_rows(rows), problems, output), nl=False)
    if refused:
        raise UsageError("; ".join(refused))


def _keep(source: Source) -> str:
    """Copy an imported run to the state folder and return its id. Raises UsageError if another run has that id."""
    import shutil
    import tempfile

    from orchestrator.errors import UsageError
    from orchestrator.home import home_folder, run_folder

    target = run_folder(home_folder(), source.run_id)
    if target.exists() and not _same_import(source.folder, target):
        raise UsageError(
            f"{target}: another run with this id exists; remove that folder first, or choose another ORCH_HOME"
        )
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".replay-", dir=target.parent) as made:
        fresh = Path(made) / source.run_id
        shutil.copytree(source.folder, fresh)
        # orchestrator.home.list_runs recognises runs by this file.
        (fresh / "experiment.yaml").write_text(
            f"# Imported by `orch replay --save`: no experiment that can be launched.\nname: {source.run_id}\n"
        )
        if target.exists():
            target.rename(Path(made) / "before")
        fresh.rename(target)
    return source.run_id


def _same_import(folder: Path, kept: Path) -> bool:
    """Whether the kept run was imported from the same log files, which may have grown since."""
    from metrics.store.database import RunStore, StoreError

    def origin(place: Path) -> Any:
        with RunStore.open_reader(place / "run.db") as store:
            files = store.run_meta().logs.files
            return files and sorted(str(file["file"]) for file in files)

    try:
        return bool(origin(kept)) and origin(kept) == origin(folder)
    except StoreError:
        return False


def _text(rows: Sequence[Mapping[str, Any]], problems: Sequence[str], form: Format) -> str:
    document = {"schema_version": SCHEMA_VERSION, "runs": rows, "problems": problems}
    if form is Format.json:
        return as_json(document)
    if form is Format.yaml:
        import yaml

        return yaml.safe_dump(plain(document), sort_keys=False, allow_unicode=True)
    if form is Format.csv:
        from metrics.provenance import scales_mark

        extra = (
            {"warnings": " | ".join(row["warnings"]), "scales": scales_mark(row["scales"])} for row in rows
        )
        flat = [{**row, **more} for row, more in zip(rows, extra, strict=True)]
        return rows_text("runs", flat, tuple(rows[0]), form)
    # For imported logs alone these columns would be empty.
    marks = () if all(target_of(row["target"]).from_logs for row in rows) else ("on", "host")
    columns = (*_TABLE[:-1], *marks, _TABLE[-1])
    return rows_text("runs", [_line(row) for row in rows], columns, form) + _notes(rows)


def _line(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row of the table. For a single GPU `sps` is its wall-clock rate and missing figures are empty."""
    from metrics.provenance import host_mark, origin_mark

    egress = row["egress_bytes_per_vm_epoch"]
    alone = row["sps_wall"] is not None
    values = {
        "run": row["run_id"],
        "label": row["label"] or "-",
        "model": row["model"],
        "peers": row["peers"],
        "sps": row["sps_wall"] if alone else row["sps"],
        "low": row["sps_low"],
        "high": row["sps_high"],
        "n": row["n_epochs"],
        "gran": row["granularity"],
        "calc_s": row["calc_s"],
        "comm_s": row["comm_s"],
        "egress_gb": None if egress is None else egress / 1e9,
        "speedup": row["speedup"],
        "on": origin_mark(row["target"], row["emulated"]),
        "host": host_mark(row["host_contended"], row["target"]),
        "notes": len(row["warnings"]),
    }
    return {key: "-" if value is None else value for key, value in values.items()} if alone else values


def _notes(rows: Sequence[Mapping[str, Any]]) -> str:
    if len(rows) > _FEW:
        count = sum(len(row["warnings"]) for row in rows)
        return f"{count} warnings on {len(rows)} runs: use `-o json` for all, `--run RUN_ID` for those of one run\n"
    return "".join(f"{row['run_id']}: {text}\n" for row in rows for text in row["warnings"])
