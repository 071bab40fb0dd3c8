"""Reading a log's table with the fast or the tolerant reader; each fault gives one sentence with its position."""

from __future__ import annotations

import gzip
import re
from pathlib import Path

import numpy as np
import pytest

from analysis.importers.wandb.tables import Table, TableError, read_table

WANTED = ("_runtime", "_timestamp", "02_timing/opt_step_time_s", "01_general/minibatch_loss")
OPT = WANTED[2]
TEXT = (
    "_step,_runtime,_timestamp,02_timing/opt_step_time_s,01_general/minibatch_loss\n"
    "0,1,1001,,\n1,1,1001,0.5,-7.25\n2,2,1002,0.25,\n3,4,1004,,6.5\n"
)


def _read(tmp_path: Path, data: str | bytes, name: str = "a.csv") -> Table:
    path = tmp_path / name
    path.write_bytes(data.encode() if isinstance(data, str) else data)
    return read_table(path, name, WANTED)


def _fails(tmp_path: Path, data: str | bytes, name: str = "a.csv") -> str:
    with pytest.raises(TableError) as caught:
        _read(tmp_path, data, name)
    return str(caught.value)


def _same(table: Table, runtime: list[float]) -> None:
    assert table.get("_runtime").tolist() == runtime
    assert table.rows == len(runtime) == len(table.lines)


def test_intact_file_gives_no_notes(tmp_path: Path):
    table = _read(tmp_path, TEXT)
    _same(table, [1, 1, 2, 4])
    assert np.array_equal(table.get(OPT), [np.nan, 0.5, 0.25, np.nan], equal_nan=True)
    assert table.get("01_general/minibatch_loss")[1] == -7.25  # a loss may be negative
    assert table.notes == []
    assert table.lines.tolist() == [2, 3, 4, 5]


def test_compressed_and_plain_have_the_same_content(tmp_path: Path):
    plain, packed = _read(tmp_path, TEXT), _read(tmp_path, gzip.compress(TEXT.encode()), "b.csv.gz")
    _same(packed, [1, 1, 2, 4])
    assert plain.content == packed.content
    assert plain.sha256 != packed.sha256


def test_compression_is_detected_by_content(tmp_path: Path):
    _same(_read(tmp_path, TEXT, "a.csv.gz"), [1, 1, 2, 4])
    _same(_read(tmp_path, gzip.compress(TEXT.encode()), "b.csv"), [1, 1, 2, 4])


def test_two_gzip_members_are_one_file(tmp_path: Path):
    head, tail = TEXT.encode()[:120], TEXT.encode()[120:]
    _same(_read(tmp_path, gzip.compress(head) + gzip.compress(tail), "a.csv.gz"), [1, 1, 2, 4])


def test_crlf_bom_and_quotes_are_read(tmp_path: Path):
    _same(_read(tmp_path, "\ufeff" + TEXT.replace("\n", "\r\n").replace("0.25", '"0.25"')), [1, 1, 2, 4])


@pytest.mark.parametrize("cut", [1, 3, 6])
def test_truncated_last_line_is_skipped_and_reported(tmp_path: Path, cut: int):
    table = _read(tmp_path, TEXT[:-cut])
    _same(table, [1, 1, 2])
    assert table.notes == ["a.csv:5: the file ends in the middle of this line, which is skipped."]


