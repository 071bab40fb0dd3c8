"""Files .npy are read without pickled objects, and only if they have the bytes that their header promises."""

from __future__ import annotations

import contextlib
import io

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from cloud.storage.npy import read_npy


def npy(array, **options) -> bytes:
    file = io.BytesIO()
    np.save(file, array, **options)
    return file.getvalue()


def with_header(text: str, values: bytes = b"") -> bytes:
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text.encode() + values


@given(
    npst.arrays(npst.scalar_dtypes(), npst.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4)),
    st.booleans(),
)
def test_an_array_is_read_with_its_type_shape_and_order(array, by_column):
    written = np.array(array, order="F" if by_column else "C")
    found = read_npy(npy(written))
    assert (found.dtype, found.shape) == (array.dtype, array.shape)
    assert found.tobytes() == array.tobytes()
    assert found.flags.writeable


@given(st.binary(max_size=200), st.booleans())
def test_any_bytes_are_read_or_refused_as_a_value(data, with_magic):
    with contextlib.suppress(ValueError):
        assert isinstance(read_npy(b"\x93NUMPY\x01\x00" * with_magic + data), np.ndarray)


@given(st.integers(0, 200), st.integers(1, 40))
def test_missing_and_left_over_bytes_are_refused(cut, more):
    whole = npy(np.arange(9.0))
    assert read_npy(whole).tolist() == list(range(9))
    with pytest.raises(ValueError):  # noqa: PT011 - the header itself may be cut
        read_npy(whole[: min(cut, len(whole) - 1)])
    with pytest.raises(ValueError, match=f"it has {72 + more} bytes of values, and its header says 72"):
        read_npy(whole + b"x" * more)


def npz() -> bytes:
    file = io.BytesIO()
    np.savez(file, np.zeros(2))
    return file.getvalue()


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (b"", "does not begin as a .npy file"),
        (npz(), "does not begin as a .npy file"),
        (npy(np.array([{}], dtype=object), allow_pickle=True), "holds Python objects, which are not loaded"),
        (b"\x93NUMPY\x09\x00" + bytes(200), r"its header cannot be read \(format 9\.0 is not 1\.0 or 2\.0\)"),
        (with_header("{'descr': '<f8', 'fortran_order': False, 'shape': (-1,), }\n"), "side below 0"),
        (
            with_header("{'descr': '<f8', 'fortran_order': False, 'shape': (10**9, ), }\n"),
            "its header cannot be read",
        ),
    ],
)
def test_what_is_no_array_of_numbers_is_refused(data, sentence):
    with pytest.raises(ValueError, match=sentence):
        read_npy(data)


def test_a_size_that_is_not_there_takes_no_memory():
    huge = with_header(
        "{'descr': '<f8', 'fortran_order': False, 'shape': (1000000000000000,), }\n", b"12345678"
    )
    with pytest.raises(ValueError, match="it has 8 bytes of values, and its header says 8000000000000000"):
        read_npy(huge)
