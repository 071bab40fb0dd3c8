"""Photos from a real store come out bit for bit the same however they are read; benchmarks/same_tensors.py has more of them."""

from __future__ import annotations

import pytest

from benchmarks.same_tensors import compare

pytestmark = [pytest.mark.processes, pytest.mark.timeout(180)]


def test_all_ways_of_reading_give_the_same_tensors() -> None:
    rows: list[str] = []
    assert compare(40, ("zlib", "webp"), rows.append), "\n".join(rows)
    assert len(rows) == 11
