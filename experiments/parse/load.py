"""Load an experiment from a file or from the library, or report all its problems.

A file with a `matrix:` contains several experiments. In the library, each can also be loaded by its own name.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Annotated, Any

import yaml
from pydantic import TypeAdapter, ValidationError

from cloud.places import nearest
from experiments.parse import document as _document
from experiments.parse import overrides as _overrides
from experiments.parse.checks import Parts, cross_problems
from experiments.parse.document import Document
from experiments.parse.matrix import Variant, choose, expand, is_matrix, several_words
from experiments.parse.matrix_schema import with_matrix
from experiments.parse.messages import problems_of, wrong_paths
from experiments.parse.price_books import find_price_books
from experiments.parse.task_files import find_task_files
from experiments.parse.tracking_folders import find_tracking_folders
from experiments.schema.errors import MatrixError, Problem, SpecError
from experiments.schema.models import ExperimentSpec, PeerGroup

_LIBRARY = Path(__file__).resolve().parent.parent / "library"
_MAX_BYTES = 1_000_000


@dataclass(frozen=True, slots=True)
class LibraryEntry:
    """One experiment that ships with orch."""

    name: str
    description: str
    model: str
    peers: int
    path: Path


def load(
    path_or_name: str,
    overrides: Sequence[str] = (),
    matrix: Sequence[str] = (),
    *,
    shipped: bool = False,
) -> ExperimentSpec:
    """Read one experiment. `overrides`: arguments of `--set`. `matrix`: arguments of `--matrix`.

    `shipped`: look up names in the library only, not in the current folder. Raises SpecError with all problems, or if
    several experiments match.
    """
    variants = _variants(path_or_name, matrix, shipped)
    if len(variants) > 1:
        raise SpecError.of(str(find(path_or_name)), several_words(variants))
    return _overridden(variants[0], overrides)


def load_all(
    path_or_name: str,
    overrides: Sequence[str] = (),
    matrix: Sequence[str] = (),
    *,
    shipped: bool = False,
) -> list[ExperimentSpec]:
    """Read all experiments of a file, in its order. Arguments as for `load`.

    Raises SpecError. A problem of only some experiments names them.
    """
    specs: list[ExperimentSpec] = []
    found: dict[Problem, list[str]] = {}
    variants = _variants(path_or_name, matrix, shipped)
    for variant in variants:
        try:
            specs.append(_overridden(variant, overrides))
        except SpecError as error:
            for problem in error.problems:
                found.setdefault(problem, []).append(variant.name or variant.words)
    if found:
        raise SpecError(_in_order([p if len(w) == len(variants) else _where(p, w) for p, w in found.items()]))
    return specs


def source(path_or_name: str, spec: ExperimentSpec) -> bytes:
    """Return the experiment's file, to be stored with its run. For an experiment of a matrix, a file for it alone."""
    path = find(path_or_name)
    if not is_matrix(_document.parse(_read(path), str(path))):
        return path.read_bytes()
    return yaml.safe_dump(to_document(spec), sort_keys=False, allow_unicode=True).encode()


def find(path_or_name: str, *, shipped: bool = False) -> Path:
    """Find the file: as named, with .yaml added, or in the library. `shipped`: in the library only. Raises SpecError."""
    given = Path(path_or_name)
    bare = given.name == path_or_name
    here = (given, Path(f"{path_or_name}.yaml")) if bare else (given,)
    try:
        for candidate in () if shipped else here:
            if candidate.is_file() or (candidate.exists() and not candidate.is_dir()):
                return candidate
        if bare:
            in_library = _LIBRARY / f"{path_or_name.removesuffix('.yaml')}.yaml"
            if in_library.is_file():
                return in_library
            if path_or_name in _families():
                return _families()[path_or_name]
        if not shipped and given.is_dir():
            raise SpecError.of(path_or_name, "is a folder; name an experiment file in it")
    except (OSError, ValueError) as error:
        raise SpecError.of(path_or_name[:200], f"cannot be looked up: {_reason(error)}") from error
    names = [*_library_names(), *_families()]
    near = nearest(given.name.removesuffix(".yaml"), names)
    none = (
        "the library has none of that name"
        if shipped
        else "no such file, and the library has none of that name"
    )
    raise SpecError.of(path_or_name[:200], f"{none}{near}; `orch experiments` lists the library")


def library() -> list[LibraryEntry]:
    """Return the experiments that ship with orch, by name."""
    return [
        LibraryEntry(spec.name, spec.description, spec.trains, spec.peer_count, path)
        for path in (_LIBRARY / f"{name}.yaml" for name in _library_names())
        for spec in load_all(str(path))
    ]


def to_document(spec: ExperimentSpec) -> dict[str, Any]:
    """Convert to the resolved document in JSON types, defaults included. It contains no secrets."""
    return spec.model_dump(mode="json", by_alias=True)


