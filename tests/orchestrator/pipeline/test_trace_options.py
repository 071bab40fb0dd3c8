"""Options of a trace."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.errors import UsageError
from orchestrator.pipeline.trace_options import worker_counts


@given(st.lists(st.integers(1, 256), min_size=1, max_size=8, unique=True))
def test_numbers_of_workers_are_sorted(counts: list[int]):
    assert worker_counts(",".join(map(str, counts))) == tuple(sorted(counts))


@given(st.text(max_size=12))
def test_any_text_is_numbers_or_refused(text: str):
    try:
        counts = worker_counts(text)
    except UsageError:
        return
    assert counts
    assert all(1 <= count <= 256 for count in counts)


@pytest.mark.parametrize("text", ["", "0", "-1", "1.5", "257", "1,", "9" * 30, "\u00b2"])
def test_what_is_no_number_of_workers_is_refused(text: str):
    with pytest.raises(UsageError, match="is not a whole number from 1 to 256"):
        worker_counts(text)
