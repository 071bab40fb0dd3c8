"""Parse YAML to plain data with the position of each key and value, and with limits on size and depth."""

from __future__ import annotations

import os
import pathlib
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import yaml

from experiments.schema.errors import Problem

Path: TypeAlias = tuple[str | int, ...]

_MAX_VALUES = 20_000
_MAX_DEPTH = 30
_PLAIN = (str, int, float, bool, type(None))


@dataclass
class Document:
    """A parsed file: plain data, the positions of keys and values, and the problems of the YAML itself."""

    file: str
    data: Any = None
    values: dict[Path, tuple[int, int]] = field(default_factory=dict)  # line and column from 1
    keys: dict[Path, tuple[int, int]] = field(default_factory=dict)
    # Of text on one line: columns from the value's position to its first letter.
    starts: dict[Path, int] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    overridden: dict[Path, str] = field(default_factory=dict)  # path -> "--set ..." that wrote it
    readable: bool = True  # False: there is no data

    def problem(self, path: Path, message: str, *, at_key: bool = False) -> Problem:
        """Return a problem at a path, positioned at its nearest known ancestor if the path is not in the file."""
        for length in range(len(path), -1, -1):
            near = path[:length]
            if near in self.overridden:
                return Problem(self.overridden[near], None, None, dotted(path), message)
            position = (self.keys.get(near) if at_key else None) or self.values.get(near)
            if position:
                return Problem(self.file, *position, dotted(path), message)
        return Problem(self.file, None, None, dotted(path), message)

    def exists(self, path: Path) -> bool:
        """Whether the path is in the file or in an override."""
        return path in self.values or any(path[:n] in self.overridden for n in range(len(path) + 1))


def dotted(path: Path) -> str:
    """Format a path, for example `peers[2].resources.infra`."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else str(part)
    return text


def absolute(document: Document, at: Path, written: str) -> pathlib.Path:
    """Return a path that is relative to the experiment's file, or to the working directory if it is from `--set`."""
    given = any(at[:length] in document.overridden for length in range(1, len(at) + 1))
    folder = pathlib.Path() if given else pathlib.Path(document.file).parent
    return pathlib.Path(os.path.abspath(folder / os.path.expanduser(written)))


def parse(text: str, file: str) -> Document:
    """Parse one YAML document. Bad input does not raise; it is reported in `problems`."""
    document = Document(file)
    loader: yaml.SafeLoader | None = None
    try:
        loader = yaml.SafeLoader(text)
        node = loader.get_single_node()
        if node is None:
            document.problems.append(
                Problem(file, 1, 1, "", "the file is empty; see `orch show geo-b2` for one")
            )
            document.readable = False
        else:
            document.data = _Walk(document, loader).value(node, (), 0)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        reason = " ".join(str(part) for part in (error.context, error.problem) if part)
        line, column = (mark.line + 1, mark.column + 1) if mark else (None, None)
        document.problems.append(Problem(file, line, column, "", f"not YAML: {reason}"))
        document.readable = False
    except yaml.YAMLError as error:
        document.problems.append(Problem(file, None, None, "", f"not YAML: {' '.join(str(error).split())}"))
        document.readable = False
    except _TooMuch as error:
        document.problems.append(Problem(file, None, None, "", str(error)))
        document.readable = False
    except RecursionError:
        document.problems.append(Problem(file, None, None, "", f"nested deeper than {_MAX_DEPTH} levels"))
        document.readable = False
    finally:
        if loader is not None:
            loader.dispose()
    return document


class _TooMuch(Exception):
    """The file expands to more values or levels than allowed."""


class _Walk:
    """One traversal of the YAML nodes. Aliases are expanded, so they count each time they are used."""

    def __init__(self, document: Document, loader: yaml.SafeLoader) -> None:
        self._document, self._loader, self._seen = document, loader, 0

    def value(self, node: yaml.Node, path: Path, depth: int) -> Any:
        self._seen += 1
        if self._seen > _MAX_VALUES:
            raise _TooMuch(f"unfolds to more than {_MAX_VALUES} values (YAML aliases count each time)")
        if depth > _MAX_DEPTH:
            raise _TooMuch(f"nested deeper than {_MAX_DEPTH} levels (or an alias contains itself)")
        self._document.values[path] = _position(node)
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, path, depth)
        if isinstance(node, yaml.SequenceNode):
            return [self.value(item, (*path, i), depth + 1) for i, item in enumerate(node.value)]
        return self._scalar(node, path)

    def _mapping(self, node: yaml.MappingNode, path: Path, depth: int) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key_node, value_node in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                self._complain(key_node, path, "a key must be a word, not a list or a mapping")
                continue
            key = str(key_node.value)
            if key_node.tag == "tag:yaml.org,2002:merge":
                self._complain(key_node, path, "merge keys ('<<') are not supported; write the keys out")
                continue
            if key in found:
                first = self._document.keys[(*path, key)]
                self._complain(key_node, (*path, key), f"duplicate key, first on line {first[0]}; remove one")
                continue
            self._document.keys[(*path, key)] = _position(key_node)
            found[key] = self.value(value_node, (*path, key), depth + 1)
        return found

    def _scalar(self, node: yaml.Node, path: Path) -> Any:
        if node.start_mark.line == node.end_mark.line and "\\" not in str(node.value):
            self._document.starts[path] = int(getattr(node, "style", None) in ("'", '"'))
        try:
            value = self._loader.construct_object(node)
        except yaml.constructor.ConstructorError:
            self._complain(node, path, f"the YAML tag '{node.tag}' is not supported; remove it")
            return None
        except (ValueError, OverflowError) as error:
            self._complain(node, path, f"'{str(node.value)[:40]}' cannot be read: {str(error)[:80]}")
            return None
        # Dates and similar types are not used here: keep them as written.
        return value if isinstance(value, _PLAIN) else str(node.value)

    def _complain(self, node: yaml.Node, path: Path, message: str) -> None:
        line, column = _position(node)
        self._document.problems.append(Problem(self._document.file, line, column, dotted(path), message))


def _position(node: yaml.Node) -> tuple[int, int]:
    return node.start_mark.line + 1, node.start_mark.column + 1
