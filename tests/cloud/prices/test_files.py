"""Invalid price books: all problems of a book are reported, each with its file and line."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from cloud.prices.book import PriceBook, PriceBookError, book_names, load
from cloud.prices.rows import COLUMNS

HEADER = ",".join(COLUMNS)
ROW = "gcp,egress,*,*,internet,GB,0,0.12,,,2023-04-01,here"
VM = "gcp,vm,*,*,T4:1/x/spot,h,0,1,60,1,2023-04-01,here"


def _sentence(*lines: str) -> str:
    with pytest.raises(PriceBookError) as caught:
        PriceBook.from_text("\n".join(lines) + "\n", "mine.csv")
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("row", "sentence"),
    [
        (ROW.replace("0.12", "€0.12"), "mine.csv:2: usd '€0.12' is not an amount in US dollars"),
        (ROW.replace("0.12", "0.12 EUR"), "mine.csv:2: usd '0.12 EUR' is not an amount in US dollars"),
        (ROW.replace("0.12", "0,12").replace("0,12", '"0,12"'), "mine.csv:2: usd '0,12' is not an amount"),
        (ROW.replace("0.12", ""), "mine.csv:2: usd '' is not an amount in US dollars"),
        (ROW.replace("0.12", "Infinity"), "mine.csv:2: usd 'Infinity' is not 0 or more"),
        (ROW.replace("0.12", "1e999"), "mine.csv:2: usd '1e999' is not an amount"),
        (ROW.replace("0.12", "1_0"), "mine.csv:2: usd '1_0' is not an amount"),
        (ROW.replace(",0,0.12", ",ten,0.12"), "mine.csv:2: tier_start 'ten' is not a number of units"),
        (ROW.replace(",0,0.12", ",-1,0.12"), "mine.csv:2: tier_start '-1' is not 0 or more"),
        (ROW.replace("2023-04-01", "2023-02-30"), "mine.csv:2: valid_from '2023-02-30' is not a date"),
        (ROW.replace("2023-04-01", "20230401"), "mine.csv:2: valid_from '20230401' is not a date"),
        (ROW.replace(",*,*,", ",us-centrall1,*,"), "mine.csv:2: from 'us-centrall1' is not one of *, US"),
        (ROW.replace(",*,*,", ",*,eu-west-1,"), "mine.csv:2: to 'eu-west-1' is not one of"),
        (VM.replace(",60,1,", ",60,0,"), "mine.csv:2: increment_s '0' is not 1 or more"),
        (VM.replace(",60,1,", ",60,1.5,"), "mine.csv:2: increment_s '1.5' is not a whole number"),
        (VM.replace(",h,", ",month,"), "mine.csv:2: unit 'month' of vm is not h"),
        ('gcp,egress,*,*,internet,GB,0,0.12,,,2023-04-01,"cut', "mine.csv:2: not a line of CSV"),
        (ROW[:30], "mine.csv:2: 8 cells, 12 columns"),
    ],
)
def test_a_wrong_row(row, sentence):
    assert _sentence(HEADER, row).startswith(sentence)


@pytest.mark.parametrize(
    ("header", "sentence"),
    [
        (
            HEADER.replace("unit", "units"),
            "mine.csv:1: no 'unit'; unknown 'units': the columns must be provider,",
        ),
        (HEADER.replace(",source", ""), "mine.csv:1: no 'source': the columns must be"),
        (HEADER + ",currency", "mine.csv:1: column 'currency': prices must be in US dollars"),
        (HEADER.replace("usd", "eur"), "mine.csv:1: prices must be in US dollars: there is no column 'usd'"),
        (HEADER.replace("from,to", "to,from"), "mine.csv:1: wrong order: the columns must be"),
        ("", "mine.csv:1: prices must be in US dollars"),
    ],
)
def test_a_wrong_header(header, sentence):
    assert _sentence(header, ROW).startswith(sentence)


def test_an_empty_file():
    with pytest.raises(PriceBookError, match=r"mine\.csv:1: the price book is empty"):
        PriceBook.from_text("", "mine.csv")


def test_all_problems_are_counted_and_five_are_reported():
    text = _sentence(HEADER, ROW.replace("GB", "TB"), VM, VM, ROW.replace(",0,0.12", ",5,0.12"), ROW[:10])
    assert "mine.csv:2: unit 'TB'" in text
    assert "mine.csv:6: 2 cells" in text
    assert "mine.csv:4: overlaps line 3" in text
    assert "mine.csv:5: the first tier begins at 5" in text
    many = _sentence(HEADER, *(ROW.replace("0.12", f"-{n}") for n in range(9)))
    assert many.count("is not 0 or more") == 5
    assert many.endswith("; 4 more problems")


def test_a_row_reports_each_of_its_problems():
    text = _sentence(
        HEADER, VM.replace(",h,", ",day,").replace(",60,1,", ",soon,1,"), ROW.replace(",here", ",")
    )
    assert "mine.csv:2: unit 'day' of vm is not h; mine.csv:2: minimum_s 'soon' is not a whole number" in text
    pasted = _sentence(
        HEADER, ROW.replace("0.12", "").replace(",here", ",")
    )  # a missing row as `orch plan` prints it
    assert "mine.csv:2: usd '' is not an amount in US dollars" in pasted
    assert pasted.endswith("mine.csv:2: the price has no source; write where it comes from")


def test_files_that_are_no_text(tmp_path):
    noise = tmp_path / "noise.csv"
    noise.write_bytes(f"{HEADER}\n{ROW}\n".encode() + b"gcp,\xff\xfe\x00\n")
    with pytest.raises(PriceBookError, match=r"noise\.csv:3: not text in UTF-8"):
        load(str(noise))
    folder = tmp_path / "folder.csv"
    folder.mkdir()
    with pytest.raises(PriceBookError, match=r"folder\.csv: cannot read the price book: Is a directory"):
        load(str(folder))
    with pytest.raises(PriceBookError, match="there is no such price book"):
        load(str(tmp_path / "missing.csv"))


def test_what_spreadsheets_write_is_read(tmp_path):
    """A byte order mark and CRLF line ends."""
    path = tmp_path / "own.csv"
    path.write_bytes(("\ufeff" + f"{HEADER}\n{ROW}\n".replace("\n", "\r\n")).encode())
    assert [price.line for price in load(str(path)).prices()] == [2]


@pytest.mark.parametrize("name", book_names())
def test_a_book_cut_anywhere_is_refused_or_shorter_but_never_a_traceback(name):
    text = load(name).text
    whole = len(load(name).prices())
    for cut in range(1, len(text), 997):
        try:
            found = PriceBook.from_text(text[:cut], name).prices()
        except PriceBookError as error:
            problems = str(error)
        else:
            problems = ""
            assert len(found) <= whole
        # Cut in its last cell, the source, a line is still whole.
        assert problems.startswith(f"{name}:") or text[:cut].splitlines()[-1].count(",") >= 11


def test_rows_pasted_with_their_header_are_read():
    book = PriceBook.from_text("\n".join([HEADER, ROW, HEADER, VM]) + "\n", "mine.csv")
    assert len(list(book.prices())) == 2


def test_a_pipe_is_refused_at_once(tmp_path: Path):
    os.mkfifo(tmp_path / "mine.csv")
    with pytest.raises(PriceBookError, match="not a regular file"):
        load(str(tmp_path / "mine.csv"))
