"""`orch study run`: plan, ask once, run the experiments one after the other, compare."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from orchestrator.cli.choosing import Where
from orchestrator.cli.commands.launch import ResultForm
from orchestrator.cli.exits import DONE, FAILED, INTERRUPTED
from orchestrator.cli.render.output import SCHEMA_VERSION, Format, as_json
from orchestrator.cli.render.terminal import say
from orchestrator.errors import UsageError

if TYPE_CHECKING:
    from analysis.report.study.comparison import Compared
    from orchestrator.study.core import JobState, StudyState
    from orchestrator.study.definition import StudyDefinition


def run_study(
    study: Annotated[
        str,
        typer.Argument(
            metavar="FILE|NAME", help="Study file, name of a shipped study, or (with --resume) a study id."
        ),
    ],
    only: Annotated[
        list[str] | None,
        typer.Option(
            "--only", metavar="RUN", help="Run only these: names or patterns such as 'geo-c*'. Repeatable."
        ),
    ] = None,
    overrides: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Override a value in every experiment. Repeatable."),
    ] = None,
    resume: Annotated[
        bool,
        typer.Option(
            "--resume",
            help="Resume the study with that id, or the newest with that name; failed runs are retried.",
        ),
    ] = False,
    on: Annotated[
        Where | None,
        typer.Option("--on", help="local: the emulated cloud on this machine; sky: rented VMs. [local]"),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Start without asking for confirmation.")] = False,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run", help="Print the plan (with --resume: of what is left) without running anything."
        ),
    ] = False,
    price_tolerance: Annotated[
        float | None,
        typer.Option(min=0, max=10, help="Accept VM prices up to this fraction above the plan. [0.1]"),
    ] = None,
    output: Annotated[ResultForm, typer.Option("--output", "-o", help="text or json.")] = ResultForm.text,
) -> None:
    """Run a study: its experiments one after the other, then one comparison and one page.

    Shows the plan of all runs and asks once. A failed run does not end the study. A run is repeated, at most twice,
    if its host was too busy or a round was dropped without a planned fault. A run that takes too long is torn down.
    Each step is journalled to disk first: after a crash, kill -9 or Ctrl-C (which tears the current run down),
    --resume continues where the study stopped, attaches to a run still in progress, and repeats nothing.

    Exit: 0 all requested runs (with --only: those) have numbers, 1 one of them has not (it is named), 2 invalid
    file or option, 3 declined, 5 something may still be running, 6 another orch runs this study, 130
    interrupted.

    \b
    JSON: {"schema_version", "study_id", "study", "status": "done"|"failed"|"unfinished" (of the
      whole study), "runs": [{"run", "experiment", "label", "run_id", "status", "attempts",
      "disturbed": [], "error" (for a run that is done: why its repeat failed), "seconds"}],
      "comparison": as `orch compare STUDY -o json` or null, "report": path or null,
      "report_error": why there is no page};
      --dry-run: {"schema_version", "study", "on", "runs": [{"run", as `orch plan`}],
      "raw_duration_s", "duration_s", "vm_usd", "egress_usd", "most_vms", "contended_retries"}
    """
    from orchestrator.cli.commands.study.begin import begin_study
    from orchestrator.home import home_folder

    home = home_folder()
    patterns = only or []
    if resume and (overrides or price_tolerance is not None):
        changed = "--set" if overrides else "--price-tolerance"
        raise UsageError(
            f"--resume continues with the approved plan: omit {changed}, or begin a new study without --resume"
        )
    if resume:
        folder = _resumed(home, study, on)
        if dry_run:
            _show_left(folder, patterns, output)
            return
    else:
        folder = begin_study(
            home, study, overrides or [], patterns, on or Where.local, yes, dry_run,
            0.1 if price_tolerance is None else price_tolerance, output,
        )  # fmt: skip
    if folder is None:
        return
    code = _run(home, folder, patterns if resume else [], output)
    if code != DONE:
        raise typer.Exit(code)


def _resumed(home: Path, study: str, on: Where | None) -> Path:
    """Return the folder of the study to resume."""
    from experiments.study_file.load import load_study
    from orchestrator.study.definition import find_study_folder, newest_named, read_study

    folder = find_study_folder(home, study)
    if folder is None:
        name = load_study(study).spec.name
        folder = newest_named(home, name)
        if folder is None:
            raise UsageError(f"{study}: no study named '{name}' was begun here; omit --resume to begin one")
    begun_on = read_study(folder).on
    if on is not None and on.value != begun_on:
        raise UsageError(f"{folder.name} was begun with --on {begun_on} and continues there; omit --on")
    return folder


def _show_left(folder: Path, only: Sequence[str], output: ResultForm) -> None:
    """Print the approved plan of the runs that resuming the study would run."""
    from orchestrator.cli.commands.study.begin import named_by
    from orchestrator.cli.render.study_plan import plan_document, study_plan_lines
    from orchestrator.study.core import Retry, left_to_run, replay_study, to_retry
    from orchestrator.study.definition import read_state, read_study
    from orchestrator.study.journal import read_journal

    study = read_study(folder)
    state = read_state(folder, study)
    named_by(only, {job.key: job.names for job in study.jobs})
    if again := to_retry(state, only):
        state = replay_study(study.jobs, study.retries, [*read_journal(folder), Retry(0.0, again)])
    left = left_to_run(state, only)
    plans = {one.job.key: study.plans[one.job.key] for one in left}
    document = plan_document(study.name, study.on, plans, study.retries)
    lines = study_plan_lines(document) if left else [f"{study.study_id}: nothing left to run"]
    typer.echo(as_json(document) if output is ResultForm.json else "\n".join(lines) + "\n", nl=False)
    for one in left:
        if one.open is not None:
            say(
                f"{one.open.run_id} has no end in the journal: it is inspected first when the study is resumed"
            )
    say(f"dry run: {study.study_id} is unchanged, nothing was contacted or rented")


def _run(home: Path, folder: Path, only: Sequence[str], output: ResultForm) -> int:
    """Run what is left and print the result."""
    from orchestrator.cli.commands.study.begin import named_by
    from orchestrator.cli.commands.study.launcher import RunLauncher
    from orchestrator.cli.follow import terminated_is_interrupted
    from orchestrator.cli.render.study_screen import StudyScreen
    from orchestrator.ray.session import claim
    from orchestrator.study.core import Retry, to_retry
    from orchestrator.study.definition import hold_study, read_study
    from orchestrator.study.journal import StudyJournal
    from orchestrator.study.runner import LeftRunning, StudyRunner

    study = read_study(folder)
    with hold_study(folder), terminated_is_interrupted():
        screen = StudyScreen(lambda run_id: _headline(home, run_id), only=only)
        launcher = RunLauncher(home, study, screen)
        journal = StudyJournal(folder)
        runner = StudyRunner(study.study_id, study.jobs, study.retries, journal, launcher, screen, time.time)
        state = runner.state
        asked = named_by(only, {job.key: job.names for job in study.jobs})
        say(f"{study.study_id}: {folder}")
        if again := to_retry(state, only):
            say(f"retrying failed runs: {', '.join(again)}")
            journal.append(Retry(time.time(), again))
        claim(home)  # keeps one Ray for all runs as long as this process lives
        try:
            state = runner.run(only)
        except LeftRunning:
            say(f"resume the study with `orch study run {study.study_id} --resume`")
            return INTERRUPTED
        except KeyboardInterrupt:
            say(
                f"interrupted, nothing is left running; resume with `orch study run {study.study_id} --resume`"
            )
            return INTERRUPTED
        finally:
            journal.close()
        _finish(home, folder, study, state, output)
        return DONE if all(one.result for one in state.jobs if one.job.key in asked) else FAILED


def _finish(home: Path, folder: Path, study: StudyDefinition, state: StudyState, output: ResultForm) -> None:
    """Print the comparison, write the page to the study's folder, and list the failed runs."""
    from orchestrator.cli.commands.compare import comparison_document, comparison_text
    from orchestrator.cli.commands.comparing import compare_wanted, wanted_study

    wanted = wanted_study(home, study, state)
    compared = compare_wanted(wanted, None, "", False)
    if output is ResultForm.text and compared.rows:
        typer.echo(comparison_text(study.study_id, compared, Format.table), nl=False)
        sys.stdout.flush()  # building the page takes seconds
    page, why = _page(folder, wanted.folders, compared) if compared.rows else (None, "no run has numbers")
    if output is ResultForm.json:
        document = {
            **_document(study, state),
            "comparison": comparison_document(study.study_id, compared) if compared.rows else None,
            "report": page,
            "report_error": why,
        }
        typer.echo(as_json(document), nl=False)
    for one in state.failed:
        say(f"{one.job.key}: {_end_words(one)}")
    for one in state.repeat_failed:
        say(_repeat_words(one))
    if state.failed or state.unsettled:
        count = f"{len(state.failed)} failed, {len(state.unsettled)} not run"
        say(
            f"{study.study_id}: {count}, of {len(state.jobs)}; resume with `orch study run {study.study_id} --resume`"
        )
    if page is not None:
        say(f"report: {page}")
    elif compared.rows:
        say(f"no report: {why}; retry with `orch compare {study.study_id} --report FILE.html`")


