"""`orch compare`: runs next to each other, and next to the paper's figures and logs, judged by limits and expectations."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from orchestrator.cli.render.output import Format, as_json, plain, rows_text
from orchestrator.cli.render.terminal import say

if TYPE_CHECKING:
    from analysis.compare.differences import Differences
    from analysis.report.study.comparison import Compared

_LONG = (
    "experiment", "run_id", "figure", "published", "replayed", "emulated", "difference", "inside", "host_contended",
    "dropped_rounds", "attempts", "target", "origin", "scales",
)  # fmt: skip
_TABLE = (
    "experiment",
    "on",
    "epoch rate",
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
_VALUE_WIDE = 48  # characters of a configuration's value
_RUNS_WIDE = 3  # runs beside the first one in a table; the others go into further tables
_FIGURES_WIDE = 4  # figures per table of options; the others go into a second table


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command("compare")(_compare)


def _compare(
    targets: Annotated[
        list[str],
        typer.Argument(
            metavar="RUN...|STUDY", help="Runs on this machine; a study by id, or by name (the newest)."
        ),
    ],
    logs: Annotated[
        Path | None,
        typer.Option(help="Folder with the paper's logs. [$ORCH_SHARED/paper-traces, if present]"),
    ] = None,
    limits: Annotated[
        str,
        typer.Option(
            metavar="FILE|none",
            help="CSV with the accepted deviation of each figure. [the study's own, else that of paper-abc]",
        ),
    ] = "",
    expect: Annotated[
        str,
        typer.Option(
            metavar="FILE|NAME|none",
            help="Study file with the expectations (compare.expect) to check against the rows. [the study's own]",
        ),
    ] = "",
    include_contended: Annotated[
        bool, typer.Option("--include-contended", help="Also judge runs whose host was too busy.")
    ] = False,
    report: Annotated[
        Path | None,
        typer.Option(
            help="Write an HTML page with the comparison, its charts and the figures of the study report."
        ),
    ] = None,
    wide: Annotated[
        bool,
        typer.Option(
            "--wide", help="Beside the paper, show the figure replayed from its logs in every column."
        ),
    ] = False,
    output: Annotated[
        Format, typer.Option("--output", "-o", help="table, json, yaml or csv.")
    ] = Format.table,
) -> None:
    """Compare runs with each other and with the published figures.

    Runs are compared with the first one: the keys of the configuration that differ; each figure with its interval,
    the difference, and whether that is beyond the noise between epochs; the losses after equally many samples; the figures
    on held-out data at the end. Runs with the same target (train.until.metric) are ranked by the time and the dollars it
    took to reach it. --report draws the curves. `orch ls` lists the runs of this machine. The figures of the paper follow
    only if it published one of the experiments.

    Beside the paper, each figure is shown as published, as replayed from the paper's logs, and as measured by the run
    ("emulated", whatever the run ran on: see the column ON and "origin"). An unfinished study is compared as far as it
    has run; runs that are left out are named, with the reason. Published figures exist only for the paper's experiments: a
    run with another model, batch size, target batch size or set of peers has none.

    A run is shown but neither judged by the limits nor ranked if its host was too busy (unless --include-contended),
    if it has a label or an option that the paper did not use, or if it ran on loopback, without network distance. A
    run whose HOST is unknown counts. Limits on a median or on a whole study are not judged if only some of its runs
    are compared, nor is Kendall's tau (do the runs rank as published: 1 in the same order, -1 reversed).

    Between runs, throughput ("sps" in "differences") is samples over time, and granularity ("granularity_of_means")
    mean calculation / mean communication. Beside the paper, EPOCH RATE ("sps" in "rows") is the mean of the epochs'
    rates, as the paper prints it, and granularity the mean of the epochs' ratios.

    Exit: 0 whatever the figures are, 2 nothing to compare.

    \b
    JSON: {"schema_version", "study" (null: runs), "rows": [{"experiment": "NLP C-8", "run_id",
      "published": {"sps", "comm_s", "epoch_s", "granularity", "egress_bytes_per_vm_epoch"} or null,
      "emulated": {same}, "replayed": {same} or null, "host_contended", "dropped_rounds",
      "attempts", "target": "local"|"loopback"|"sky"|"imported", "origin": "emulated"|"loopback"|
      "rented"|"rented, padded"|"logs"|"not emulated"|"unknown", "scales": {"bytes", "time",
      "samples"} or null, "evaluation" (held-out figures at the end): {name: value} or null,
      "predicted" (by its plan; [] if nothing was): [{"figure", "predicted": {"value", "low", "high"}, "measured",
      "error" (predicted / measured - 1), "inside"}], "more_peers" (null: no granularity): {"peers", "factor" (of samples/s
      with twice the peers, by the paper's rule), "by": "prediction"|"rule"|"unknown", "stops_at" (peers), "most",
      "predicted_factor", "predicted_usd_factor", "text"}}],
      "kendall_tau" (of sps, over the runs that count), "compared",
      "checks": [{"scope": "each"|"median"|"study", "experiment", "run_id", "figure", "low",
      "high", "found", "inside"}], "whole" (false: limits on medians and the study are not
      judged), "left_out" (rows not judged): [{"experiment", "run_id",
      "why"}], "missing": [{"experiment", "why"}], "held_out" (null unless the study
      compares one): {"figure", "of": {"experiment", "n", "mean", "sd", "runs": [{"run_id", "seed",
      "value", "updates", "target_batch_size", "samples", "heldout_samples", "counted",
      "dropped_rounds", "target", "emulated", "host_contended"}]}, "against": {same},
      "difference", "pooled_sd", "limit", "inside", "why"},
      "baseline" (a label; null where the study names none), "gains" (rows of experiment and
      label; [] without a baseline): [{"experiment", "label", "model", "baseline": bool,
      "against": row or null, "run_ids", "dropped_rounds", "left_out": [{"run_id", "why"}],
      "host_contended", "runs": [{"run_id", "target", "origin", "scales", "host_contended"}],
      "figures": {"sps"|"granularity"|"comm_s"|"usd_per_1m"|"egress_bytes_per_vm_epoch"|
      "intercontinental_bytes": {"value", "n", "ratio", "low", "high", "n_of": "runs"|"epochs"|"", "why"}, "loss"|"heldout_loss":
      {"value", "n", "samples_least", "samples_most", "difference", "noise", "noise_n",
      "within_noise", "why"}}}], "expected": [{"row", "against", "figure", "at_least",
      "at_most", "within", "times_lower", "within_noise", "found" (a ratio; for a loss
      the difference), "low", "high", "n_of", "noise", "noise_n", "verdict":
      "met"|"missed"|"unknown"|"told" (no limit), "clear" (the whole interval is on the same
      side), "why"}], "differences" (null: a study is compared with the paper or its baseline):
      {"against" (the first run), "runs": [{"run_id", "experiment", "model", "status", "peers",
      "epochs", "target", "origin", "host_contended", "configuration_known": bool}],
      "same_keys", "configuration": [{"key", "values": [{"run_id", "value", "present" (null:
      unknown)}]}], "figures": [{"figure", "unit", "values": [{"run_id", "value", "low", "high",
      "n", "difference", "ratio", "ratio_low", "ratio_high", "beyond_noise", "why"}]}],
      "losses": [{"figure", "run_id", "value", "samples", "against", "against_samples",
      "difference", "why"}], "evaluation" (held-out figures at the end that the run and the first
      one have): [{"figure", "run_id", "value", "against", "difference", "better": bool or null,
      "why"}], "not_evaluated" (the others): [{"run_id", "why"}], "target" (null: none in common):
      {"name", "at_most", "at_least", "time_to_target_s": [run_id] (those that reached it, the first
      one first), "usd_to_target": [run_id]}}}
    Unknown values are null; figures are at full scale. CSV has a row for each run and figure, beside
    the paper, and one with "against" for each figure of a run against the first one.
    """
    from orchestrator.cli.commands.comparing import compare_wanted, expected_of, wanted_runs
    from orchestrator.errors import UsageError
    from orchestrator.home import home_folder

    if report is not None and (report.is_dir() or not report.resolve().parent.is_dir()):
        raise UsageError(f"{report}: not a file in an existing folder; use for example --report compare.html")
    wanted = wanted_runs(home_folder(), targets)
    if expect and not wanted.baseline:
        raise UsageError(
            f"--expect {expect}: only for a single study with a `compare.baseline`; remove the option"
        )
    wanted.expect = expected_of(expect) if expect else wanted.expect
    compared = compare_wanted(wanted, logs, limits, include_contended)
    if not compared.rows:
        whys = "; ".join(f"{name}: {why}" for name, why in wanted.missing.items())
        raise UsageError(f"{', '.join(targets)}: nothing to compare yet ({whys})")
    typer.echo(comparison_text(wanted.study, compared, output, wide), nl=False)
    for name, why in (compared.missing or {}).items() if output is not Format.table else ():
        say(f"left out: {name}: {why}")  # the table names them
    if report is not None:
        say(f"report: {write_page(wanted.folders, compared, report)}")


def comparison_document(study: str | None, compared: Compared) -> dict[str, Any]:
    """Return the comparison in JSON types."""
    from analysis.compare.differences import differences_document
    from analysis.compare.held_out import held_out_document
    from analysis.compare.options import gains_document
    from analysis.compare.published import compare_document

    document = compare_document(
        study, compared.rows, compared.limits, compared.missing, compared.include_contended, compared.whole
    )
    return {
        **document,
        "held_out": held_out_document(compared.held_out),
        **gains_document(compared.gains),
        "differences": differences_document(compared.differences),
    }


def comparison_text(study: str | None, compared: Compared, form: Format, wide: bool = False) -> str:
    """Format the comparison, ending in a newline. `wide`: replayed figures in every column of the table."""
    from analysis.compare.published import long_rows
    from analysis.report.study.comparison import study_checks, unlike_published
    from analysis.report.study.differences import AGAINST_COLUMNS, against_rows
    from analysis.report.study.expectations import expected_lines
    from analysis.report.study.held_out import evaluation_table, held_out_lines
    from analysis.report.study.options import GAIN_COLUMNS, gain_long_rows, gain_notes, gain_table
    from metrics.more_peers import words as about
    from metrics.predicted import words

    if form in (Format.json, Format.yaml):
        document = comparison_document(study, compared)
        if form is Format.json:
            return as_json(document)
        import yaml

        return yaml.safe_dump(plain(document), sort_keys=False, allow_unicode=True)
    if compared.gains and form is Format.csv:
        return rows_text("rows", gain_long_rows(compared.gains), GAIN_COLUMNS, form)
    if form is Format.csv:
        rows, found = long_rows(compared.rows, compared.checks), compared.differences
        if found is None or not found.others:
            return rows_text("rows", rows, _LONG, form)
        return rows_text("rows", [*rows, *against_rows(found)], (*_LONG, *AGAINST_COLUMNS), form)
    lines = _difference_lines(compared.differences) if compared.differences else []
    if compared.gains:  # rows are compared with the baseline, not with the paper
        lines += [
            _gain_text(gain_table(compared.gains)),
            *gain_notes(compared.gains),
            *study_checks(compared),
        ]
        lines += expected_lines(compared.gains.verdicts)
    elif compared.differences is None or compared.published:
        columns = (_TABLE[0], "run", *_TABLE[1:]) if compared.named_twice else _TABLE
        rows = _table_rows(long_rows(compared.shown, compared.checks), wide)
        lines += ["", "Beside the paper:"] if compared.differences else []
        lines.append(_table_text(rows, columns))
        others = "all columns" if wide else "epoch rate, comm s"
        pairs = "" if wide else "; other columns: published / emulated (difference)"
        lines.append(f"{others}: published / replayed / emulated{pairs}; ON: where the run ran")
        lines.append(
            "epoch rate: samples/s, the mean of the epochs' rates; granularity: of their ratios, as in the paper"
        )
        lines += study_checks(compared)
        lines += [
            f"{r.experiment} ({r.run_id}): not judged: {r.not_judged}" for r in compared.shown if r.not_judged
        ]
    lines += unlike_published(compared) if compared.differences else []
    lines += [f"{name}: {why}" for name, why in (compared.missing or {}).items()]
    lines += held_out_lines(compared.held_out)
    if compared.differences is None and (evaluated := evaluation_table(compared.rows)):
        lines += ["", _table_text(evaluated)]
    if predicted := [{"run": row.run_id, **words(pair)} for row in compared.rows for pair in row.predicted]:
        lines += ["", "Predicted before the runs:", _table_text(predicted)]
    if more := [f"  {row.run_id}: {about(row.more_peers)}" for row in compared.rows if row.more_peers]:
        lines += ["", "More peers:", *more]
    return "\n".join(lines) + "\n"


def write_page(folders: Sequence[Path], compared: Compared, page: Path) -> Path:
    """Write the study report of these runs, preceded by the comparison. Raises ImportFailed, OSError."""
    from analysis.report.study.build import build, load
    from cloud.prices.book import load as load_book

    book = load_book("study-2023-04")
    runs, problems = load(folders, book)
    return build(runs, page, book, problems=problems, compared=compared)


def _difference_lines(found: Differences) -> list[str]:
    """Format runs compared with each other: the runs, the keys that differ, the figures, the losses."""
    from analysis.report.study.differences import (
        HELD_OUT_RULE,
        configuration_line,
        configuration_table,
        figure_notes,
        figure_table,
        held_out_notes,
        held_out_table,
        loss_notes,
        loss_table,
        ranking_lines,
        run_table,
    )

    def runs_wide(rows: Sequence[dict[str, Any]], first: int) -> list[str]:
        """Split a table with a column per run into tables that fit; the first `first` columns are in each."""
        columns = list(rows[0])
        more = columns[first:]
        parts = [more[k : k + _RUNS_WIDE] for k in range(0, len(more), _RUNS_WIDE)] or [[]]
        return [_table_text(rows, (*columns[:first], *part)) for part in parts]

    lines = [_table_text(run_table(found))]
    lines += ["", configuration_line(found)] if found.others else []
    if keys := configuration_table(found):
        lines += runs_wide([{k: _short(v) for k, v in row.items()} for row in keys], 2)
    figures = figure_table(found, found.others)
    lines += [
        "",
        *([_table_text(figures)] if len(found.others) < 2 else runs_wide(figures, 2)),
        *ranking_lines(found),
        *figure_notes(found),
    ]
    if losses := loss_table(found):
        lines += ["", _table_text(losses), *loss_notes(found)]
    if held_out := held_out_table(found):
        lines += ["", _table_text(held_out), HELD_OUT_RULE]
    return lines + held_out_notes(found)


def _table_text(rows: Sequence[dict[str, Any]], columns: Sequence[str] = ()) -> str:
    return rows_text("rows", rows, columns or list(rows[0]), Format.table).rstrip("\n")


def _short(text: str) -> str:
    return text if len(text) <= _VALUE_WIDE else f"{text[: _VALUE_WIDE - 3]}..."


def _gain_text(table: Sequence[dict[str, Any]]) -> str:
    """Format the gains of options; figures that do not fit go into a second table."""
    first, last = ("experiment", "runs", "on"), "note"
    figures = [column for column in table[0] if column not in (*first, last)]
    parts: list[tuple[str, ...]] = [(*first, *figures[:_FIGURES_WIDE], last)]
    if figures[_FIGURES_WIDE:]:
        parts.append((first[0], *figures[_FIGURES_WIDE:]))
    return "\n\n".join(_table_text(table, part) for part in parts)


def _table_rows(rows: Sequence[dict[str, Any]], wide: bool) -> list[dict[str, Any]]:
    """Merge `long_rows` into one row per run."""
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
                "epoch rate": _three(own.get("sps")),
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
    """Format a figure next to the published one (`wide`: and the replayed one), or alone if there is none."""
    if row is None:
        return ""
    keys = ("published", "replayed", "emulated") if wide else ("published", "emulated")
    values = [row[key] for key in keys]
    if not any(value is not None for value in values[:-1]):
        values = values[-1:]
    text = " / ".join("-" if value is None else f"{value * scale:.3g}" for value in values)
    return text if row["difference"] is None else f"{text} ({row['difference']:+.1%})"
