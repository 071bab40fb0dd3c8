"""Word error rate: word-level edit distance over the words of the reference."""

from __future__ import annotations

from collections.abc import Sequence


def edit_distance(reference: Sequence[str], hypothesis: Sequence[str]) -> int:
    """Fewest substitutions, insertions and deletions that turn one sequence into the other (Levenshtein 1966)."""
    row = list(range(len(hypothesis) + 1))
    for i, word in enumerate(reference, start=1):
        diagonal, row[0] = row[0], i
        for j, other in enumerate(hypothesis, start=1):
            diagonal, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, diagonal + (word != other))
    return row[-1]


def word_errors(reference: str, hypothesis: str) -> tuple[int, int]:
    """Return (wrong words, words of the reference). Words are separated by white space and compared as they are."""
    words = reference.split()
    return edit_distance(words, hypothesis.split()), len(words)
