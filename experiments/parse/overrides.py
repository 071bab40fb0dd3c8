"""Apply `--set` arguments, such as swarm.target_batch_size=8192, peers[0].count=2 or peers.us.count=2."""

from __future__ import annotations

import re
from typing import Any

from cloud.places import nearest
from experiments.parse.document import Document, Path, dotted, parse
from experiments.schema.errors import Problem

_PATH = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*(\.[A-Za-z_][A-Za-z0-9_/-]*|\[[0-9]{1,4}\])*")
_WORD_OR_INDEX = re.compile(r"\[([0-9]+)\]|([^.\[\]]+)")


def apply(document: Document, override: str) -> None:
    """Apply one override to the document's data. Problems are added to the document's."""
    origin = f"--set {override[:200]}"
    written, equals, text = override.partition("=")
    written = written.strip()
    if not equals or not _PATH.fullmatch(written):
        _complain(
            document,
            origin,
            "",
            "use key.key=value, such as swarm.target_batch_size=8192; an entry of a list is key[0]",
        )
        return
    value_document = parse(text, origin) if text.strip() else Document(origin, data="")
    if value_document.problems:
        first = value_document.problems[0]
        _complain(document, origin, written, first.message)
        return
    steps: list[str | int] = [
        int(index) if index else word
        for index, word in (m.groups() for m in _WORD_OR_INDEX.finditer(written))
    ]
    parent, path = _walk(document, origin, steps)
    if parent is None:
        return
    parent[path[-1]] = value_document.data
    for table in (document.values, document.keys, document.overridden):
        for old in [p for p in table if p[: len(path)] == path]:
            del table[old]
    document.problems = [p for p in document.problems if not _within(p.path, dotted(path))]
    document.overridden[path] = origin


def _walk(document: Document, origin: str, steps: list[str | int]) -> tuple[Any, Path]:
    """Return the container of the last step and the path of that step; (None, ()) after a problem."""
    node, path = document.data, ()
    for i, step in enumerate(steps):
        found = _index(document, origin, node, path, step)
        if found is None:
            return None, ()
        path = (*path, found)
        if i == len(steps) - 1:
            return node, path
        if isinstance(node, dict) and (found not in node or node[found] in (None, "auto")):
            node[found] = {}
            document.overridden[path] = origin
        node = node[found]
    return None, ()


def _index(document: Document, origin: str, node: Any, path: Path, step: str | int) -> str | int | None:
    """Resolve a step to a key or index of a node. Entries of a list can be referred to by name."""
    if isinstance(node, dict) and isinstance(step, str):
        return step
    if isinstance(node, list) and isinstance(step, int):
        if step < len(node):
            return step
        _complain(document, origin, dotted((*path, step)), f"there are {len(node)} entries, counted from 0")
        return None
    if isinstance(node, list):
        names = [str(entry.get("name")) if isinstance(entry, dict) else "" for entry in node]
        if names.count(str(step)) == 1:
            return names.index(str(step))
        known = ", ".join(filter(None, names)) or "entries without names"
        near = nearest(str(step)[:60], filter(None, names))
        _complain(
            document, origin, dotted((*path, step)), f"no entry is named '{step}' (there are: {known}){near}"
        )
        return None
    what = "a mapping" if isinstance(node, dict) else "a single value"
    _complain(
        document,
        origin,
        dotted((*path, step)),
        f"{dotted(path) or 'the file'} is {what}, not a list of entries",
    )
    return None


def _within(problem_path: str, path: str) -> bool:
    """Whether a problem is inside the part that the override replaced."""
    return problem_path == path or problem_path.startswith((f"{path}.", f"{path}["))


def _complain(document: Document, origin: str, path: str, message: str) -> None:
    document.problems.append(Problem(origin, None, None, path, message))
