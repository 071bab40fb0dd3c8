"""Extrapolations against numbers worked out by hand, and sizes against real tars."""

from __future__ import annotations

import io
import tarfile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis.pipeline.extrapolate import extrapolate, tar_bytes


def test_the_whole_is_the_mean_times_the_number_of_samples() -> None:
    found = extrapolate(100, [10, 12, 14], [0.1, 0.2, 0.3], [15, 12])
    assert found.stored_bytes.value == pytest.approx(1200)
    # t(2) = 4.3027, standard error 200 / sqrt(3)
    assert found.stored_bytes.low == pytest.approx(1200 - 4.3027 * 200 / 3**0.5, rel=1e-4)
    assert found.stored_bytes.n == 3
    assert found.offline_s is not None
    assert found.offline_s.value == pytest.approx(20)
    assert found.second_samples == 2
    assert found.second_error_percent == pytest.approx(12.5)


def test_what_was_not_measured_is_unknown() -> None:
    found = extrapolate(100, [10], None, [])
    assert (found.offline_s, found.second_error_percent) == (None, None)
    assert (found.stored_bytes.low, found.stored_bytes.high) == (None, None)
    with pytest.raises(ValueError, match="no sample"):
        extrapolate(100, [], None, [])


@given(st.lists(st.integers(0, 3000), min_size=1, max_size=8))
def test_a_sample_takes_what_it_takes_in_a_tar(sizes: list[int]) -> None:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for number, size in enumerate(sizes):
            info = tarfile.TarInfo(f"{number}.bin")
            info.size = size
            tar.addfile(info, io.BytesIO(bytes(size)))
        end = tar.offset
    assert tar_bytes(sizes) == end
