"""`matrix:` of an experiment file: one document per combination, by the rules of GitHub Actions. Pure.

Stricter than GitHub: values are text, numbers, true and false, and an entry of `exclude` that matches nothing is an error.

Axes are lists. The combinations are their product, without those that an entry of `exclude` matches completely. An entry
of `include` extends every combination whose axes it does not contradict (and may overwrite values of an earlier entry).
If there is none, it is a combination of its own. `experiments.parse.placeholders` inserts the values.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import prod
from typing import Any

from cloud.places import nearest
from experiments.parse.document import Document, Path
from experiments.parse.placeholders import NAME, Combination, check_plain, substituted, text_of, words_of

__all__ = [
    "MAX_COMBINATIONS",
    "Combination",
    "Variant",
    "choose",
    "combinations",
    "expand",
    "is_matrix",
    "several_words",
]

MAX_COMBINATIONS = 256
_KEY = "matrix"
_LISTS = ("include", "exclude")
_AXIS = re.compile(NAME)


@dataclass(frozen=True)
class Variant:
    """The experiment of one combination, not yet validated."""

    values: Combination
    document: Document

    @property
    def name(self) -> str:
        """Its `name`, "" if that is not text."""
        name = self.document.data.get("name") if isinstance(self.document.data, dict) else None
        return name if isinstance(name, str) else ""

    @property
    def words(self) -> str:
        """Its values, for example `n=4, model=RoBERTaXLM`."""
        return words_of(self.values)


def is_matrix(document: Document) -> bool:
    """Whether the file has a `matrix:`."""
    return document.readable and isinstance(document.data, dict) and _KEY in document.data


def expand(document: Document) -> list[Variant]:
    """Return the experiments of a readable document; without a matrix, one. Problems are added to the document's."""
    if not is_matrix(document):
        substituted(
            document, document.data, (), {}, None
        )  # reports placeholders, which are errors without a matrix
        return [Variant({}, document)]
    found = combinations(document)
    body = {key: value for key, value in document.data.items() if key != _KEY}
    inside = {"values": document.values, "keys": document.keys}
    kept = {name: {p: at for p, at in table.items() if p[:1] != (_KEY,)} for name, table in inside.items()}
    anywhere = {key: None for values in found for key in values}
    variants = [
        Variant(
            values,
            replace(
                document,
                data=substituted(document, body, (), values, anywhere),
                problems=[],
                overridden={},
                **kept,
            ),
        )
        for values in found
    ]
    if not document.problems:  # otherwise equal names may only be a consequence of them
        _check_names(document, variants)
    return variants


def combinations(document: Document) -> list[Combination]:
    """Return the combinations of `matrix:`, in order. [] if it is invalid; problems are added to the document's."""
    matrix = document.data[_KEY]
    before = len(document.problems)
    check_plain(document, matrix, (_KEY,))
    axes = dict(_axes(document, matrix))
    lists = {name: list(_entries(document, matrix, name)) for name in _LISTS}
    if len(document.problems) > before:
        return []
    count = prod(len(values) for values in axes.values()) if axes else 0
    if count + len(lists["include"]) > MAX_COMBINATIONS:
        message = (
            f"found up to {count + len(lists['include'])} combinations; must be at most {MAX_COMBINATIONS}"
        )
        document.problems.append(document.problem((_KEY,), message))
        return []
    for i, entry in enumerate(lists["exclude"]):
        for key in entry:
            if key not in axes:
                message = f"'{key}' is not an axis ({', '.join(axes) or 'there is none'}){nearest(key, axes)}"
                document.problems.append(document.problem((_KEY, "exclude", i, key), message, at_key=True))
            elif not any(_same(entry[key], value) for value in axes[key]):
                there = ", ".join(map(_written, axes[key]))
                message = (
                    f"{_written(entry[key])} is not a value of {key} ({there:.200}), so this excludes nothing"
                )
                document.problems.append(document.problem((_KEY, "exclude", i, key), message))
    found = _included(_product(axes, lists["exclude"]), lists["include"])
    if not found and len(document.problems) == before:
        document.problems.append(
            document.problem((_KEY,), "has no combination; add an axis (n: [1, 2]) or an include")
        )
    return found if len(document.problems) == before else []


