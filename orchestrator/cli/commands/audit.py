"""`orch audit`: find doubtful figures."""

from __future__ import annotations

import re
import shutil
import textwrap
from collections import Counter
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from orchestrator.cli.exits import DONE, FAILED
from orchestrator.cli.names import find_source
from orchestrator.cli.render.output import SCHEMA_VERSION, Format, as_json, rows_text
from orchestrator.cli.render.terminal import say

if TYPE_CHECKING:
    from analysis.audit.findings import Finding

_COLUMNS = ("label", "run_id", "severity", "check", "sentence", "figure", "value", "expected", "n", "file")
_WIDEST = 120  # columns: longer lines are hard to read
_ALIKE = 2  # findings of a run that differ in their numbers only; the table counts the others


class _Floor(StrEnum):
    doubt = "doubt"
    error = "error"


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command("audit")(_audit)


def _audit(
    targets: Annotated[
        list[str],
        typer.Argument(
            metavar="DIR|RUN...", help="Folders of W&B logs, of exported runs or of runs, or run ids."
        ),
    ],
    index: Annotated[
        Path | None,
        typer.Option(help="CSV that assigns log files to runs. [INDEX.csv in the folder, if present]"),
    ] = None,
    only: Annotated[list[str] | None, typer.Option("--run", help="Only this run id. Repeatable.")] = None,
    claims: Annotated[
        Path | None,
        typer.Option(
            help="CSV with the columns run (id or label) and sps: claimed throughputs to check against the logs."
        ),
    ] = None,
    fail_on: Annotated[
        _Floor | None,
        typer.Option(help="Exit with 1 if a finding has this severity or a higher one. [never]"),
    ] = None,
    form: Annotated[
        Format, typer.Option("-o", "--output", help="Output format.", show_choices=True)
    ] = Format.table,
) -> int:
    """Find doubtful figures in runs, with the evidence.

    Severities: error (the figure is wrong), doubt (the figure may mislead), note (for information). docs/audit.md
    lists the checks and their thresholds. Exits with 2 if no run could be read.

    \b
    JSON: {"schema_version": 1,
      "findings": [{"run_id" or null (several runs), "label", "check", "severity",
        "sentence", "figure", "value", "expected", "n", "file"}],
      "problems": [one sentence per item that could not be read]}
    CSV has the same columns as the findings.
    """
    from analysis.audit.audit import audit
    from analysis.audit.evidence import Evidence
    from analysis.audit.findings import reaches
    from analysis.sources import opened
    from metrics.store.database import RunStore, StoreError
    from orchestrator.errors import UsageError

    claimed = _claims(claims)
    problems: list[str] = []
    runs: list[Evidence] = []
    with opened([find_source(t) for t in targets], index=index, only=only or ()) as found:
        problems += found.problems
        for source in found.runs:
            try:
                with RunStore.open_reader(source.folder / "run.db") as store:
                    runs.append(Evidence.of(store, claimed))
            except StoreError as error:
                problems.append(f"{source.run_id}: {error}")
    named = {n for e in runs for n in (e.run_id, e.label)}
    problems += [f"{claims}: run {run} is not among the runs audited" for run in claimed if run not in named]
    for problem in problems:
        say(f"problem: {problem}")
    if not runs:
        raise UsageError(f"{', '.join(targets)}: no run could be read; see the problems above")
    findings = audit(runs)
    rows = [finding.to_json() for finding in findings]
    if form is Format.json:
        text = as_json({"schema_version": SCHEMA_VERSION, "findings": rows, "problems": problems})
    elif form is Format.table:
        text = _by_run(runs, findings)
    else:
        text = rows_text("findings", rows, _COLUMNS, form)
    typer.echo(text, nl=False)
    bad = fail_on is not None and any(reaches(f.severity, fail_on.value) for f in findings)
    return FAILED if bad else DONE


def _claims(path: Path | None) -> dict[str, float]:
    """Read the claimed throughputs. Raises UsageError for an unusable file."""
    from analysis.audit.claims import ClaimsError, parse_claims
    from orchestrator.errors import UsageError

    if path is None:
        return {}
    try:
        return parse_claims(path.read_text(encoding="utf-8-sig"), str(path))
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not a text file"
        raise UsageError(
            f"{path}: {reason}; --claims needs a CSV file with the columns run and sps"
        ) from error
    except ClaimsError as error:
        raise UsageError(str(error)) from error


def _kind(finding: Finding) -> tuple[str, ...]:
    """Equal for findings that differ in their numbers only."""
    return (finding.severity, finding.check, re.sub(r"\d[\d.,]*", "#", finding.sentence))


def _by_run(runs: Sequence[Any], findings: Sequence[Finding]) -> str:
    """Format the findings by run, wrapped to the width of the terminal."""
    from analysis.audit.evidence import counted

    width = min(_WIDEST, shutil.get_terminal_size((100, 24)).columns)
    checks = max((len(f.check) for f in findings), default=0)
    lead = 2 + 5 + 2 + checks + 2
    lines: list[str] = []

    def block(title: str, own: Sequence[Finding]) -> None:
        lines.append(title)
        kinds = Counter(map(_kind, own))
        seen: Counter[tuple[str, ...]] = Counter()
        for f in own:
            kind = _kind(f)
            seen[kind] += 1
            if seen[kind] > _ALIKE:
                continue
            head = f"  {f.severity:<5}  {f.check:<{checks}}  "
            text = f.sentence if f.file is None or f.file in f.sentence else f"{f.sentence} [{f.file}]"
            if seen[kind] == _ALIKE < kinds[kind]:
                text += f" And {kinds[kind] - _ALIKE} more like this: `-o json` has all."
            lines.extend(
                textwrap.wrap(
                    text, max(width, lead + 30), initial_indent=head, subsequent_indent=" " * lead,
                    break_long_words=False, break_on_hyphens=False,
                )
            )  # fmt: skip
        if not own:
            lines.append("  no findings")
        lines.append("")

    across = [f for f in findings if f.run_id is None]
    if across:
        block("All runs", across)
    for e in runs:
        title = e.run_id if e.label in (None, e.run_id) else f"{e.label} ({e.run_id})"
        block(title, [f for f in findings if f.run_id == e.run_id])
    total = [
        counted(sum(1 for f in findings if f.severity == kind), kind) for kind in ("error", "doubt", "note")
    ]
    lines.append(f"{counted(len(runs), 'run')}: {', '.join(total)}")
    return "\n".join(lines) + "\n"
