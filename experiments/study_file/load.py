"""The study file: experiments that run one after the other, how often, and what they are compared with.

A study is validated as a whole before anything runs: every experiment that it names is resolved, and all problems are
reported at once, with their line.
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
_MAX_KEY = 46  # a run id is the key, the date, four digits and the attempt: at most 63 characters
MAX_RUNS = 500


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


def _named(value: Any) -> Any:
    """Expand the short form `- geo-c8` to `- {experiment: geo-c8}`."""
    return {"experiment": value} if isinstance(value, str) else value


class StudyEntry(_Section):
    """One experiment of a study."""

    experiment: Annotated[str, Field(min_length=1, max_length=500)] = Field(
        description="Name of an experiment of the library, or FILE.yaml, relative to the study's file. If it stands for "
        "several experiments (`matrix:`, a family of the library), all of them, unless `matrix` selects some."
    )
    label: Annotated[str, f.word("([a-z0-9][a-z0-9-]{0,29})?", "a label: a-z, 0-9 and '-', at most 30")] = (
        Field(default="", description="Distinguishes entries of the same experiment.")
    )
    set: Annotated[dict[str, Any], Field(max_length=100)] = Field(
        default_factory=dict,
        description="Values to override, as with `orch launch --set`: {swarm.batch_size: 64}.",
    )
    matrix: Annotated[
        tuple[Annotated[str, Field(min_length=1, max_length=200)], ...], Field(strict=False, max_length=100)
    ] = Field(
        default=(),
        description="Experiments to select if there are several, as with `orch launch --matrix`: [n=4].",
    )
    judged: bool | None = Field(
        default=None,
        description="Whether its runs are ranked and checked against the limits. Default: yes if the entry has no label and "
        "sets no option that differs from the library's experiment.",
    )
    repeats: int | None = Field(
        default=None, ge=1, le=50, description="Number of repeats, instead of the study's."
    )
    against: str = Field(
        default="",
        max_length=30,
        description="Label of the entry that this one is compared with, instead of `compare.baseline`.",
    )


class HeldOut(_Section):
    """Two experiments of the study that should reach the same held-out figure."""

    figure: Annotated[str, Field(min_length=1, max_length=40)] = Field(
        default="accuracy",
        description="Name of a figure on held-out samples that the task's evaluation gives.",
    )
    of: Annotated[str, Field(min_length=1, max_length=100)] = Field(
        description="Name of the experiment whose held-out figure is compared."
    )
    against: Annotated[str, Field(min_length=1, max_length=100)] = Field(
        description="Name of the other experiment, with equal seeds, updates, target batch size and samples."
    )


class Comparison(_Section):
    """What `orch compare` compares the runs with."""

    replay: Literal["auto", "never"] = Field(
        default="auto", description="auto: also the paper's logs, if ORCH_SHARED or --logs names them."
    )
    limits: Annotated[str, Field(max_length=200)] = Field(
        default="",
        description="CSV file of accepted differences from the published figures. Default: nothing is judged.",
    )
    baseline: Annotated[str, f.word("([a-z0-9][a-z0-9-]{0,29})?", "a label of an entry")] = Field(
        default="",
        description="Label of the entry that the others are compared with: the one of the same experiment, otherwise the "
        "only one of the same model. Default: no gains are reported.",
    )
    columns: Annotated[tuple[Column, ...], Field(strict=False, min_length=1)] = Field(
        default=COLUMNS, description="Figures in the table of gains."
    )
    expect: Annotated[tuple[Expectation, ...], Field(strict=False, max_length=200)] = Field(
        default=(),
        description="Figures of rows to compare with those of other rows, with a limit and a verdict. Without a limit they "
        "are only reported.",
    )
    held_out: HeldOut | None = Field(
        default=None,
        description="Two experiments of which a held-out figure is compared. Default: no comparison.",
    )


class StudySpec(_Section):
    """Experiments that run one after the other and are compared."""

    name: Annotated[
        str, f.word("[a-z0-9][a-z0-9-]{0,39}", "a study's name: a-z, 0-9 and '-', at most 40")
    ] = Field(description="Name of the study. Its id begins with it.")
    description: f.Text = Field(default="", description="One sentence.")
    experiments: Annotated[
        tuple[Annotated[StudyEntry, BeforeValidator(_named)], ...],
        Field(strict=False, min_length=1, max_length=200),
    ] = Field(
        description="Experiments in the order in which they run: names, or entries with a label and `set`."
    )
    repeats: int = Field(default=1, ge=1, le=50, description="How often each experiment is run.")
    contended_retries: int = Field(
        default=2,
        ge=0,
        le=2,
        description="Maximum number of repetitions of a run on a host that was too busy, or that lost a round.",
    )
    wall_limit_s: Annotated[float, Field(gt=0, le=2_592_000)] | None = Field(
        default=None,
        description="Timeout of a run in seconds. Default: three times the expected duration + 180 s.",
    )
    compare: Comparison = Field(default_factory=Comparison)


@dataclass(frozen=True, slots=True)
class Member:
    """One run of a study: one repeat of an entry's experiment."""

    key: str  # "geo-c8-nlp", "geo-c8-nlp-wan", "geo-c8-r2": the same each time the study is run
    label: str
    repeat: int  # from 1
    spec: ExperimentSpec
    judged: bool | None = None  # of the entry
    against: str = ""  # of the entry
    entry: int = 0  # index in the file


