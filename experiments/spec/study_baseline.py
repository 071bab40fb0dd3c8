"""The entry of a study that its options are held against, and which figures of them are told."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal, get_args

from cloud.places import nearest

__all__ = ["COLUMNS", "Column", "against_problem", "baseline_problems"]

Column = Literal["sps", "granularity", "usd_per_1m", "intercontinental_bytes", "loss", "heldout_loss"]
COLUMNS: tuple[Column, ...] = get_args(Column)


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


def _unknown(label: str, labels: Sequence[str]) -> str:
    known = [one for one in dict.fromkeys(labels) if one]
    if not label or label in known:
        return ""
    there_are = f"{nearest(label, known)} ({', '.join(known)})" if known else ": none has one"
    return f"no entry has the label '{label}'{there_are}"
