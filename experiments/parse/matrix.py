"""`matrix:` of an experiment file: one document for each combination, by the rules of GitHub Actions. Pure.

Stricter than GitHub: values are text, numbers, true and false, and an entry of `exclude` that matches nothing is wrong.

Axes are lists; their product, less what an entry of `exclude` matches whole, are the combinations. An entry of
`include` joins every one of them whose axes it does not contradict (it may overwrite what an earlier entry added),
and is a combination of its own where there is none. `experiments.parse.placeholders` puts their values in.
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
    """One combination's experiment, not yet checked."""

    values: Combination
    document: Document

    @property
    def name(self) -> str:
        """As its `name` says, "" where that is no text."""
        name = self.document.data.get("name") if isinstance(self.document.data, dict) else None
        return name if isinstance(name, str) else ""

    @property
    def words(self) -> str:
        """`n=4, model=RoBERTaXLM`."""
        return words_of(self.values)


def is_matrix(document: Document) -> bool:
    """Does the file describe more than one experiment?"""
    return document.readable and isinstance(document.data, dict) and _KEY in document.data


def expand(document: Document) -> list[Variant]:
    """The experiments of a readable document, one without a matrix. What is wrong joins the document's problems."""
    if not is_matrix(document):
        substituted(document, document.data, (), {}, None)  # a placeholder of nothing is wrong here too
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
    if not document.problems:  # else equal names may be but what follows from them
        _check_names(document, variants)
    return variants


def combinations(document: Document) -> list[Combination]:
    """What `matrix:` stands for, in order; [] where it is wrong, which joins the document's problems."""
    matrix = document.data[_KEY]
    before = len(document.problems)
    check_plain(document, matrix, (_KEY,))
    axes = dict(_axes(document, matrix))
    lists = {name: list(_entries(document, matrix, name)) for name in _LISTS}
    if len(document.problems) > before:
        return []
    count = prod(len(values) for values in axes.values()) if axes else 0
    if count + len(lists["include"]) > MAX_COMBINATIONS:
        said = f"found up to {count + len(lists['include'])} combinations; must be at most {MAX_COMBINATIONS}"
        document.problems.append(document.problem((_KEY,), said))
        return []
    for i, entry in enumerate(lists["exclude"]):
        for key in entry:
            if key not in axes:
                said = f"'{key}' is not an axis ({', '.join(axes) or 'there is none'}){nearest(key, axes)}"
                document.problems.append(document.problem((_KEY, "exclude", i, key), said, at_key=True))
            elif not any(_same(entry[key], value) for value in axes[key]):
                there = ", ".join(map(_written, axes[key]))
                said = f"{_written(entry[key])} is no value of {key} ({there:.200}), so this excludes nothing"
                document.problems.append(document.problem((_KEY, "exclude", i, key), said))
    found = _included(_product(axes, lists["exclude"]), lists["include"])
    if not found and len(document.problems) == before:
        document.problems.append(
            document.problem((_KEY,), "leaves no combination; write an axis (n: [1, 2]) or an include")
        )
    return found if len(document.problems) == before else []


def choose(variants: Sequence[Variant], wished: Sequence[str]) -> tuple[list[Variant], str]:
    """The variants that `--matrix` arguments leave, and what is wrong with the arguments ("": nothing).

    An argument is `axis=value` or an experiment's name.
    """
    left = list(variants)
    for text in wished:
        key, equals, value = text.partition("=")
        if not equals:
            names = [v.name for v in variants]
            if text not in names:
                return [], f"'{text[:80]}' is none of its names{nearest(text[:80], names)}"
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
    """What to answer when one of several was to be named."""
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
            said = f"'{key[:60]}' is not an axis' name: a letter, then letters, digits, '_' and '-'"
            document.problems.append(document.problem(at, said, at_key=True))
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
                        document.problem((*at, i), f"{_written(value):.60} stands twice")
                    )
                seen.append(value)
            yield key, values


def _entries(document: Document, matrix: Any, name: str) -> Iterator[Combination]:
    entries = matrix.get(name, []) if isinstance(matrix, dict) else []
    if not isinstance(entries, list):
        said = "must be a list of mappings, such as - {n: 4, model: RoBERTaXLM}"
        document.problems.append(document.problem((_KEY, name), said))
        return
    for i, entry in enumerate(entries):
        at: Path = (_KEY, name, i)
        if not isinstance(entry, dict) or not entry:
            document.problems.append(document.problem(at, "must be a mapping of axes to values"))
            continue
        for key, value in entry.items():
            if not _AXIS.fullmatch(key) or not isinstance(value, str | int | float | bool):
                said = "must be a name with text, a number, true or false"
                document.problems.append(document.problem((*at, key), said))
        yield entry


def _product(axes: Mapping[str, list[Any]], excluded: Sequence[Combination]) -> list[Combination]:
    if not axes:
        return []
    every = (dict(zip(axes, values, strict=True)) for values in product(*axes.values()))
    return [c for c in every if not any(all(_same(c.get(k), v) for k, v in e.items()) for e in excluded)]


def _included(originals: list[Combination], entries: Sequence[Combination]) -> list[Combination]:
    """`include`: values join the original combinations that they do not contradict; else they are one more."""
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
            said = (
                f"'{variant.name}' is the name where {first[variant.name].words} and where {variant.words}; "
                "put the axes into it, such as mine-${matrix.n}"
            )
            document.problems.append(document.problem(("name",), said))
            return
        first[variant.name] = variant


def _written(value: Any) -> str:
    """As YAML and JSON write it: `4` is a number, `"4"` is text."""
    return json.dumps(value, ensure_ascii=False)
