"""NumPy's file format .npy, read without trust: no pickled objects, no size that the bytes do not have."""

from __future__ import annotations

import io
from typing import Any

_MAGIC = b"\x93NUMPY"


def read_npy(data: bytes) -> Any:
    """Return the numpy.ndarray that the bytes of a .npy file hold.

    The header is compared with the number of bytes before memory is taken for the array. Raises ValueError, also for an
    .npz, for an array of Python objects, and for bytes that are missing or left over.
    """
    import numpy as np

    if not data.startswith(_MAGIC):
        raise ValueError("it does not begin as a .npy file")
    file = io.BytesIO(data)
    try:
        version = np.lib.format.read_magic(file)
        read_header = {
            (1, 0): np.lib.format.read_array_header_1_0,
            (2, 0): np.lib.format.read_array_header_2_0,
        }.get(version)
        if read_header is None:
            raise ValueError(f"format {version[0]}.{version[1]} is not 1.0 or 2.0")
        shape, _, dtype = read_header(file)
    except Exception as error:  # numpy parses the header as Python's literals and raises what that raises
        raise ValueError(f"its header cannot be read ({error})") from error
    if dtype.hasobject:
        raise ValueError("it holds Python objects, which are not loaded")
    wanted = dtype.itemsize
    for side in shape:
        if side < 0:
            raise ValueError(f"its shape {shape} has a side below 0")
        wanted *= side
    present = len(data) - file.tell()
    if present != wanted:
        raise ValueError(f"it has {present} bytes of values, and its header says {wanted}")
    file.seek(0)
    return np.load(file, allow_pickle=False)
