"""The study file: which experiments run one after the other, how often, and what they are compared with.

A study is read whole before anything runs: every experiment that it names is resolved, and all that is wrong is told
at once, with the file's line.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from cloud.places import nearest
from experiments.parse import document as _document
from experiments.parse.document import Document
from experiments.parse.load import find, load_all
from experiments.parse.messages import problems_of
from experiments.parse.price_books import absolute_books
from experiments.schema import fields as f
from experiments.schema.errors import MatrixError, Problem, SpecError
from experiments.schema.models import ExperimentSpec
from experiments.study_file.baseline import COLUMNS, Column, against_problem, baseline_problems, row_problems
from experiments.study_file.expectations import Expectation, expect_problems
from experiments.study_file.limits import read_limits

STUDIES = Path(__file__).resolve().parent.parent / "studies"
_MAX_BYTES = 1_000_000
_MAX_KEY = 46  # a run's id is the key, the day, four digits and the attempt: at most 63 characters
MOST_RUNS = 500


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


def _named(value: Any) -> Any:
    """`- geo-c8` is short for `- {experiment: geo-c8}`."""
    return {"experiment": value} if isinstance(value, str) else value


class StudyEntry(_Section):
    """One experiment of a study."""

    experiment: Annotated[str, Field(min_length=1, max_length=500)] = Field(
        description="A name of the library, or FILE.yaml beside the study's file (a path is relative to it); of several "
        "experiments (`matrix:`, a family of the library) all, unless `matrix` chooses."
    )
    label: Annotated[str, f.word("([a-z0-9][a-z0-9-]{0,29})?", "a label: a-z, 0-9 and '-', at most 30")] = (
        Field(default="", description="Tells entries of one experiment apart.")
    )
    set: Annotated[dict[str, Any], Field(max_length=100)] = Field(
        default_factory=dict, description="Keys to replace, as `orch launch --set`: {swarm.batch_size: 64}."
    )
    matrix: Annotated[
        tuple[Annotated[str, Field(min_length=1, max_length=200)], ...], Field(strict=False, max_length=100)
    ] = Field(default=(), description="Which of several experiments, as `orch launch --matrix`: [n=4].")
    judged: bool | None = Field(
        default=None,
        description="Whether its runs are ranked and held against limits; left out: where the entry has no label and "
        "sets no option that the library's experiment has not.",
    )
    repeats: int | None = Field(default=None, ge=1, le=50, description="Instead of the study's.")
    against: str = Field(
        default="",
        max_length=30,
        description="The label of the entry that this one is held against, instead of `compare.baseline`.",
    )


class Accuracy(_Section):
    """Two experiments of the study whose runs should learn alike."""

    of: Annotated[str, Field(min_length=1, max_length=100)] = Field(
        description="An experiment's name; its runs' held-out accuracy is compared."
    )
    against: Annotated[str, Field(min_length=1, max_length=100)] = Field(
        description="Another one's: equal seeds, updates, target batch size and samples."
    )


class Comparison(_Section):
    """What `orch compare` lays beside the runs."""

    replay: Literal["auto", "never"] = Field(
        default="auto", description="auto: the study's own logs, where ORCH_SHARED or --logs names them."
    )
    limits: Annotated[str, Field(max_length=200)] = Field(
        default="", description="A csv of how far a figure may be from the published one; none: not judged."
    )
    baseline: Annotated[str, f.word("([a-z0-9][a-z0-9-]{0,29})?", "a label of an entry")] = Field(
        default="",
        description="A label: what the other entries gain is told against the entry of the same experiment that has it, else "
        "against the only one of the same model; none: not told.",
    )
    columns: Annotated[tuple[Column, ...], Field(strict=False, min_length=1)] = Field(
        default=COLUMNS, description="Which figures of them are shown."
    )
    expect: Annotated[tuple[Expectation, ...], Field(strict=False, max_length=200)] = Field(
        default=(),
        description="Figures of rows against other rows', each with a limit and its verdict; without one they are told.",
    )
    accuracy: Accuracy | None = Field(
        default=None,
        description="Held-out accuracy of one experiment's runs against another's; none: not compared.",
    )


class StudySpec(_Section):
    """Experiments that run one after the other and are compared."""

    name: Annotated[
        str, f.word("[a-z0-9][a-z0-9-]{0,39}", "a study's name: a-z, 0-9 and '-', at most 40")
    ] = Field(description="Its id begins with it.")
    description: f.Text = Field(default="", description="One sentence.")
    experiments: Annotated[
        tuple[Annotated[StudyEntry, BeforeValidator(_named)], ...],
        Field(strict=False, min_length=1, max_length=200),
    ] = Field(description="In the order in which they run: names, or entries with a label and `set`.")
    repeats: int = Field(default=1, ge=1, le=50, description="How often each experiment is run and counted.")
    contended_retries: int = Field(
        default=2,
        ge=0,
        le=2,
        description="A run that the host disturbed, or that lost a round, is repeated at most so often.",
    )
    wall_limit_s: Annotated[float, Field(gt=0, le=2_592_000)] | None = Field(
        default=None,
        description="A run is taken down after so long; none: three times what is expected + 180 s.",
    )
    compare: Comparison = Field(default_factory=Comparison)


@dataclass(frozen=True, slots=True)
class Member:
    """One run that a study wants: an entry's experiment, once."""

    key: str  # "geo-c8-nlp", "geo-c8-nlp-wan", "geo-c8-r2": the same in every run of the study
    label: str
    repeat: int  # from 1
    spec: ExperimentSpec
    judged: bool | None = None  # the entry's
    against: str = ""  # the entry's
    entry: int = 0  # its place in the file


