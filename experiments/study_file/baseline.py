"""The entry of a study that its options are held against, and which figures of them are told.

A row is an experiment and a label: one entry's runs, or those of one of its experiments.
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
"""Columns that are compared after equal samples: of training (mean of the epoch that ends there), of held-out data."""
Rows: TypeAlias = Mapping[tuple[str, str], str]
"""The model of each row, by experiment and label."""


def meant(rows: Rows, experiment: str, model: str, name: str) -> list[tuple[str, str]]:
    """The rows that a name means beside a row of `experiment`: one, none or too many.

    That of the same experiment with this label, else those of the same model with this label, else those of the
    experiment that is called so.
    """
    if (experiment, name) in rows:
        return [(experiment, name)]
    labelled = [key for key, its in rows.items() if key[1] == name and its == model] if name else []
    return labelled or [key for key in rows if key[0] == name]


def against_problem(baseline: str, against: str, labels: Sequence[str]) -> str:
    """What is wrong with an entry's `against`, a sentence; "" where nothing is."""
    if against and not baseline:
        return "stands beside a baseline: give `compare.baseline` the label of an entry, or leave it out"
    return _unknown(against, labels)


def baseline_problems(
    baseline: str, columns: Sequence[Column], labels: Sequence[str]
) -> Iterator[tuple[str, str]]:
    """What is wrong with `compare.baseline` and `compare.columns`: the key and a sentence. `labels`: of the entries."""
    if said := _unknown(baseline, labels):
        yield "baseline", said
    if not baseline and tuple(columns) != COLUMNS:
        yield "columns", "stand beside a baseline: give `baseline` the label of an entry, or leave them out"
    if len(set(columns)) < len(columns):
        yield "columns", "one stands twice"


def row_problems(
    baseline: str, rows: Rows, against: Mapping[tuple[str, str], str]
) -> Iterator[tuple[tuple[str, str] | None, str]]:
    """Rows that would be held against nothing: the row whose own `against` is wrong, or None for the baseline, and a sentence.

    `against`: the label that a row's entry names, of those that name one; each is a label of the study.
    """
    for key, label in against.items():
        found = meant(rows, key[0], rows[key], label)
        if len(found) != 1:
            said = "several entries" if found else "no entry"
            yield key, f"{said} of {key[0]} or of its model {rows[key]} with the label '{label}'"
    for model in dict.fromkeys(rows.values()):
        own = [key for key, its in rows.items() if its == model]
        plain = [" ".join(key).strip() for key in own if key not in against]
        if plain and all(label != baseline for _, label in own):
            yield (
                None,
                f"no entry of the model {model} has the label '{baseline}', so {plain[0]} is held against nothing",
            )


def _unknown(label: str, labels: Sequence[str]) -> str:
    known = [one for one in dict.fromkeys(labels) if one]
    if not label or label in known:
        return ""
    there_are = f"{nearest(label, known)} ({', '.join(known)})" if known else ": none has one"
    return f"no entry has the label '{label}'{there_are}"
