"""What can be wrong with an experiment file: one error that carries every problem found."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong, and where."""

    file: str  # the file's path, or "--set key=value" for an override
    line: int | None  # from 1; None: not a place in a file
    column: int | None  # from 1
    path: str  # "peers[2].resources.infra"; "" for the file as a whole
    message: str  # what was found, what is allowed, the nearest spelling

    def __str__(self) -> str:
        where = self.file
        if self.line is not None:
            where += f":{self.line}" + (f":{self.column}" if self.column is not None else "")
        text = ": ".join(part for part in (where, self.path, self.message) if part)
        # a file may hold newlines and terminal codes in its keys and values; an error stays one plain line
        return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


class SpecError(Exception):
    """The experiment cannot be read or makes no sense; `problems` has all of it, in the file's order."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(map(str, self.problems)))

    @classmethod
    def of(cls, file: str, message: str, path: str = "") -> SpecError:
        """An error of one problem with no line."""
        return cls([Problem(file, None, None, path, message)])


class MatrixError(SpecError):
    """The arguments of `--matrix` (in a study: `matrix`) choose no experiment of the file."""
