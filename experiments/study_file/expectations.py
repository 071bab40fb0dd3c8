"""Expectations of a study (`compare.expect`): a figure of one row compared with that of another row, with a limit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from cloud.places import nearest
from experiments.study_file.baseline import LOSSES, Column, Rows, meant

LIMITS = ("at_least", "at_most", "within", "times_lower", "within_noise")
"""Keys of an expectation that are limits. At most one of them is given."""

_Name = Annotated[str, Field(max_length=100)]


class Expectation(BaseModel):
    """Comparison of one figure of a row with that of another row. Without a limit it is reported but not judged."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    row: Annotated[str, Field(min_length=1, max_length=100)] = Field(
        description="Label of an entry of this study, or name of an experiment."
    )
    experiment: _Name = Field(
        default="",
        description="Check only the row of this experiment. Default: all experiments with the row.",
    )
    against: _Name = Field(
        default="",
        description="Row to compare with: a label or the name of an experiment. Default: the row's baseline in the table.",
    )
    figure: Column = Field(description="The figure to compare.")
    at_least: Annotated[float, Field(gt=0)] | None = Field(
        default=None, description="The figure is at least this many times the other row's."
    )
    at_most: Annotated[float, Field(gt=0)] | None = Field(
        default=None, description="The figure is at most this many times the other row's."
    )
    within: Annotated[float, Field(gt=0, lt=1)] | None = Field(
        default=None,
        description="The figure differs from the other row's by at most this fraction (0.1 = 10 %).",
    )
    times_lower: Annotated[float, Field(gt=0)] | None = Field(
        default=None, description="The other row's figure is at least this many times this row's."
    )
    within_noise: bool = Field(
        default=False, description="For losses: the difference does not exceed the noise of the runs."
    )

    @property
    def limits(self) -> tuple[str, ...]:
        """Keys of the limits that are set."""
        return tuple(name for name in LIMITS if getattr(self, name) not in (None, False))

    @property
    def words(self) -> str:
        """The limit as a phrase, for example "at least 1.4"; "" without a limit."""
        if self.within is not None:
            return f"within {100 * self.within:g} %"
        if self.times_lower is not None:
            return f"at least {self.times_lower:g} times lower"
        if self.at_least is not None:
            return f"at least {self.at_least:g}"
        if self.at_most is not None:
            return f"at most {self.at_most:g}"
        return "within noise" if self.within_noise else ""


def of_row(rows: Rows, one: Expectation) -> list[tuple[str, str]]:
    """Return the rows that an expectation applies to."""
    own = [key for key in rows if not one.experiment or key[0] == one.experiment]
    return [key for key in own if key[1] == one.row] or [key for key in own if key[0] == one.row]


def expect_problems(
    expected: Sequence[Expectation], baseline: str, rows: Rows, against: Mapping[tuple[str, str], str]
) -> Iterator[tuple[tuple[str | int, ...], str]]:
    """Yield the problems of `compare.expect`: the path below it and a sentence.

    `rows`: all rows of the study; empty if they could not be read, and then names are not checked. `against`: the label
    that an entry names, by row, for the entries that name one.
    """
    if expected and not baseline:
        yield (), "needs a baseline: set `baseline` to the label of an entry, or remove the key"
        return
    names = list(dict.fromkeys(name for key in rows for name in (key[1], key[0]) if name))
    for at, one in enumerate(expected):
        yield from (((at, *key), problem) for key, problem in _limit_problems(one))
        if rows:
            yield from (
                ((at, key), problem) for key, problem in _name_problems(one, baseline, rows, names, against)
            )


def _limit_problems(one: Expectation) -> Iterator[tuple[tuple[str, ...], str]]:
    if len(one.limits) > 1:
        yield (), f"has {len(one.limits)} limits ({', '.join(one.limits)}); give one per entry"
    for name in one.limits:
        if one.figure in LOSSES and name != "within_noise":
            yield (name,), f"a loss is judged by its difference: use `within_noise` for '{one.figure}'"
        elif one.figure not in LOSSES and name == "within_noise":
            yield (
                (name,),
                f"'within_noise' applies to {' and '.join(LOSSES)} only, not to '{one.figure}'; use another limit",
            )


def _name_problems(
    one: Expectation, baseline: str, rows: Rows, names: Sequence[str], against: Mapping[tuple[str, str], str]
) -> Iterator[tuple[str, str]]:
    experiments = list(dict.fromkeys(key[0] for key in rows))
    if one.row not in names:
        yield "row", _no_such(one.row, names)
        return
    if one.experiment and one.experiment not in experiments:
        near = nearest(one.experiment, experiments)
        yield (
            "experiment",
            f"this study has no experiment '{one.experiment}'{near} ({', '.join(experiments)})",
        )
        return
    own = of_row(rows, one)
    if not own:
        yield "experiment", f"'{one.experiment}' has no row '{one.row}'"
    if one.against and one.against not in names:
        yield "against", _no_such(one.against, names)
        return
    for key in own:
        label = one.against or against.get(key) or baseline
        others = meant(rows, key[0], rows[key], label)
        title = " ".join(key).strip()
        if len(others) != 1:
            count = "several rows match" if others else "no row matches"
            yield (
                "against",
                f"{count} '{label}' for {title}; name an experiment, or choose one with `experiment`",
            )
        elif others[0] == key:
            yield "against", f"{title} would be compared with itself; name another row"


def _no_such(name: str, names: Sequence[str]) -> str:
    return f"no entry has the label '{name}' and no experiment has that name{nearest(name, names)} ({', '.join(names)})"