@dataclass(frozen=True, slots=True)
class LoadedStudy:
    """A study file with every experiment resolved, in the order in which they run."""

    path: Path
    text: str
    spec: StudySpec
    members: tuple[Member, ...]


def load_study(path_or_name: str, overrides: Sequence[str] = ()) -> LoadedStudy:
    """Read a study; `overrides` are `--set` arguments for each of its experiments.

    Raises SpecError with all problems of it and of its experiments at once.
    """
    path = find_study(path_or_name)
    text = _read(path)
    document = _document.parse(text, str(path))
    if document.readable and not isinstance(document.data, dict):
        document.problems.append(document.problem((), "a study is a mapping of keys to values"))
        document.readable = False
    if not document.readable:
        raise SpecError(document.problems)
    try:
        spec = StudySpec.model_validate(document.data)
    except ValidationError as error:
        raise SpecError([*document.problems, *problems_of(error, document, StudySpec)]) from error
    members = _members(spec, document, path, overrides)
    if spec.compare.accuracy is not None:
        _two_of_them(spec.compare.accuracy, members, document)
    _compared_rows(spec, members, document)
    if spec.compare.limits:
        try:
            read_limits(_beside(path, spec.compare.limits))
        except ValueError as error:
            document.problems.append(document.problem(("compare", "limits"), str(error)))
    if document.problems:
        raise SpecError(sorted(document.problems, key=lambda p: (p.line is None, p.line or 0)))
    return LoadedStudy(path, text, spec, members)


def find_study(path_or_name: str) -> Path:
    """The file: as named, else with .yaml added, else one that ships with orch. Raises SpecError."""
    given = Path(path_or_name)
    bare = given.name == path_or_name
    try:
        for candidate in (given, Path(f"{path_or_name}.yaml")) if bare else (given,):
            if candidate.is_file():
                return candidate
        shipped = STUDIES / f"{path_or_name.removesuffix('.yaml')}.yaml"
        if bare and shipped.is_file():
            return shipped
    except (OSError, ValueError) as error:
        raise SpecError.of(path_or_name[:200], "cannot be looked up; name a study's file") from error
    names = studies()
    if bare and _is_experiment(path_or_name):
        said = f"is an experiment, not a study; `orch launch {path_or_name}` runs it"
        raise SpecError.of(path_or_name, said)
    near = nearest(given.name.removesuffix(".yaml"), names)
    raise SpecError.of(
        path_or_name[:200],
        f"no such study file, and none of that name ships with orch{near} ({', '.join(names)})",
    )


def studies() -> tuple[str, ...]:
    """The names of the studies that ship with orch."""
    return tuple(sorted(path.stem for path in STUDIES.glob("*.yaml")))


def study_schema() -> dict[str, Any]:
    """The JSON Schema of a study file, for editors."""
    schema = StudySpec.model_json_schema()
    experiments = schema["properties"]["experiments"]
    experiments["items"] = {"anyOf": [{"type": "string"}, experiments["items"]]}
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema, "title": "orch study"}


def _members(spec: StudySpec, document: Document, path: Path, overrides: Sequence[str]) -> tuple[Member, ...]:
    """Every entry's runs; what is wrong with an entry joins the document's problems."""
    found: list[Member] = []
    seen: dict[str, int] = {}
    for at, entry in enumerate(spec.experiments):
        try:
            experiments = _experiments(entry, path, overrides)
        except SpecError as error:
            told = _at_entry(error, document, at, entry)
            document.problems += [problem for problem in told if problem not in document.problems]
            continue
        for experiment in experiments:
            stem = "-".join(filter(None, (experiment.name, entry.label)))
            if stem in seen:
                said = f"'{stem}' stands twice, first as entry {seen[stem]}; give one a label, or use repeats"
                document.problems.append(document.problem(("experiments", at), said))
                continue
            seen[stem] = at
            repeats = entry.repeats or spec.repeats
            keys = [f"{stem}-r{n}" for n in range(1, repeats + 1)] if repeats > 1 else [stem]
            if len(keys[-1]) > _MAX_KEY:
                said = f"'{keys[-1]}' is longer than {_MAX_KEY} characters, and run ids begin with it; shorten the label"
                document.problems.append(document.problem(("experiments", at), said))
            found += [
                Member(key, entry.label, n, experiment, entry.judged, entry.against, at)
                for n, key in enumerate(keys, 1)
            ]
    doubled = sorted({m.key for m in found if sum(other.key == m.key for other in found) > 1})
    if doubled:
        said = f"two entries would both be called {', '.join(doubled)}; give one another label"
        document.problems.append(document.problem(("experiments",), said))
    if len(found) > MOST_RUNS:
        said = f"{len(found)} runs; a study has at most {MOST_RUNS}"
        document.problems.append(document.problem(("experiments",), said))
    return tuple(found)


