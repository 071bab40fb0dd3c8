"""`orch compare`: runs beside the published study and beside its logs, with what may be expected of them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from orchestrator.cli.render.output import Format, as_json, plain, rows_text
from orchestrator.cli.render.terminal import say

if TYPE_CHECKING:
    from analysis.report.study.comparison import Compared

_LONG = (
    "experiment", "run_id", "figure", "published", "replayed", "emulated", "difference", "inside", "host_contended",
    "dropped_rounds", "attempts", "target", "origin", "scales",
)  # fmt: skip
_TABLE = (
    "experiment",
    "on",
    "sps",
    "off",
    "comm_s",
    "comm_off",
    "calc_s",
    "granularity",
    "egress_gb",
    "host",
    "tries",
    "limits",
)
_FIGURES_WIDE = 4  # so many figures of a gain stand in one table; the others in a second one below


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command("compare")(_compare)


def _compare(
    targets: Annotated[
        list[str],
        typer.Argument(
            metavar="RUN...|STUDY", help="Runs of this machine; a study's id, or its name for the newest."
        ),
    ],
    logs: Annotated[
        Path | None,
        typer.Option(help="Folder with the published study's logs. [$ORCH_SHARED/paper-traces if there]"),
    ] = None,
    limits: Annotated[
        str,
        typer.Option(
            metavar="FILE|none", help="A csv of how far a figure may be off. [the study's, else paper-abc's]"
        ),
    ] = "",
    expect: Annotated[
        str,
        typer.Option(
            metavar="FILE|NAME|none",
            help="A study's file whose compare.expect judges the rows. [the study's own]",
        ),
    ] = "",
    include_contended: Annotated[
        bool, typer.Option("--include-contended", help="Judge runs too that the host disturbed.")
    ] = False,
    report: Annotated[
        Path | None,
        typer.Option(help="Write a page with the table, a dot plot and the study report's figures."),
    ] = None,
    wide: Annotated[
        bool, typer.Option("--wide", help="The replayed figure in every column of the table.")
    ] = False,
    output: Annotated[
        Format, typer.Option("--output", "-o", help="table, json, yaml or csv.")
    ] = Format.table,
) -> None:
    """Lay runs, or a study's runs, beside the published figures: published, replayed, emulated.

    A study may be unfinished: what it has is compared, the rest is named. Runs whose host was too busy are listed
    and neither judged nor ranked, unless --include-contended. Figures are published of the study's experiment: with
    another model, batch size, target batch size or other peers a run has none beside it. A run with an option that
    the study had not, or with a label, is shown beside them and neither judged nor ranked; so is one on loopback,
    without distance. The column ON and "origin" say what a run ran on: its figures stand under "emulated" wherever
    that was. HOST is unknown where nobody knows whether it kept the clock: such a run counts.
    Exit: 0 whatever the figures are, 2 nothing to compare.

    \b
    JSON: {"schema_version", "study" (null: runs), "rows": [{"experiment": "NLP C-8", "run_id",
      "published": {"sps", "comm_s", "epoch_s", "granularity", "egress_bytes_per_vm_epoch"} or null,
      "emulated": {same}, "replayed": {same} or null, "host_contended", "dropped_rounds",
      "attempts", "target": "local"|"loopback"|"sky"|"imported", "origin": "emulated"|"loopback"|
      "rented"|"rented, padded"|"logs"|"not emulated"|"unknown", "scales": {"bytes", "time",
      "samples"} or null}], "kendall_tau" (of sps, over the runs that count), "compared",
      "checks": [{"scope": "each"|"median"|"study", "experiment", "run_id", "figure", "low",
      "high", "found", "inside"}], "left_out" (rows that do not count): [{"experiment", "run_id",
      "why"}], "missing": [{"experiment", "why"}], "accuracy" (of a study that compares it,
      else null): {"of": {"experiment", "n", "mean", "sd", "runs": [{"run_id", "seed",
      "accuracy", "loss", "updates", "target_batch_size", "samples", "heldout_samples",
      "counted", "dropped_rounds", "target", "emulated", "host_contended"}]}, "against": {same},
      "difference", "pooled_sd", "limit", "inside", "why"},
      "baseline" (a label; null where the study names none), "gains" (rows of experiment and
      label; [] without a baseline): [{"experiment", "label", "model", "baseline": bool,
      "against": row or null, "run_ids", "dropped_rounds", "left_out": [{"run_id", "why"}],
      "host_contended", "runs": [{"run_id", "target", "origin", "scales", "host_contended"}],
      "figures": {"sps"|"granularity"|"comm_s"|"usd_per_1m"|"egress_bytes_per_vm_epoch"|
      "intercontinental_bytes": {"value", "n", "ratio", "low", "high", "n_of": "runs"|"epochs"|"", "why"}, "loss"|"heldout_loss":
      {"value", "n", "samples_least", "samples_most", "difference", "noise", "noise_n",
      "within_noise", "why"}}}], "expected": [{"row", "against", "figure", "at_least",
      "at_most", "within", "times_lower", "within_noise", "found" (times; of a loss the
      difference), "low", "high", "n_of", "noise", "noise_n", "verdict":
      "met"|"missed"|"unknown"|"told" (no limit), "clear" (the whole interval on the same
      side), "why"}]}
    Unknown is null; figures are at the study's scale.
    """
    from orchestrator.cli.commands.comparing import compare_wanted, expected_of, wanted_runs
    from orchestrator.errors import UsageError
    from orchestrator.home import home_folder

    if report is not None and (report.is_dir() or not report.resolve().parent.is_dir()):
        raise UsageError(f"{report}: name a file in a folder that exists, such as --report compare.html")
    wanted = wanted_runs(home_folder(), targets)
    if expect and not wanted.baseline:
        raise UsageError(f"--expect {expect}: is for one study with a `compare.baseline`; leave it out")
    wanted.expect = expected_of(expect) if expect else wanted.expect
    compared = compare_wanted(wanted, logs, limits, include_contended)
    if not compared.rows:
        whys = "; ".join(f"{name}: {why}" for name, why in wanted.missing.items())
        raise UsageError(f"{', '.join(targets)}: nothing to compare yet ({whys})")
    typer.echo(comparison_text(wanted.study, compared, output, wide), nl=False)
    if report is not None:
        say(f"report: {write_page(wanted.folders, compared, report)}")


def comparison_document(study: str | None, compared: Compared) -> dict[str, Any]:
    """The comparison as JSON types."""
    from analysis.compare.accuracy import accuracy_document
    from analysis.compare.options import gains_document
    from analysis.compare.published import compare_document

    document = compare_document(
        study, compared.rows, compared.limits, compared.missing, compared.include_contended
    )
    return {**document, "accuracy": accuracy_document(compared.accuracy), **gains_document(compared.gains)}


def comparison_text(study: str | None, compared: Compared, form: Format, wide: bool = False) -> str:
    """The comparison in the form asked for, ending in a newline. `wide`: replayed figures in every column of the table."""
    from analysis.compare.published import long_rows
    from analysis.report.study.comparison import study_checks
    from analysis.report.study.expectations import expected_lines
    from analysis.report.study.held_out import accuracy_lines
    from analysis.report.study.options import GAIN_COLUMNS, gain_long_rows, gain_notes, gain_table

    if form in (Format.json, Format.yaml):
        document = comparison_document(study, compared)
        if form is Format.json:
            return as_json(document)
        import yaml

        return yaml.safe_dump(plain(document), sort_keys=False, allow_unicode=True)
    if compared.gains and form is Format.csv:
        return rows_text("rows", gain_long_rows(compared.gains), GAIN_COLUMNS, form)
    rows = long_rows(compared.rows, compared.checks)
    if form is Format.csv:
        return rows_text("rows", rows, _LONG, form)
    if compared.gains:  # what a row is held against is the baseline
        lines = [_gain_text(gain_table(compared.gains))]
        lines += [*gain_notes(compared.gains), *study_checks(compared)]
        lines += expected_lines(compared.gains.verdicts)
    else:
        columns = (_TABLE[0], "run", *_TABLE[1:]) if compared.named_twice else _TABLE
        lines = [rows_text("rows", _table_rows(rows, wide), columns, Format.table).rstrip("\n")]
        others = "all figures" if wide else "sps, comm_s"
        pairs = "" if wide else "; the others: published / emulated (difference)"
        lines.append(f"{others}: published / replayed / emulated{pairs}; ON: what the run ran on")
        lines += study_checks(compared)
        lines += [
            f"{r.experiment} ({r.run_id}): not judged: {r.not_judged}" for r in compared.rows if r.not_judged
        ]
    lines += [f"{name}: {why}" for name, why in (compared.missing or {}).items()]
    lines += accuracy_lines(compared.accuracy)
    return "\n".join(lines) + "\n"


def write_page(folders: Sequence[Path], compared: Compared, page: Path) -> Path:
    """The study report of these runs with the comparison before it. Raises ImportFailed, OSError."""
    from analysis.report.study.build import build, load
    from cloud.prices.book import load as load_book

    book = load_book("study-2023-04")
    runs, problems = load(folders, book)
    return build(runs, page, book, problems=problems, compared=compared)


def _gain_text(table: Sequence[dict[str, Any]]) -> str:
    """The rows of what options gain; figures for which there is no room stand in a second table."""
    first, last = ("experiment", "runs", "on"), "note"
    figures = [column for column in table[0] if column not in (*first, last)]
    parts: list[tuple[str, ...]] = [(*first, *figures[:_FIGURES_WIDE], last)]
    if figures[_FIGURES_WIDE:]:
        parts.append((first[0], *figures[_FIGURES_WIDE:]))
    return "\n".join(rows_text("rows", table, part, Format.table) for part in parts).rstrip("\n")


def _table_rows(rows: Sequence[dict[str, Any]], wide: bool) -> list[dict[str, Any]]:
    """One line a run of `long_rows`."""
    from metrics.provenance import host_mark

    by_run: dict[str, dict[str, dict[str, Any]]] = {}
    for row in rows:
        by_run.setdefault(row["run_id"], {})[row["figure"]] = row
    found: list[dict[str, Any]] = []
    for own in by_run.values():
        first = next(iter(own.values()))
        outside = [name for name, row in own.items() if row["inside"] is False]
        judged = any(row["inside"] is not None for row in own.values())
        busy, dropped = host_mark(first["host_contended"], first["target"]), first["dropped_rounds"]
        found.append(
            {
                "experiment": first["experiment"],
                "run": first["run_id"],
                "on": first["origin"],
                "sps": _three(own.get("sps")),
                "off": _off(own.get("sps")),
                "comm_s": _three(own.get("comm_s")),
                "comm_off": _off(own.get("comm_s")),
                "calc_s": _own(own.get("calc_s"), wide),
                "granularity": _own(own.get("granularity"), wide),
                "egress_gb": _own(own.get("egress_bytes_per_vm_epoch"), wide, 1e-9),
                "host": ", ".join(part for part in (busy, f"{dropped} dropped" if dropped else "") if part),
                "tries": first["attempts"],
                "limits": f"OUTSIDE {', '.join(outside)}" if outside else "inside" if judged else "",
            }
        )
    return found


def _three(row: dict[str, Any] | None) -> str:
    values = [] if row is None else [row["published"], row["replayed"], row["emulated"]]
    return " / ".join("-" if v is None else f"{v:.1f}" for v in values)


def _off(row: dict[str, Any] | None) -> str:
    return "" if row is None or row["difference"] is None else f"{row['difference']:+.1%}"


def _own(row: dict[str, Any] | None, wide: bool, scale: float = 1.0) -> str:
    """The figure beside the published one, and wide beside the replayed one too; alone where there is none."""
    if row is None:
        return ""
    keys = ("published", "replayed", "emulated") if wide else ("published", "emulated")
    values = [row[key] for key in keys]
    if not any(value is not None for value in values[:-1]):
        values = values[-1:]
    text = " / ".join("-" if value is None else f"{value * scale:.3g}" for value in values)
    return text if row["difference"] is None else f"{text} ({row['difference']:+.1%})"
