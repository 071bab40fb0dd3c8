"""Reading the published profile, and what is wrong with one."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest

from analysis.pipeline.offload.sophon_file import SampleProfileError, read_sophon

HEAD = "index;raw;decoding;original_shape;RandomResizedCrop;\n"


def write(folder: Path, text: str, name: str = "sizes.csv") -> Path:
    """Write a file."""
    (folder / name).write_text(text)
    return folder / name


def test_the_header_of_python_s_objects_is_subtracted(tmp_path: Path):
    sizes = write(tmp_path, f"{HEAD}0;1033;3033;(10, 100);150561;\n7;2033;3033;(10, 100);150561;\n")
    times = write(tmp_path, f"{HEAD}7;0;0.5;(10, 100);0.25;\n0;0;0.016;(10, 100);0.002;\n", "times.csv")
    found = read_sophon(sizes)
    assert (list(found.keys), found.ops, found.op_s) == (["0", "7"], ("decoding", "RandomResizedCrop"), None)
    assert found.raw_bytes.tolist() == [1000, 2000]
    assert found.size_bytes.tolist() == [[3000, 150_528], [3000, 150_528]]
    timed = read_sophon(sizes, times)
    assert timed.op_s is not None
    assert timed.op_s.tolist() == [[0.016, 0.002], [0.5, 0.25]]
    marked = tmp_path / "excel.csv"
    marked.write_bytes(b"\xef\xbb\xbf" + sizes.read_bytes())
    assert list(read_sophon(marked).keys) == ["0", "7"]
    packed = tmp_path / "sizes.csv.gz"
    packed.write_bytes(gzip.compress(sizes.read_bytes()))
    assert np.array_equal(read_sophon(packed).size_bytes, found.size_bytes)


def test_the_published_sizes(sophon_sizes: Path):
    found = read_sophon(sophon_sizes)
    assert found.sizes.shape == (20_000, 6)
    assert found.ops == ("decoding", "RandomResizedCrop", "RandomHorizontalFlip", "ToTensor", "Normalize")
    assert set(found.size_bytes[:, 1]) == {150_528.0}
    assert set(found.size_bytes[:, 3]) == {602_112.0}
    assert np.count_nonzero(found.smallest) == 15_017


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "sizes.csv:1: the first line does not name the columns"),
        ("index;raw;original_shape\n", "sizes.csv:1: the first line does not name the columns"),
        ("index;raw;decoding;decoding\n", "sizes.csv:1: the first line does not name the columns"),
        (HEAD, "sizes.csv: it has no samples"),
        (f"{HEAD}0;1033;3033;x\n", "sizes.csv:2: 4 values, not 6"),
        (f"{HEAD}0;1;2;x;3;4;5\n", "sizes.csv:2: 7 values, not 6"),
        (f"{HEAD}\n\n0;1033;3033;x;32;\n", "sizes.csv:4: a size is below 33 bytes"),
        (f"{HEAD}0;1e16;3033;x;99;\n", "sizes.csv:2: raw is '1e16'"),
        (f"{HEAD}0;1033;;x;150561;\n", "sizes.csv:2: decoding is '', not a number from 0 to 1e+15"),
        (
            f"{HEAD}0;1033;3033;x;99;\n1;-5;3033;x;99;\n",
            "sizes.csv:3: raw is '-5', not a number from 0 to 1e+15",
        ),
        (f"{HEAD}0;1033;nan;x;99;\n", "sizes.csv:2: decoding is 'nan'"),
        (f"{HEAD}0;1033;inf;x;99;\n", "sizes.csv:2: decoding is 'inf'"),
        (f"{HEAD}0;1033;3033;x;32;\n", "sizes.csv:2: a size is below 33 bytes"),
        (f"{HEAD}0;1033;3033;x;99;\n0;1033;3033;x;99;\n", "sizes.csv:3: sample 0 is there twice"),
    ],
)
def test_what_is_wrong_is_said_with_its_line(tmp_path: Path, text: str, words: str):
    with pytest.raises(SampleProfileError) as refused:
        read_sophon(write(tmp_path, text))
    assert words in str(refused.value)


def test_what_is_wrong_with_files(tmp_path: Path):
    sizes = write(tmp_path, f"{HEAD}0;1033;3033;x;99;\n1;1033;3033;x;99;\n")
    other = write(tmp_path, "index;raw;resize;original_shape;\n0;1;1;x;\n", "other.csv")
    few = write(tmp_path, f"{HEAD}0;0;1;x;1;\n", "few.csv")
    (tmp_path / "broken.csv.gz").write_bytes(gzip.compress(sizes.read_bytes())[:-9])
    (tmp_path / "bytes.csv").write_bytes(b"\xff\xfe\x00")
    for arguments, words in (
        ((tmp_path / "none.csv",), "none.csv: cannot be read"),
        ((tmp_path / "broken.csv.gz",), "broken.csv.gz: cannot be read"),
        ((sizes.with_name("sizes.csv.gz"),), "cannot be read"),
        ((tmp_path / "bytes.csv",), "bytes.csv: not text with semicolons"),
        ((sizes, sizes), "sizes.csv: the times are the file of sizes"),
        ((sizes, other), "other.csv:1: its operations are resize, not decoding, RandomResizedCrop"),
        ((sizes, few), "few.csv: it has no times of sample 1 (1 of 2 are missing)"),
    ):
        with pytest.raises(SampleProfileError) as refused:
            read_sophon(*arguments)
        assert words in str(refused.value)
