"""The entry of a study that its options are held against, and which figures of them are told."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal, get_args

from cloud.places import nearest

__all__ = ["COLUMNS", "Column", "baseline_problems"]

Column = Literal["sps", "granularity", "usd_per_1m", "intercontinental_bytes", "loss", "heldout_loss"]
COLUMNS: tuple[Column, ...] = get_args(Column)


def baseline_problems(
    baseline: str, columns: Sequence[Column], labels: Sequence[str]
) -> Iterator[tuple[str, str]]:
    """What is wrong with `compare.baseline` and `compare.columns`: the key and a sentence. `labels`: of the entries."""
    known = [label for label in dict.fromkeys(labels) if label]
    if baseline and baseline not in known:
        there_are = f"{nearest(baseline, known)} ({', '.join(known)})" if known else ": none has one"
        yield "baseline", f"no entry has the label '{baseline}'{there_are}"
    if not baseline and tuple(columns) != COLUMNS:
        yield "columns", "stand beside a baseline: give `baseline` the label of an entry, or leave them out"
    if len(set(columns)) < len(columns):
        yield "columns", "one stands twice"
