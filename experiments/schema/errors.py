"""Errors of experiment files. One error carries all problems found."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Problem:
    """One problem and its location."""

    file: str  # path of the file, or "--set key=value" for an override
    line: int | None  # from 1; None: not at a position in a file
    column: int | None  # from 1
    path: str  # "peers[2].resources.infra"; "" for the whole file
    message: str  # what was found, what is allowed, the nearest spelling

    def __str__(self) -> str:
        where = self.file
        if self.line is not None:
            where += f":{self.line}" + (f":{self.column}" if self.column is not None else "")
        text = ": ".join(part for part in (where, self.path, self.message) if part)
        # keys and values of a file may contain newlines and terminal codes; an error is always one plain line
        return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


class SpecError(Exception):
    """The experiment cannot be read or is invalid. `problems` lists all problems in the order of the file."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(map(str, self.problems)))

    @classmethod
    def of(cls, file: str, message: str, path: str = "") -> SpecError:
        """Return an error with one problem that has no line."""
        return cls([Problem(file, None, None, path, message)])


class MatrixError(SpecError):
    """The arguments of `--matrix` (in a study: `matrix`) select no experiment of the file."""
