"""Collect what was measured of a target for the report on its input, and plan an experiment with it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from analysis.pipeline.plan import PipelinePlan, plan_pipeline
from analysis.pipeline.presto_score import Weights
from analysis.pipeline.profile_records import Profile
from analysis.report.pipeline.parts import Parts
from cloud.targets import target_of
from experiments.parse.load import from_document
from experiments.schema.errors import SpecError
from experiments.schema.models import ExperimentSpec
from metrics.run import RunNumbers
from metrics.store.database import RunStore
from orchestrator.errors import UsageError
from orchestrator.pipeline.find_measured import MAPS, TRACES, Saved, find_saved
from orchestrator.pipeline.find_profile import LATEST, find_profile, newest_profile
from orchestrator.pipeline.plan_setting import PlanSetting, check_pipeline, plan_setting
from orchestrator.pipeline.target import Target
from orchestrator.pipeline.traced_target import find_traced

Kind = Literal["pipeline", "experiment", "run"]


@dataclass(frozen=True, slots=True)
class Asked:
    """What the report is to be made from. `trace`, `map` and `profile` are files, folders or `latest`."""

    target: str
    overrides: Sequence[str] = ()
    pipeline: str = ""  # whose measurements are taken; "": the target's own
    trace: str = LATEST
    map: str = LATEST
    profile: str = LATEST
    passes: Sequence[int] = (1, 30)
    prices: str = ""
    rented: bool = False
    sps_per_peer: float | None = None
    samples: int | None = None


@dataclass(frozen=True, slots=True)
class Planned:
    """The options of an experiment, from a profile."""

    spec: ExperimentSpec
    setting: PlanSetting
    plan: PipelinePlan


@dataclass(frozen=True, slots=True)
class Collected:
    """The parts but for the plan's words, and the files they are from by name of the part."""

    kind: Kind
    parts: Parts
    planned: Planned | None
    files: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class _Subject:
    kind: Kind
    name: str
    spec: ExperimentSpec | None
    rented: bool
    folder: Path | None = None  # of a run


def collect(asked: Asked, home: Path, say: Callable[[str], None]) -> Collected:
    """Find the newest trace, map and profile of the target, and plan its experiment.

    Of measurements of different pipelines, the newest decides and the others are left out with a warning. Raises
    UsageError if nothing was measured or a file that was named is not of this pipeline, SpecError, StoreError,
    PriceBookError.
    """
    subject = _subject(asked, say)
    wanted = asked.pipeline or subject.name
    files: dict[str, str] = {}
    warnings: list[str] = []
    documents: dict[str, Mapping[str, Any]] = {}
    run: RunNumbers | None = None
    if subject.folder is not None:
        with RunStore.open_reader(subject.folder / "run.db") as store:
            run = RunNumbers.of(store)
        if run.input is None:
            run = None
        elif asked.trace != LATEST:
            raise UsageError(f"--trace: {subject.folder.name} has a trace of its own; leave the option out")
        else:
            files["trace"] = str(subject.folder / "run.db")
    searched: tuple[tuple[Saved, str], ...] = ((TRACES, asked.trace), (MAPS, asked.map))
    for saved, name in searched:
        if saved is TRACES and run is not None:
            continue
        if (found := find_saved(saved, name, home, wanted, say)) is not None:
            documents[saved.command], files[saved.command] = found[0], str(found[1])
    profile: Profile | None = None
    if asked.profile != LATEST:
        read = find_profile(asked.profile, home, wanted, "", say)
    else:
        read = newest_profile(home, wanted, say, of_pipeline=True)
    if read is not None:
        profile, files["profile"] = read[0], str(read[1])
    of = {part: (one["target"], one["pipeline"]) for part, one in documents.items()}
    if profile is not None:
        of["profile"] = profile.target, profile.pipeline
    for part, names in of.items():
        if wanted not in names:
            raise UsageError(
                f"{files[part]}: it is of {names[0]}, not of {wanted}; name another file, or add --pipeline {names[0]}"
            )
    if run is not None and of:
        warnings.append(
            f"Whether the run had the pipeline of the {' and the '.join(of)} is not known: a run keeps no fingerprint of it."
        )
    named = {"trace": asked.trace, "map": asked.map, "profile": asked.profile}
    ages = {part: (str(one["measured_at"]), str(one["fingerprint"])) for part, one in documents.items()}
    if profile is not None:
        ages["profile"] = profile.measured_at, profile.fingerprint
    chosen = {part for part in ages if named[part] != LATEST}
    for part, reason in other_pipelines(ages, chosen).items():
        if part in chosen:
            raise UsageError(f"{files[part]}: {reason}; name others, or measure again")
        warnings.append(f"Left out: {files.pop(part)}: {reason}.")
        if part == "profile":
            profile = None
        else:
            del documents[part]
    if run is None and not documents and profile is None:
        raise UsageError(
            f"nothing was measured of the input of {wanted}; run `orch pipeline trace {wanted}`, `orch pipeline map {wanted}` or "
            f"`orch pipeline profile {wanted}`, or name a pipeline that was measured with --pipeline"
        )
    missing = [
        f"The {part}: `orch pipeline {part} {wanted}` measures {what}."
        for part, what in (
            ("trace", "time by operation and batch"),
            ("map", "native functions of each operation"),
            ("profile", "what each strategy delivers and stores"),
        )
        if part not in files
    ]
    planned = "Dollars: they follow from a profile." if profile is None else _planned(asked, subject, profile)
    if isinstance(planned, str):
        missing.append(planned)
        planned = None
    return Collected(
        subject.kind,
        Parts(
            subject.name if subject.folder is None else subject.folder.name,
            trace=documents.get("trace"),
            run=run,
            map=documents.get("map"),
            profile=profile,
            missing=tuple(missing),
            warnings=tuple(warnings),
        ),
        planned,
        files,
    )


