"""The baseline of a study: the entry that the other entries are compared with, and the figures to compare.

A row is an experiment and a label: the runs of one entry, or of one of its experiments.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Literal, TypeAlias, get_args

from cloud.places import nearest

Column = Literal[
    "sps", "granularity", "comm_s", "usd_per_1m", "egress_bytes_per_vm_epoch", "intercontinental_bytes", "loss", "heldout_loss",
]  # fmt: skip
COLUMNS: tuple[Column, ...] = get_args(Column)
LOSSES: tuple[Column, ...] = ("loss", "heldout_loss")
"""Columns compared after the same number of samples: training loss (mean of the epoch ending there), held-out loss."""
Rows: TypeAlias = Mapping[tuple[str, str], str]
"""The model of each row, by experiment and label."""


def meant(rows: Rows, experiment: str, model: str, name: str) -> list[tuple[str, str]]:
    """Return the rows that `name` refers to in a comparison with a row of `experiment`: one, none or several.

    That is the row of the same experiment with this label, else those of the same model with this label, else those of
    the experiment with this name.
    """
    if (experiment, name) in rows:
        return [(experiment, name)]
    labelled = [key for key, its in rows.items() if key[1] == name and its == model] if name else []
    return labelled or [key for key in rows if key[0] == name]


def against_problem(baseline: str, against: str, labels: Sequence[str]) -> str:
    """Return the problem of an entry's `against` as a sentence, or ""."""
    if against and not baseline:
        return "needs a baseline: set `compare.baseline` to the label of an entry, or remove the key"
    return _unknown(against, labels)


def baseline_problems(
    baseline: str, columns: Sequence[Column], labels: Sequence[str]
) -> Iterator[tuple[str, str]]:
    """Yield the problems of `compare.baseline` and `compare.columns`: key and sentence. `labels`: those of the entries."""
    if problem := _unknown(baseline, labels):
        yield "baseline", problem
    if not baseline and tuple(columns) != COLUMNS:
        yield "columns", "need a baseline: set `baseline` to the label of an entry, or remove the key"
    if len(set(columns)) < len(columns):
        yield "columns", "contain a figure twice"


def row_problems(
    baseline: str, rows: Rows, against: Mapping[tuple[str, str], str]
) -> Iterator[tuple[tuple[str, str] | None, str]]:
    """Yield the rows without a row to compare with: the row whose `against` is wrong (None: the baseline), and a sentence.

    `against`: the label that an entry names, by row, for the entries that name one. All are labels of the study.
    """
    for key, label in against.items():
        found = meant(rows, key[0], rows[key], label)
        if len(found) != 1:
            count = "several entries" if found else "no entry"
            yield key, f"{count} of {key[0]} or of its model {rows[key]} with the label '{label}'"
    for model in dict.fromkeys(rows.values()):
        own = [key for key, its in rows.items() if its == model]
        plain = [" ".join(key).strip() for key in own if key not in against]
        if plain and all(label != baseline for _, label in own):
            yield (
                None,
                f"no entry of the model {model} has the label '{baseline}', so there is nothing to compare {plain[0]} with",
            )


def _unknown(label: str, labels: Sequence[str]) -> str:
    known = [one for one in dict.fromkeys(labels) if one]
    if not label or label in known:
        return ""
    choices = f"{nearest(label, known)} ({', '.join(known)})" if known else ": no entry has a label"
    return f"no entry has the label '{label}'{choices}"
