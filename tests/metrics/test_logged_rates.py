"""The study's mean of logged rates against pandas, which its authors used, and what our rate leaves out."""

from __future__ import annotations

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from metrics.logged_rates import LoggedRate, left_out, paper_throughput


def rates(*rows: tuple[int | None, float | None]) -> list[LoggedRate]:
    return [LoggedRate(*row) for row in rows]


@given(st.lists(st.floats(min_value=0, max_value=1e4), min_size=2, max_size=8), st.integers(0, 3))
def test_mean_is_that_of_the_authors_notebook(logged: list[float], empty: int):
    # A rate stands in one row of many; the notebook cuts from behind the first rate to the last and takes the mean.
    column = [v for value in logged for v in (*[None] * empty, value)]
    frame = pd.DataFrame({"samples_per_sec": pd.Series(column, dtype=float)})
    known = frame.query("samples_per_sec.notna()").index
    theirs = frame[known[0] + 1 : known[-1] + 1]["samples_per_sec"].mean()
    ours = paper_throughput(rates(*((k + 1, sps) for k, sps in enumerate(logged))))
    if not any(logged[1:]):
        assert ours is None
    else:
        assert ours is not None
        assert (ours.value, ours.n) == (pytest.approx(theirs), len(logged) - 1)


def test_without_a_second_row_there_is_no_mean():
    assert paper_throughput([]) is None
    assert paper_throughput(rates((1, 70.0))) is None
    assert paper_throughput(rates((1, None), (2, None))) is None


@pytest.mark.parametrize(
    ("logged", "measured", "said"),
    [
        ([(1, 9.0), (2, 9.0), (3, 9.0)], {2, 3}, ""),
        ([(1, 0.0), (2, 9.0)], {2}, ""),  # the study drops the first too
        (
            [(1, 9.0), (2, 9.0), (3, 0.0), (4, 9.0), (4, 9.0), (5, 0.0)],
            {2, 4},
            "epochs 3 and 5: rate 0; epoch 4: recorded twice, only the first record is used",
        ),
        (
            [(1, 9.0), (2, 9.0), (1, 0.0), (2, 9.0), (2, 9.0)],
            {2},
            "epoch 1: recorded twice, only the first record is used (1 of them with rate 0); "
            "epoch 2: recorded 3 times, only the first record is used",
        ),
        ([(4, 9.0), (5, 9.0), (1, 9.0)], {5}, "epoch 1: recorded after epoch 5"),
        ([(1, 9.0), (2, 9.0), (3, 9.0)], {3}, "epoch 2: no wall time, or not reported by every peer"),
        (
            [(None, 9.0), (7, 9.0), (None, 9.0), (8, 9.0)],
            {8},
            "epoch 7: the first epoch with a number, so the warm-up; 1 record without an epoch number",
        ),
        ([(1, 9.0), (2, None)], {2}, ""),  # no rate that the study could count
    ],
)
def test_records_left_out_are_named_with_the_reason(
    logged: list[tuple[int | None, float | None]], measured: set[int], said: str
):
    assert left_out(rates(*logged), measured) == said
