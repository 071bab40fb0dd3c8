"""Convert pydantic's errors to problems that name what was found, what is allowed and the nearest spelling."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import is_dataclass
from typing import Any, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from cloud.places import nearest
from experiments.parse.document import Document, Path
from experiments.schema.errors import Problem
from experiments.schema.models import keys_of

_KINDS = {
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "string_type": "text (quote it if it looks like a number or a date)",
    "bool_type": "true or false",
    "tuple_type": "a list",
    "dict_type": "a mapping of keys to values",
    "model_type": "a mapping of keys to values",
    "dataclass_type": "a mapping of keys to values",
}
_BOUNDS = {
    "greater_than": ("above", "gt"),
    "greater_than_equal": ("at least", "ge"),
    "less_than": ("below", "lt"),
    "less_than_equal": ("at most", "le"),
}


def problems_of(
    error: ValidationError, document: Document, root: type[BaseModel], at: Path = ()
) -> list[Problem]:
    """Return one problem per error of pydantic. `at`: path of the validated part in the document."""
    found: dict[tuple[Path, str], Problem] = {}
    for detail in _details(error):
        loc: Path = (*at, *_plain(detail["loc"]))
        kind, context = detail["type"], detail.get("ctx", {})
        if kind in ("extra_forbidden", "unexpected_keyword_argument"):
            allowed = _keys(root, loc[len(at) : -1])
            key = str(loc[-1])[:60]
            said = f"unknown key '{key}'{nearest(key, allowed)} (allowed: {', '.join(allowed)})"
            problem = document.problem(loc, said, at_key=True)
        elif kind == "missing":
            problem = document.problem(loc, f"is missing; add the key '{loc[-1]}'")
        else:
            problem = document.problem(
                loc, _said(kind, context, detail["input"], loc), at_key="[key]" in detail["loc"]
            )
        found[loc, problem.message] = problem
    return list(found.values())


def wrong_paths(error: ValidationError) -> frozenset[Path]:
    """Return the paths of the invalid values."""
    return frozenset(_plain(detail["loc"]) for detail in _details(error))


def _details(error: ValidationError) -> Iterator[ErrorDetails]:
    """Yield the errors, except that a list is too short if it is so only because of invalid entries."""
    for detail in error.errors(include_url=False):
        value, context = detail["input"], detail.get("ctx", {})
        sized = isinstance(value, (list, tuple, dict))
        if not (detail["type"] == "too_short" and sized and len(value) >= context["min_length"]):
            yield detail


def _plain(loc: tuple[int | str, ...]) -> Path:
    return tuple(part for part in loc if part != "[key]")


def _said(kind: str, context: dict[str, Any], value: Any, loc: Path) -> str:
    if kind == "orch":
        return str(context["message"])
    if kind == "none_required" and "secrets" in loc:
        return "must be null: a secret's value is read from the environment and must not be in the file"
    if kind == "finite_number":
        return "must be a finite number"
    shown = "found a value" if "secrets" in loc else f"found {_show(value)}"
    if kind in _KINDS:
        return f"{shown}; must be {_KINDS[kind]}"
    if kind in _BOUNDS:
        words, key = _BOUNDS[kind]
        return f"{shown}; must be {words} {_number(context[key])}"
    if kind == "literal_error":
        names = _quoted(str(context["expected"]))
        near = nearest(value, names) if isinstance(value, str) else ""
        return f"{shown}; must be one of {', '.join(names)}{near}"
    if kind in ("too_short", "too_long"):
        words = "at least" if kind == "too_short" else "at most"
        return (
            f"found {context['actual_length']} entries; must be {words} {context[f'{_limit(kind)}_length']}"
        )
    if kind in ("string_too_short", "string_too_long"):
        words = "at least" if kind == "string_too_short" else "at most"
        size = len(value) if isinstance(value, str) else 0
        return f"found {size} characters; must be {words} {context[f'{_limit(kind)}_length']}"
    return f"{shown}; {kind.replace('_', ' ')}"


def _limit(kind: str) -> str:
    return "min" if kind.endswith("short") else "max"


def _number(bound: float) -> str:
    return str(int(bound)) if float(bound).is_integer() else f"{bound:g}"


def _show(value: Any) -> str:
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, (list, tuple)):
        return "a list"
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _quoted(expected: str) -> list[str]:
    """Parse pydantic's list of choices, "'a', 'b' or 'c'"."""
    return [part.strip().strip("'") for part in expected.replace(" or ", ", ").split(",")]


def _keys(root: type[BaseModel], path: Path) -> list[str]:
    """The keys allowed in the mapping at `path`."""
    section: type[Any] = root
    for part in path:
        if part in (keys := keys_of(section)):
            section = next(_sections(keys[str(part)].annotation), section)
    return list(keys_of(section))


def _sections(annotation: Any) -> Iterator[type[Any]]:
    if isinstance(annotation, type) and (issubclass(annotation, BaseModel) or is_dataclass(annotation)):
        yield annotation
    for inner in get_args(annotation):
        yield from _sections(inner)