def test_truncated_gz_gives_its_readable_part(tmp_path: Path):
    rows = "".join(f"{k},{k},{1000 + k},0.{k * 7919 % 99991},\n" for k in range(5000))
    packed = gzip.compress((TEXT + rows).encode())
    table = _read(tmp_path, packed[: len(packed) // 2], "a.csv.gz")
    assert 100 < table.rows < 5004
    assert "a.csv.gz: the .gz file is truncated or damaged" in table.notes[0]
    assert table.get("_runtime")[:4].tolist() == [1, 1, 2, 4]


def test_damaged_gz_gives_the_part_before_the_damage(tmp_path: Path):
    rows = "".join(f"{k},{k},{1000 + k},0.{k * 7919 % 99991},\n" for k in range(200_000))
    packed = bytearray(gzip.compress((TEXT + rows).encode()))
    packed[len(packed) // 2 : len(packed) // 2 + 64] = b"\xff" * 64
    table = _read(tmp_path, bytes(packed), "a.csv.gz")
    assert table.rows > 1000
    assert "truncated or damaged" in table.notes[0]


def test_text_in_a_number_column_is_reported(tmp_path: Path):
    table = _read(tmp_path, TEXT.replace("0.25", "fast"))
    _same(table, [1, 1, 2, 4])
    assert table.notes == [f"a.csv:4: column '{OPT}' is not a number ('fast'); it is treated as missing."]


def test_broken_lines_are_skipped(tmp_path: Path):
    noisy = TEXT.encode().replace(b"2,2,1002", b"\x00\xff\xfe\n2,2,1002") + b"9,9\n9,9\n"
    table = _read(tmp_path, noisy)
    _same(table, [1, 1, 2, 4])
    assert table.notes == ["a.csv:4: 1 cells, but the header has 5; 3 such lines are skipped."]
    assert table.lines.tolist() == [2, 3, 5, 6]


@pytest.mark.parametrize(
    ("word", "what"),
    [
        ("NaN", "is not a number ('NaN')"),
        ("inf", "is infinite"),
        ("-Infinity", "is infinite"),
        ("-0.25", "is negative"),
        ("1e300", "is over 1e+12"),
    ],
)
def test_impossible_values_are_missing_and_reported(tmp_path: Path, word: str, what: str):
    table = _read(tmp_path, TEXT.replace("0.25", word))
    assert np.array_equal(table.get(OPT), [np.nan, 0.5, np.nan, np.nan], equal_nan=True)
    assert table.notes == [f"a.csv:4: column '{OPT}' {what}; it is treated as missing."]


def test_line_numbers_are_right_after_skipped_lines(tmp_path: Path):
    table = _read(tmp_path, TEXT.replace("1,1,1001", "x\nx\n1,1,1001").replace("0.25", "-1"))
    assert table.notes[-1] == f"a.csv:6: column '{OPT}' is negative; it is treated as missing."


def test_missing_column_message_suggests_a_similar_one(tmp_path: Path):
    table = _read(tmp_path, TEXT.replace(OPT, "02_timing/optstep_time_s"))
    assert OPT not in table
    assert np.isnan(table.get(OPT)).all()
    assert table.missing(OPT, "so") == (
        f"a.csv:1: no column '{OPT}' (there is '02_timing/optstep_time_s'): so."
    )


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "a.csv: the file is empty."),
        (b"\x00\xff\x13\x37" * 500, "a.csv:1: not a known log"),
        (b"name,value\n1,2\n", "a.csv:1: not a known log"),
        (TEXT.splitlines()[0].encode() + b"\n", "a.csv: no rows below the header."),
        (TEXT.splitlines()[0].encode() + b"\nx\ny\n", "a.csv: none of its lines can be read."),
        (gzip.compress(TEXT.encode(), mtime=0)[:12], "a.csv:1: not a known log"),
    ],
)  # fmt: skip
def test_unusable_file_error_is_one_sentence(tmp_path: Path, data: bytes, why: str):
    assert _fails(tmp_path, data).startswith(why)


def test_missing_file_error_is_one_sentence(tmp_path: Path):
    with pytest.raises(TableError, match=re.escape("gone.csv: cannot be read: No such file")):
        read_table(tmp_path / "gone.csv", "gone.csv", WANTED)


def test_fast_and_tolerant_readers_agree(tmp_path: Path):
    rng = np.random.default_rng(0)
    values = rng.lognormal(size=(300, 3)) * 10.0 ** rng.integers(-12, 8, size=(300, 3))
    lines = [
        ",".join(["1", *(repr(float(v)) if rng.random() > 0.3 else "" for v in row), ""]) for row in values
    ]
    text = TEXT.splitlines()[0] + "\n" + "\n".join(lines) + "\n"
    quick, careful = _read(tmp_path, text), _read(tmp_path, text + "x\n", "b.csv")
    assert quick.notes == []
    assert len(careful.notes) == 1
    for name in WANTED:
        assert np.array_equal(quick.get(name), careful.get(name), equal_nan=True)
