from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments.tasks.word_errors import edit_distance, word_errors

WORDS = st.lists(st.sampled_from("abc"), max_size=6)


@pytest.mark.parametrize(
    ("reference", "hypothesis", "errors", "words"),
    [
        ("one two three", "one two three", 0, 3),
        ("one two three", "one too three", 1, 3),
        ("one two three", "one three", 1, 3),
        ("one two three", "one two two three", 1, 3),
        ("one two", "", 2, 2),
        ("", "one two", 2, 0),
        ("one  two\n", "two one", 2, 2),
        ("a b c d", "b c d a", 2, 4),
    ],
)
def test_word_errors(reference: str, hypothesis: str, errors: int, words: int) -> None:
    assert word_errors(reference, hypothesis) == (errors, words)


def _by_definition(a: list[str], b: list[str]) -> int:
    if not a or not b:
        return len(a) + len(b)
    return min(
        _by_definition(a[1:], b) + 1,
        _by_definition(a, b[1:]) + 1,
        _by_definition(a[1:], b[1:]) + (a[0] != b[0]),
    )


@given(WORDS, WORDS)
def test_the_distance_is_that_of_the_definition(a: list[str], b: list[str]) -> None:
    assert edit_distance(a, b) == _by_definition(a, b)