def other_pipelines(measured: Mapping[str, tuple[str, str]], chosen: Collection[str] = ()) -> dict[str, str]:
    """The parts that are of another pipeline than the newest of those that the user has `chosen`, or of all if none was.

    `measured`: time (ISO 8601) and fingerprint by part. Returns the reason by part.
    """
    if not measured:
        return {}
    newest = max(chosen or measured, key=lambda part: measured[part][0])
    _, fingerprint = measured[newest]
    return {
        part: f"its pipeline, {own[:12]}, is not that of the {newest}, {fingerprint[:12]}"
        for part, (_, own) in measured.items()
        if own != fingerprint
    }


def _subject(asked: Asked, say: Callable[[str], None]) -> _Subject:
    found = find_traced(asked.target, asked.overrides)
    if isinstance(found, Target):
        if found.spec is None:
            return _Subject("pipeline", found.name, None, asked.rented)
        return _Subject("experiment", found.spec.name, found.spec, asked.rented)
    if asked.overrides:
        raise UsageError(f"--set: {found.name} is a run, which has its settings; leave the option out")
    with RunStore.open_reader(found / "run.db") as store:
        meta = store.run_meta()
    rented = target_of(meta.target).rents
    try:
        spec = from_document(meta.document)
    except SpecError as error:
        say(f"{found.name}: its experiment cannot be read ({error}), so no dollars are planned")
        name = meta.experiment if isinstance(meta.experiment, str) else found.name
        return _Subject("run", name, None, rented, found)
    return _Subject("run", spec.name, spec, rented, found)


def _planned(asked: Asked, subject: _Subject, profile: Profile) -> Planned | str:
    """The plan, or why there is none."""
    spec = subject.spec
    if spec is None:
        return (
            f"Dollars: a plan needs an experiment's peers and store; `orch pipeline report EXPERIMENT --pipeline {subject.name}` "
            "has them."
        )
    try:
        check_pipeline(profile, spec, asked.pipeline, also="")
        setting = plan_setting(
            spec,
            profile,
            prices=asked.prices,
            rented=subject.rented,
            sps_per_peer=asked.sps_per_peer,
            samples=asked.samples,
        )
        plan = plan_pipeline(profile, setting.setting, asked.passes, Weights.parse("1,1,1"))
    except (UsageError, ValueError) as error:
        return f"Dollars: {error}."
    return Planned(spec, setting, plan)
