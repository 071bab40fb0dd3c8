"""Replace `${matrix.x}` in strings by the value of a combination. Pure.

A string that contains nothing else gets the type of the value. Placeholders in keys and in the matrix itself are errors.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, TypeAlias

from cloud.places import nearest
from experiments.parse.document import Document, Path

Combination: TypeAlias = dict[str, str | int | float | bool]

NAME = "[A-Za-z_][A-Za-z0-9_-]{0,39}"
"""Pattern of the names of axes."""

_PLACEHOLDER = re.compile(rf"\$\{{\s*matrix\.({NAME})\s*\}}")
# With the dot: `${matrix}` and `${matrix:-x}` are a shell's variables, `${matrix.x}` cannot be one.
_ATTEMPT = re.compile(r"(?:\$\{|\{\{)\{*\s*matrix\s*\.[^}]*\}*", re.IGNORECASE)


def substituted(
    document: Document, node: Any, path: Path, values: Combination, anywhere: Mapping[str, Any] | None
) -> Any:
    """Return the node at `path` with all placeholders replaced. Problems are added to the document's.

    `anywhere`: the names that at least one combination has; None: the file has no matrix.
    """
    if isinstance(node, dict):
        for key in node:
            _check_key(document, (*path, key))
        return {k: substituted(document, v, (*path, k), values, anywhere) for k, v in node.items()}
    if isinstance(node, list):
        return [substituted(document, v, (*path, i), values, anywhere) for i, v in enumerate(node)]
    if not isinstance(node, str):
        return node
    for attempt in _ATTEMPT.finditer(node):
        _check_placeholder(document, path, attempt, values, anywhere)
    whole = _PLACEHOLDER.fullmatch(node)
    if whole:
        return values.get(whole[1], node)
    return _PLACEHOLDER.sub(lambda m: text_of(values.get(m[1], m[0])), node)


def check_plain(document: Document, node: Any, path: Path) -> None:
    """Report placeholders in the matrix itself, where they are not replaced, as problems of the document."""
    for at, text in _texts(node, path):
        for attempt in _ATTEMPT.finditer(text):
            _add(document, at, attempt, f"'{attempt[0][:60]}' is in the matrix itself; use the value")


def words_of(values: Combination) -> str:
    """Format a combination, for example `n=4, model=RoBERTaXLM`."""
    return ", ".join(f"{key}={text_of(value)}" for key, value in values.items())


def text_of(value: Any) -> str:
    """Format a value for insertion into a longer string."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _texts(node: Any, path: Path) -> Iterator[tuple[Path, str]]:
    if isinstance(node, dict | list):
        for key, value in node.items() if isinstance(node, dict) else enumerate(node):
            yield from _texts(value, (*path, key))
    elif isinstance(node, str):
        yield path, node


def _check_key(document: Document, path: Path) -> None:
    attempt = _ATTEMPT.search(str(path[-1]))
    if attempt is None:
        return
    message = (
        f"'{attempt[0][:60]}' is in a key, where it is not replaced; placeholders are allowed in values only"
    )
    problem = document.problem(path, message, at_key=True)
    if problem not in document.problems:  # every combination finds it
        document.problems.append(problem)


def _check_placeholder(
    document: Document,
    path: Path,
    attempt: re.Match[str],
    values: Combination,
    anywhere: Mapping[str, Any] | None,
) -> None:
    found = _PLACEHOLDER.fullmatch(attempt[0])
    if found is None:
        message = f"'{attempt[0][:60]}' is not a placeholder; use ${{matrix.NAME}}"
    elif anywhere is None:
        message = f"'{attempt[0][:60]}': the file has no 'matrix:'"
    elif found[1] in values:
        return
    elif found[1] in anywhere:
        message = f"'{attempt[0][:60]}' has no value for {words_of(values)}; add one with an entry of include"
    else:
        known = f"there are {', '.join(anywhere)}" if anywhere else "it is empty"
        message = f"'{found[1]}' is not in the matrix ({known}){nearest(found[1], anywhere)}"
    _add(document, path, attempt, message)


def _add(document: Document, path: Path, attempt: re.Match[str], message: str) -> None:
    problem = document.problem(path, message)
    if problem.line is not None and problem.column is not None:
        problem = replace(problem, column=problem.column + _offset(document, path, attempt))
    if problem not in document.problems:
        document.problems.append(problem)


def _offset(document: Document, path: Path, attempt: re.Match[str]) -> int:
    """Return the columns from the start of the value to the placeholder; 0 in text of several lines."""
    return document.starts[path] + attempt.start() if path in document.starts else 0