@dataclass(frozen=True, slots=True)
class LoadedStudy:
    """A study file with every experiment resolved, in the order in which they run."""

    path: Path
    text: str
    spec: StudySpec
    members: tuple[Member, ...]


def load_study(path_or_name: str, overrides: Sequence[str] = ()) -> LoadedStudy:
    """Read a study. `overrides`: `--set` arguments that apply to all its experiments.

    Raises SpecError with all problems of the study and its experiments.
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
    if spec.compare.held_out is not None:
        _check_held_out(spec.compare.held_out, members, document)
    _check_compared_rows(spec, members, document)
    if spec.compare.limits:
        try:
            read_limits(_relative(path, spec.compare.limits))
        except ValueError as error:
            document.problems.append(document.problem(("compare", "limits"), str(error)))
    if document.problems:
        raise SpecError(sorted(document.problems, key=lambda p: (p.line is None, p.line or 0)))
    return LoadedStudy(path, text, spec, members)


def find_study(path_or_name: str) -> Path:
    """Find the file: as named, with .yaml added, or among those that ship with orch. Raises SpecError."""
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
        raise SpecError.of(path_or_name[:200], "cannot be looked up; name a study file") from error
    names = studies()
    if bare and _is_experiment(path_or_name):
        message = f"is an experiment, not a study; `orch launch {path_or_name}` runs it"
        raise SpecError.of(path_or_name, message)
    near = nearest(given.name.removesuffix(".yaml"), names)
    raise SpecError.of(
        path_or_name[:200],
        f"no such study file, and no study of this name ships with orch{near} ({', '.join(names)})",
    )


def studies() -> tuple[str, ...]:
    """Return the names of the studies that ship with orch."""
    return tuple(sorted(path.stem for path in STUDIES.glob("*.yaml")))


def study_schema() -> dict[str, Any]:
    """Return the JSON Schema of a study file, for editors."""
    schema = StudySpec.model_json_schema()
    experiments = schema["properties"]["experiments"]
    experiments["items"] = {"anyOf": [{"type": "string"}, experiments["items"]]}
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema, "title": "orch study"}


def _members(spec: StudySpec, document: Document, path: Path, overrides: Sequence[str]) -> tuple[Member, ...]:
    """Return the runs of all entries. Problems of entries are added to those of the document."""
    found: list[Member] = []
    seen: dict[str, int] = {}
    for at, entry in enumerate(spec.experiments):
        try:
            experiments = _experiments(entry, path, overrides)
        except SpecError as error:
            problems = _at_entry(error, document, at, entry)
            document.problems += [problem for problem in problems if problem not in document.problems]
            continue
        for experiment in experiments:
            stem = "-".join(filter(None, (experiment.name, entry.label)))
            if stem in seen:
                message = f"'{stem}' is a duplicate of entry {seen[stem]}; give one a label, or use repeats"
                document.problems.append(document.problem(("experiments", at), message))
                continue
            seen[stem] = at
            repeats = entry.repeats or spec.repeats
            keys = [f"{stem}-r{n}" for n in range(1, repeats + 1)] if repeats > 1 else [stem]
            if len(keys[-1]) > _MAX_KEY:
                message = f"'{keys[-1]}' is longer than {_MAX_KEY} characters, and run ids begin with it; shorten the label"
                document.problems.append(document.problem(("experiments", at), message))
            found += [
                Member(key, entry.label, n, experiment, entry.judged, entry.against, at)
                for n, key in enumerate(keys, 1)
            ]
    duplicates = sorted({m.key for m in found if sum(other.key == m.key for other in found) > 1})
    if duplicates:
        message = f"two entries would both be called {', '.join(duplicates)}; give one another label"
        document.problems.append(document.problem(("experiments",), message))
    if len(found) > MAX_RUNS:
        message = f"{len(found)} runs; a study has at most {MAX_RUNS}"
        document.problems.append(document.problem(("experiments",), message))
    return tuple(found)


def _check_held_out(held_out: HeldOut, members: Sequence[Member], document: Document) -> None:
    """Check that `compare.held_out` names two different experiments of this study."""
    names = list(dict.fromkeys(member.spec.name for member in members))
    if not names:
        return  # the reason has been reported already
    for key, name in (("of", held_out.of), ("against", held_out.against)):
        if name not in names:
            message = f"this study has no experiment '{name}'{nearest(name, names)} ({', '.join(names)})"
            document.problems.append(document.problem(("compare", "held_out", key), message))
    if held_out.of == held_out.against:
        message = f"'{held_out.of}' would be compared with itself; name two experiments"
        document.problems.append(document.problem(("compare", "held_out", "against"), message))


def _check_compared_rows(spec: StudySpec, members: Sequence[Member], document: Document) -> None:
    """Check that every name of a row to compare with refers to one row.

    Rows are only checked if all experiments could be read.
    """
    by_row = {(m.spec.name, m.label): m for m in members} if not document.problems else {}
    rows = {key: member.spec.trains for key, member in by_row.items()}
    against = {key: member.against for key, member in by_row.items() if member.against}
    baseline, labels = spec.compare.baseline, [entry.label for entry in spec.experiments]
    found: list[tuple[tuple[str | int, ...], str]] = [
        (("compare", key), message)
        for key, message in baseline_problems(baseline, spec.compare.columns, labels)
    ]
    for at, entry in enumerate(spec.experiments):
        if message := against_problem(baseline, entry.against, labels):
            found.append((("experiments", at, "against"), message))
    if baseline and not found:
        for key, message in row_problems(baseline, rows, against):
            place = ("experiments", by_row[key].entry, "against") if key else ("compare", "baseline")
            found.append((place, message))
    for place, message in expect_problems(spec.compare.expect, baseline, {} if found else rows, against):
        found.append((("compare", "expect", *place), message))
    document.problems += [document.problem(place, message) for place, message in found]


def _experiments(entry: StudyEntry, study: Path, overrides: Sequence[str]) -> list[ExperimentSpec]:
    """Load an entry's experiments: a bare name from the library, a file relative to the study. Raises SpecError."""
    given, every = entry.experiment, [*_overrides(entry, study), *overrides]
    if "/" not in given and not given.endswith((".yaml", ".yml")):
        return load_all(given, every, entry.matrix, shipped=True)
    path = _relative(
        study, given
    )  # with "./", because a bare name would mean the library or the current folder
    return load_all(str(path) if path.is_absolute() else f"./{path}", every, entry.matrix)


