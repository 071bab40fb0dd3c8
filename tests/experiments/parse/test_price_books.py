"""`prices`: names of books, CSV files and several of them; where files are looked for and what is said of wrong ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from cloud.prices.rows import COLUMNS
from experiments.parse.load import from_document, load, to_document
from experiments.schema.errors import SpecError
from experiments.study_file.load import load_study

GOOD = ",".join(COLUMNS) + "\nr2,store_egress,*,*,*,GB,0,0.3,,,2026-11-21,contract\n"
EXPERIMENT = (Path(__file__).parents[3] / "experiments/library/geo-b2.yaml").read_text()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An experiment in `there`, and another folder, `here`, to work in."""
    for name in ("there", "here"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path / "here")
    (tmp_path / "there" / "mine.csv").write_text(GOOD)
    return tmp_path


def write(folder: Path, prices: str) -> str:
    (folder / "there" / "e.yaml").write_text(f"{EXPERIMENT}prices: {prices}\n")
    return str(folder / "there" / "e.yaml")


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("mine.csv", "{}/there/mine.csv"),
        ("[list-2026-11, ./mine.csv]", "list-2026-11,{}/there/mine.csv"),
        ("auto, mine.csv", "auto,{}/there/mine.csv"),
        ("[list-2026-11]", "list-2026-11"),
    ],
)
def test_a_file_is_beside_the_experiment(written: str, expected: str, folder: Path):
    assert load(write(folder, written)).prices == expected.format(folder)


@pytest.mark.parametrize("form", ["prices=auto,mine.csv", "prices=[auto, mine.csv]"])
def test_a_file_of_an_override_is_in_the_working_directory(form: str, folder: Path):
    with pytest.raises(SpecError, match=r"^--set prices=.*here/mine\.csv: there is no such price book"):
        load(write(folder, "mine.csv"), [form])
    (folder / "here" / "mine.csv").write_text(GOOD)
    assert load(write(folder, "mine.csv"), [form]).prices == f"auto,{folder}/here/mine.csv"


def test_an_override_of_one_element_leaves_the_others_beside_the_experiment(folder: Path):
    (folder / "here" / "mine.csv").write_text(GOOD)
    spec = load(write(folder, "[auto, mine.csv, mine.csv]"), ["prices[2]=mine.csv"])
    assert spec.prices == f"auto,{folder}/there/mine.csv,{folder}/here/mine.csv"


def test_a_file_named_beside_a_study_is_beside_the_study(folder: Path):
    study = folder / "there" / "s.yaml"
    study.write_text("name: s\nexperiments: [{experiment: geo-a2, set: {prices: [auto, mine.csv]}}]\n")
    (member,) = load_study(str(study)).members
    assert member.spec.prices == f"auto,{folder}/there/mine.csv"


@pytest.mark.parametrize(
    ("prices", "said"),
    [
        (
            "list-2026-12",
            "unknown price book 'list-2026-12' (known: auto, list-2026-11, study-2023-04; or a file",
        ),
        ("[mine.csv, auto]", "'auto' must be the first"),
        ("~no-such-user/mine.csv", "~no-such-user/mine.csv: the home folder of this user is unknown"),
        ('"a\\0.csv"', "not the path of a file (embedded null byte)"),
        ("none.csv", "there/none.csv: there is no such price book"),
        ("[auto, wrong.csv]", "prices: wrong.csv:2: usd '' is not an amount in US dollars"),
        ("[]", "prices: "),
        ("[1]", "prices: "),
    ],
)
def test_wrong_books_are_told_with_the_line_of_the_experiment(prices: str, said: str, folder: Path):
    (folder / "there" / "wrong.csv").write_text(GOOD.replace("0.3", ""))
    with pytest.raises(SpecError) as caught:
        load(write(folder, prices))
    line = len(EXPERIMENT.splitlines()) + 1
    assert str(caught.value).startswith(f"{folder}/there/e.yaml:{line}:")
    assert said in str(caught.value)
    assert len(caught.value.problems) == 1


def test_a_folder_with_a_comma_is_told(tmp_path: Path):
    (tmp_path / "a,b").mkdir()
    (tmp_path / "a,b" / "e.yaml").write_text(f"{EXPERIMENT}prices: mine.csv\n")
    with pytest.raises(SpecError, match="must have no comma in its path"):
        load(str(tmp_path / "a,b" / "e.yaml"))


def test_an_experiment_is_read_again_without_the_file(folder: Path):
    document = to_document(load(write(folder, "[auto, mine.csv]")))
    (folder / "there" / "mine.csv").unlink()
    assert from_document(document).prices == f"auto,{folder}/there/mine.csv"