def from_document(document: dict[str, Any]) -> ExperimentSpec:
    """Convert from a resolved document. Raises SpecError."""
    return _resolve(Document("document", data=document))


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema of an experiment file, for editors."""
    schema = ExperimentSpec.model_json_schema()
    schema = {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema, "title": "orch experiment"}
    return with_matrix(schema)


def _variants(path_or_name: str, requested: Sequence[str], shipped: bool) -> list[Variant]:
    """Return the requested experiments of a file, selected by name or by `--matrix` arguments."""
    path = find(path_or_name, shipped=shipped)
    document = _document.parse(_read(path), str(path))
    if not document.readable or not isinstance(document.data, dict):
        _resolve(document)  # raises, because the file contains no experiment
    several = is_matrix(document)
    variants = expand(document)
    if document.problems and several:
        raise SpecError(_in_order(document.problems))
    if not several:
        if requested:
            raise MatrixError.of(str(path), "has no 'matrix:'; leave --matrix out")
        return variants
    if path_or_name in {v.name for v in variants} and (shipped or not Path(path_or_name).exists()):
        requested = (path_or_name, *requested)
    left, problem = choose(variants, requested)
    if problem or not left:
        raise MatrixError.of(str(path), f"--matrix: {problem or 'no combination matches all arguments'}")
    return left


def _overridden(variant: Variant, overrides: Sequence[str]) -> ExperimentSpec:
    for override in overrides:
        _overrides.apply(variant.document, override)
    find_price_books(variant.document)
    find_task_files(variant.document)
    find_tracking_folders(variant.document)
    return _resolve(variant.document)


def _where(problem: Problem, names: Sequence[str]) -> Problem:
    some = ", ".join(names[:4]) + (", ..." if len(names) > 4 else "")
    return replace(problem, message=f"{problem.message} (in {some})")


@cache
def _families() -> dict[str, Path]:
    """Return the names of the experiments in the library's matrix files, with their files."""
    found: dict[str, Path] = {}
    for name in _library_names():
        path = _LIBRARY / f"{name}.yaml"
        text = _read(path)
        if "\nmatrix:" in text:  # other files are found by file name
            found |= {v.name: path for v in expand(_document.parse(text, str(path)))}
    return found


def _library_names() -> list[str]:
    return sorted(path.stem for path in _LIBRARY.glob("*.yaml"))


def _read(path: Path) -> str:
    try:
        if not path.is_file():
            raise SpecError.of(str(path), "is not a plain file; name a YAML file")
        with path.open("rb") as file:
            content = file.read(_MAX_BYTES + 1)
    except OSError as error:
        raise SpecError.of(str(path), f"cannot be read: {_reason(error)}") from error
    if len(content) > _MAX_BYTES:
        raise SpecError.of(
            str(path), f"is larger than {_MAX_BYTES // 1000} kB, the maximum for experiment files"
        )
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise SpecError.of(str(path), f"is not UTF-8 text (byte {error.start}); name a YAML file") from error
    if "\0" in text:
        raise SpecError.of(str(path), "is binary, not text; name a YAML file")
    return text


def _reason(error: Exception) -> str:
    return (getattr(error, "strerror", None) or str(error)).lower()


def _resolve(document: Document) -> ExperimentSpec:
    if document.readable and not isinstance(document.data, dict):
        message = "an experiment is a mapping of keys to values; see `orch show geo-b2` for one"
        document.problems.append(document.problem((), message))
        document.readable = False
    if not document.readable:
        raise SpecError(document.problems)
    spec: ExperimentSpec | None = None
    try:
        spec = ExperimentSpec.model_validate(document.data)
        parts, bad = Parts.of(spec), frozenset[_document.Path]()
    except ValidationError as error:
        known = {problem.path for problem in document.problems}
        document.problems += [p for p in problems_of(error, document, ExperimentSpec) if p.path not in known]
        bad = wrong_paths(error)
        parts = _sound_parts(document.data, bad)
    document.problems += [
        document.problem(p, message) for p, message in cross_problems(parts) if p not in bad
    ]
    if spec is None or document.problems:
        raise SpecError(_in_order(document.problems))
    return spec


def _sound_parts(data: dict[str, Any], bad: frozenset[_document.Path]) -> Parts:
    """Validate each part without its bad values, so that defaults apply. None for parts that are still invalid."""
    clean = _without(data, (), bad)

    def part(key: str) -> Any:
        info = ExperimentSpec.model_fields[key]
        if key not in clean:
            return (
                None if info.is_required() or (key,) in bad else info.get_default(call_default_factory=True)
            )
        adapter: TypeAdapter[Any] = _adapter(key)
        try:
            return adapter.validate_python(clean[key])
        except ValidationError:
            return None

    groups = clean.get("peers")
    peers: list[PeerGroup | None] = []
    names: list[str | None] = []
    for group in groups if isinstance(groups, list) else [None]:
        name = group.get("name") if isinstance(group, dict) else None
        names.append(name if isinstance(name, str) else None)
        try:
            peers.append(PeerGroup.model_validate(group))
        except ValidationError:
            peers.append(None)
    envs = tuple(part("envs") or ())
    return Parts(
        model=part("model"),
        task=part("task"),
        train=part("train"),
        given=frozenset(key for key in Parts.GIVEN if data.get(key)),
        data=part("data"),
        swarm=part("swarm"),
        names=tuple(names),
        peers=tuple(peers),
        emulation=part("emulation"),
        envs=envs,
        measure=part("measure"),
        min_peers=part("min_peers"),
        network_tuning=part("network_tuning"),
        bad=bad,
        checkpoint=part("checkpoint"),
    )


def _adapter(key: str) -> TypeAdapter[Any]:
    info = ExperimentSpec.model_fields[key]
    annotation: Any = info.annotation
    for extra in info.metadata:
        annotation = Annotated[annotation, extra]
    return TypeAdapter(annotation)


def _without(value: Any, path: _document.Path, bad: frozenset[_document.Path]) -> Any:
    """Remove the values at the bad paths. Entries of lists become None, so that indices do not change."""
    if isinstance(value, dict):
        return {k: _without(v, (*path, k), bad) for k, v in value.items() if (*path, k) not in bad}
    if isinstance(value, list):
        return [None if (*path, i) in bad else _without(v, (*path, i), bad) for i, v in enumerate(value)]
    return value


def _in_order(problems: list[Problem]) -> list[Problem]:
    return sorted(problems, key=lambda p: (p.line is None, p.line or 0, p.column or 0))