def _two_of_them(wanted: Accuracy, members: Sequence[Member], document: Document) -> None:
    """Both names of `compare.accuracy` are experiments of this study, and not the same one."""
    names = list(dict.fromkeys(member.spec.name for member in members))
    if not names:
        return  # why there is none is told already
    for key, name in (("of", wanted.of), ("against", wanted.against)):
        if name not in names:
            near = nearest(name, names)
            said = f"no experiment of this study is called '{name}'{near} ({', '.join(names)})"
            document.problems.append(document.problem(("compare", "accuracy", key), said))
    if wanted.of == wanted.against:
        said = f"'{wanted.of}' stands on both sides; name two experiments"
        document.problems.append(document.problem(("compare", "accuracy", "against"), said))


def _compared_rows(spec: StudySpec, members: Sequence[Member], document: Document) -> None:
    """Every name by which rows are held against each other means one; rows are looked at where all could be read."""
    whole = {(m.spec.name, m.label): m for m in members} if not document.problems else {}
    rows = {key: member.spec.model for key, member in whole.items()}
    against = {key: member.against for key, member in whole.items() if member.against}
    baseline, labels = spec.compare.baseline, [entry.label for entry in spec.experiments]
    found: list[tuple[tuple[str | int, ...], str]] = [
        (("compare", key), said) for key, said in baseline_problems(baseline, spec.compare.columns, labels)
    ]
    for at, entry in enumerate(spec.experiments):
        if said := against_problem(baseline, entry.against, labels):
            found.append((("experiments", at, "against"), said))
    if baseline and not found:
        for key, said in row_problems(baseline, rows, against):
            place = ("experiments", whole[key].entry, "against") if key else ("compare", "baseline")
            found.append((place, said))
    for place, said in expect_problems(spec.compare.expect, baseline, {} if found else rows, against):
        found.append((("compare", "expect", *place), said))
    document.problems += [document.problem(place, said) for place, said in found]


def _experiments(entry: StudyEntry, study: Path, overrides: Sequence[str]) -> list[ExperimentSpec]:
    """An entry's experiments: a bare name is the library's, a file lies beside the study. Raises SpecError."""
    given, every = entry.experiment, [*_overrides(entry, study), *overrides]
    if "/" not in given and not given.endswith((".yaml", ".yml")):
        return load_all(given, every, entry.matrix, shipped=True)
    path = _beside(study, given)  # never a bare name: the library and the current folder have those
    return load_all(str(path) if path.is_absolute() else f"./{path}", every, entry.matrix)


def _is_experiment(name: str) -> bool:
    try:
        find(name)
    except SpecError:
        return False
    return True


def _beside(study: Path, name: str) -> Path:
    return study.parent / Path(name).expanduser()


def _overrides(entry: StudyEntry, study: Path) -> list[str]:
    """The entry's `set` as `--set` arguments; price books are files beside the study."""
    beside = {k: absolute_books(v, study.parent) if k == "prices" else v for k, v in entry.set.items()}
    return [f"{key}={json.dumps(value)}" for key, value in beside.items()]


def _at_entry(error: SpecError, document: Document, at: int, entry: StudyEntry) -> list[Problem]:
    """Problems of an entry's own (its name, its `set`) at its line in the study; those of a file stay there."""
    found: list[Problem] = []
    for problem in error.problems:
        if problem.file.startswith("--set "):
            key = problem.file.removeprefix("--set ").partition("=")[0]
            if key not in entry.set:  # of the command line
                found.append(problem)
                continue
            where = ("experiments", at, "set", key)
        elif problem.line is None:
            of_matrix = entry.matrix and isinstance(error, MatrixError)
            where = ("experiments", at, "matrix" if of_matrix else "experiment")
        else:
            found.append(problem)
            continue
        about = problem.path or entry.experiment[:200]
        found.append(document.problem(where, f"{about}: {problem.message}"))
    return found


def _read(path: Path) -> str:
    try:
        with path.open("rb") as file:
            content = file.read(_MAX_BYTES + 1)
        if len(content) > _MAX_BYTES:
            raise SpecError.of(str(path), f"is larger than {_MAX_BYTES // 1000} kB; no study file is")
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise SpecError.of(str(path), f"is not UTF-8 text (byte {error.start}); name a YAML file") from error
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise SpecError.of(str(path), f"cannot be read: {reason}") from error
