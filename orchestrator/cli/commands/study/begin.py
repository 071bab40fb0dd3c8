"""Begin a study: show its plan, ask for confirmation, create its folder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from random import SystemRandom
from typing import TYPE_CHECKING

import typer

from cloud.targets import TARGETS
from orchestrator.cli.choosing import Where
from orchestrator.cli.commands.launch import ResultForm
from orchestrator.cli.render.output import as_json
from orchestrator.cli.render.terminal import confirm, say
from orchestrator.errors import UsageError
from orchestrator.study.core import Job, named_jobs

if TYPE_CHECKING:
    from experiments.study_file.load import LoadedStudy, Member

_LIMIT_FACTOR, _LIMIT_EXTRA_S, _LIMIT_EXTRA_RENTED_S = 3.0, 180.0, 3600.0


def begin_study(
    home: Path,
    study: str,
    overrides: Sequence[str],
    only: Sequence[str],
    on: Where,
    yes: bool,
    dry_run: bool,
    tolerance: float,
    output: ResultForm,
) -> Path | None:
    """Create a study after confirmation and return its folder; None after a dry run."""
    from experiments.parse.load import to_document
    from experiments.study_file.load import load_study
    from orchestrator.cli.render.study_plan import plan_document, study_plan_lines, study_question
    from orchestrator.cli.starting import plan_for

    loaded = load_study(study, overrides)
    members = _chosen(loaded, only)
    planned = {m.key: plan_for(m.spec, on.value, Decimal(str(tolerance))) for m in members}
    plans = {key: plan.document for key, plan in planned.items()}
    document = plan_document(loaded.spec.name, on.value, plans, loaded.spec.contended_retries)
    lines = study_plan_lines(document)
    if dry_run:
        typer.echo(as_json(document) if output is ResultForm.json else "\n".join(lines) + "\n", nl=False)
        say("dry run: nothing was contacted or rented")
        return None
    from orchestrator.home import new_run_id
    from orchestrator.launch.default_checkpoints import with_writable_checkpoints
    from orchestrator.launch.preflight import preflight
    from orchestrator.study.definition import StudyDefinition, create_study

    for line in lines:
        say(line)
    named = loaded.spec.compare.limits
    limits = loaded.path.parent / named if named else None
    jobs = tuple(
        Job(
            m.key, m.spec.name, m.label, plans[m.key]["raw_duration_s"],
            _limit_s(loaded, m.key, plans[m.key]["raw_duration_s"], on), m.judged, m.against,
        )
        for m in members
    )  # fmt: skip
    _refuse_while_running(home, loaded.spec.name)
    part = len(members) < len(loaded.members)
    if part:
        say(
            f"this study has {len(members)} of the {len(loaded.members)} runs of {loaded.spec.name}; refer to it by its id, "
            "because the name alone selects the newest study with all runs, if there is one"
        )
    for m in members:
        preflight(planned[m.key], home)
        for warning in with_writable_checkpoints(planned[m.key]).warnings:
            say(f"warning: {m.key}: {warning}")
    confirm(
        study_question(document),
        yes=yes,
        refusal=f"{loaded.spec.name} was not started: there is no terminal to ask for confirmation; add --yes",
    )
    now = datetime.now(UTC)
    definition = StudyDefinition(
        study_id=new_run_id(loaded.spec.name, now, SystemRandom()),
        name=loaded.spec.name,
        on=on.value,
        retries=loaded.spec.contended_retries if TARGETS[on].on_this_host else 0,
        jobs=jobs,
        documents={key: to_document(plan.spec) for key, plan in planned.items()},
        plans=plans,
        compare={
            "replay": loaded.spec.compare.replay,
            "limits": "limits.csv" if limits else "",
            "held_out": loaded.spec.compare.held_out and loaded.spec.compare.held_out.model_dump(),
            "baseline": loaded.spec.compare.baseline,
            "columns": list(loaded.spec.compare.columns),
            "expect": [one.model_dump(exclude_defaults=True) for one in loaded.spec.compare.expect],
        },
        created_s=now.timestamp(),
        part=part,
    )
    return create_study(home, definition, loaded.text, limits.read_text(encoding="utf-8") if limits else "")


def named_by(only: Sequence[str], names: Mapping[str, Sequence[str]]) -> tuple[str, ...]:
    """Wrap `orchestrator.study.core.named_jobs`. Raises UsageError for a pattern that matches nothing."""
    try:
        return named_jobs(names, only)
    except ValueError as error:
        raise UsageError(str(error)) from error


def _chosen(loaded: LoadedStudy, only: Sequence[str]) -> list[Member]:
    keys = named_by(only, {m.key: (m.key, m.spec.name, m.label) for m in loaded.members})
    return [m for m in loaded.members if m.key in keys]


def _limit_s(loaded: LoadedStudy, key: str, planned_s: float | None, on: Where) -> float:
    """Return the wall-clock limit of one attempt."""
    if loaded.spec.wall_limit_s is not None:
        return loaded.spec.wall_limit_s
    if planned_s is None:
        raise UsageError(
            f"{loaded.path}: the duration of {key} is unknown; set 'wall_limit_s' in the study, the time after which a run "
            "is torn down"
        )
    return _LIMIT_FACTOR * planned_s + (_LIMIT_EXTRA_RENTED_S if TARGETS[on].rents else _LIMIT_EXTRA_S)


def _refuse_while_running(home: Path, name: str) -> None:
    """Raise HeldError if a study of this name is being run, UsageError if one of its runs is in progress.

    An unfinished study of this name is pointed out, since it could be resumed instead.
    """
    from orchestrator.controller.actor import controller_alive
    from orchestrator.home import run_folder
    from orchestrator.study.definition import hold_study, list_studies, read_state, read_study

    unfinished: list[str] = []
    for folder in list_studies(home, name):
        with hold_study(folder):
            state = read_state(folder, read_study(folder))
        going = next((one.open.run_id for one in state.jobs if one.open is not None), None)
        if going and controller_alive(run_folder(home, going)):
            raise UsageError(
                f"{folder.name}: its run {going} is still in progress; resume that study with --resume, or tear the run "
                f"down with `orch down {going}`"
            )
        if state.unsettled:
            unfinished.append(f"{folder.name} has {len(state.unsettled)} of {len(state.jobs)} runs left")
    if unfinished:
        more = f" ({len(unfinished) - 1} more in `orch study ls`)" if len(unfinished) > 1 else ""
        known = unfinished[0].partition(" ")[0]
        say(f"{unfinished[0]}: resume it with `orch study run {known} --resume`{more}; this is a new study")