def _is_experiment(name: str) -> bool:
    try:
        find(name)
    except SpecError:
        return False
    return True


def _relative(study: Path, name: str) -> Path:
    return study.parent / Path(name).expanduser()


def _overrides(entry: StudyEntry, study: Path) -> list[str]:
    """The entry's `set` as `--set` arguments; price books are files beside the study."""
    beside = {k: absolute_books(v, study.parent) if k == "prices" else v for k, v in entry.set.items()}
    return [f"{key}={json.dumps(value)}" for key, value in beside.items()]


def _at_entry(error: SpecError, document: Document, at: int, entry: StudyEntry) -> list[Problem]:
    """Move problems of an entry itself (its name, its `set`) to its line in the study; those of its file stay there."""
    found: list[Problem] = []
    for problem in error.problems:
        if problem.file.startswith("--set "):
            key = problem.file.removeprefix("--set ").partition("=")[0]
            if key not in entry.set:  # from the command line
                found.append(problem)
                continue
            where = ("experiments", at, "set", key)
        elif problem.line is None:
            in_matrix = entry.matrix and isinstance(error, MatrixError)
            where = ("experiments", at, "matrix" if in_matrix else "experiment")
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
            raise SpecError.of(
                str(path), f"is larger than {_MAX_BYTES // 1000} kB, the maximum for study files"
            )
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise SpecError.of(str(path), f"is not UTF-8 text (byte {error.start}); name a YAML file") from error
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise SpecError.of(str(path), f"cannot be read: {reason}") from error