def choose(variants: Sequence[Variant], requested: Sequence[str]) -> tuple[list[Variant], str]:
    """Select variants by `--matrix` arguments: the matching variants, and the problem of the arguments or "".

    An argument is `axis=value` or an experiment's name.
    """
    left = list(variants)
    for text in requested:
        key, equals, value = text.partition("=")
        if not equals:
            names = [v.name for v in variants]
            if text not in names:
                return [], f"'{text[:80]}' is not one of its names{nearest(text[:80], names)}"
            left = [v for v in left if v.name == text]
            continue
        axes = list(dict.fromkeys(axis for v in variants for axis in v.values))
        if key not in axes:
            return [], f"'{key[:40]}' is not in its matrix ({', '.join(axes)}){nearest(key[:40], axes)}"
        values = list(dict.fromkeys(text_of(v.values[key]) for v in left if key in v.values))
        left = [v for v in left if key in v.values and text_of(v.values[key]) == value]
        if not left:
            return [], f"no combination has {key}={value[:40]} (there are {', '.join(values)})"
    return left, ""


def several_words(variants: Sequence[Variant]) -> str:
    """Return the error message for a matrix of which one experiment must be chosen."""
    names = ", ".join(v.name for v in variants[:8]) + (", ..." if len(variants) > 8 else "")
    first = variants[0]
    axis = next((k for k, v in first.values.items() if any(w.values.get(k) != v for w in variants)), "")
    by_axis = f"`--matrix {axis}={text_of(first.values[axis])}` or " if axis else ""
    return (
        f"is a matrix of {len(variants)} experiments ({names}): choose one by {by_axis}"
        f"`--matrix {first.name}`; `orch show` lists them"
    )


def _axes(document: Document, matrix: Any) -> Iterator[tuple[str, list[Any]]]:
    if not isinstance(matrix, dict):
        document.problems.append(
            document.problem((_KEY,), "must be a mapping: axes with their lists, include, exclude")
        )
        return
    for key, values in matrix.items():
        if key in _LISTS:
            continue
        at: Path = (_KEY, key)
        if not _AXIS.fullmatch(key):
            message = (
                f"'{key[:60]}' is not a valid name of an axis: a letter, then letters, digits, '_' and '-'"
            )
            document.problems.append(document.problem(at, message, at_key=True))
        elif not isinstance(values, list) or not values:
            document.problems.append(document.problem(at, f"must be a list of values, such as {key}: [1, 2]"))
        else:
            seen: list[Any] = []
            for i, value in enumerate(values):
                if not isinstance(value, str | int | float | bool):
                    document.problems.append(
                        document.problem((*at, i), "must be text, a number, true or false")
                    )
                elif any(value == old and type(value) is type(old) for old in seen):
                    document.problems.append(
                        document.problem((*at, i), f"{_written(value):.60} is a duplicate")
                    )
                seen.append(value)
            yield key, values


def _entries(document: Document, matrix: Any, name: str) -> Iterator[Combination]:
    entries = matrix.get(name, []) if isinstance(matrix, dict) else []
    if not isinstance(entries, list):
        message = "must be a list of mappings, such as - {n: 4, model: RoBERTaXLM}"
        document.problems.append(document.problem((_KEY, name), message))
        return
    for i, entry in enumerate(entries):
        at: Path = (_KEY, name, i)
        if not isinstance(entry, dict) or not entry:
            document.problems.append(document.problem(at, "must be a mapping of axes to values"))
            continue
        for key, value in entry.items():
            if not _AXIS.fullmatch(key) or not isinstance(value, str | int | float | bool):
                message = "must be a name with text, a number, true or false"
                document.problems.append(document.problem((*at, key), message))
        yield entry


def _product(axes: Mapping[str, list[Any]], excluded: Sequence[Combination]) -> list[Combination]:
    if not axes:
        return []
    every = (dict(zip(axes, values, strict=True)) for values in product(*axes.values()))
    return [c for c in every if not any(all(_same(c.get(k), v) for k, v in e.items()) for e in excluded)]


def _included(originals: list[Combination], entries: Sequence[Combination]) -> list[Combination]:
    """Apply `include`: each entry extends the original combinations that it does not contradict, or adds one."""
    found = [dict(original) for original in originals]
    alone: list[Combination] = []
    for entry in entries:
        fits = [
            i
            for i, original in enumerate(originals)
            if all(k not in original or _same(original[k], v) for k, v in entry.items())
        ]
        for i in fits:
            found[i] |= entry
        if not fits:
            alone.append(dict(entry))
    return found + alone


def _same(a: Any, b: Any) -> bool:
    return a == b and isinstance(a, bool) == isinstance(b, bool)


def _check_names(document: Document, variants: Sequence[Variant]) -> None:
    first: dict[str, Variant] = {}
    for variant in variants:
        if variant.name and variant.name in first:
            message = (
                f"'{variant.name}' is the name for {first[variant.name].words} and for {variant.words}; "
                "use the axes in it, such as mine-${matrix.n}"
            )
            document.problems.append(document.problem(("name",), message))
            return
        first[variant.name] = variant


def _written(value: Any) -> str:
    """Format a value as in YAML and JSON: `4` is a number, `"4"` is text."""
    return json.dumps(value, ensure_ascii=False)