def _page(folder: Path, runs: Sequence[Path], compared: Compared) -> tuple[Path | None, str]:
    """Write the page. Returns its path, or None and the reason."""
    from orchestrator.cli.commands.compare import write_page

    try:
        return write_page(runs, compared, folder / "report.html"), ""
    except Exception as error:  # noqa: BLE001 - reported; a drawing error must not fail a finished study
        return None, f"it could not be drawn ({type(error).__name__}: {error})"


def _end_words(one: JobState) -> str:
    """Describe how the last attempt of a finished job ended."""
    end = one.counted[-1].end
    assert end is not None
    return f"{end.status.replace('_', ' ')}{f': {end.error}' if end.error else ''}"


def _repeat_words(one: JobState) -> str:
    """Say which numbers a job keeps whose repeat failed."""
    assert one.result is not None
    kept = f"its numbers are those of {one.result.run_id} ({'; '.join(one.result.disturbed)})"
    return f"{one.job.key}: repeat {one.counted[-1].run_id} {_end_words(one)}; {kept}"


def _document(study: StudyDefinition, state: StudyState) -> dict[str, Any]:
    runs: list[dict[str, Any]] = []
    again = {one.job.key: _repeat_words(one) for one in state.repeat_failed}
    for one in state.jobs:
        shown = one.result or (one.attempts[-1] if one.attempts else None)
        end = shown.end if shown else None
        runs.append(
            {
                "run": one.job.key,
                "experiment": one.job.experiment,
                "label": one.job.label,
                "run_id": shown.run_id if shown else None,
                "status": end.status if end else "running" if shown else "not run",
                "attempts": len(one.counted),
                "disturbed": end.disturbed if end else [],
                "error": again.get(one.job.key, end.error if end else ""),
                "seconds": end.at_s - shown.began_s if end and shown else None,
            }
        )
    status = "failed" if state.failed else "unfinished" if state.unsettled else "done"
    head = {"schema_version": SCHEMA_VERSION, "study_id": study.study_id, "study": study.name}
    return {**head, "status": status, "runs": runs}


def _headline(home: Path, run_id: str) -> str:
    """Summarise a run in a few words, compared with the published figure."""
    from analysis.compare.published import difference
    from analysis.compare.published_runs import compared_run
    from analysis.replay import read_folder
    from metrics.store.database import StoreError
    from orchestrator.cli.render.words import number
    from orchestrator.home import run_folder

    try:
        row = compared_run(read_folder(run_folder(home, run_id)), {})
    except StoreError as error:
        return str(error)
    off, comm = difference(row, "sps"), row.emulated["comm_s"]
    words = f"{number(row.emulated['sps'])} samples/s"
    if off is not None:
        words += f" ({off:+.1%} vs. published)"
    return f"{words}, communication {number(comm)} s" if comm is not None else words
