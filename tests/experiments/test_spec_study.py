"""Study files: what they may say, what ships with orch, and where a mistake stands."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from experiments.spec.catalog import published
from experiments.spec.errors import SpecError
from experiments.spec.study import STUDIES, load_study, studies, study_schema


def test_the_paper_s_study_has_all_28_runs():
    study = load_study("paper-abc")
    keys = [member.key for member in study.members]
    numbers = [
        *(f"a{n}" for n in (1, 2, 3, 4, 6, 8)),
        *(f"b{n}" for n in (2, 4, 6, 8)),
        *(f"c{n}" for n in (3, 4, 6, 8)),
    ]
    assert keys == [f"geo-{n}{nlp}" for n in numbers for nlp in ("", "-nlp")]
    assert len(keys) == 28
    assert all(published(member.spec.name) for member in study.members)
    assert study.spec.contended_retries == 2


@pytest.mark.parametrize("name", studies())
def test_what_ships_loads_and_names_its_schema(name: str):
    study = load_study(name)
    assert study.spec.name == name
    assert study.text.startswith("# yaml-language-server: $schema=study.schema.json\n")


def test_the_schema_beside_the_studies_is_the_one_that_is_made():
    assert json.loads((STUDIES / "study.schema.json").read_text()) == study_schema()


def test_entries_with_labels_overrides_and_repeats(tmp_path: Path):
    study = load_study(
        _written(
            tmp_path,
            """
name: two
experiments:
  - geo-b2
  - {experiment: geo-b2, label: int8, set: {swarm.compression: uniform8bit, measure.epochs: 3}}
  - {experiment: geo-c8, repeats: 2}
""",
        )
    )
    assert [m.key for m in study.members] == ["geo-b2", "geo-b2-int8", "geo-c8-r1", "geo-c8-r2"]
    changed = study.members[1]
    assert (changed.label, changed.spec.swarm.compression, changed.spec.measure.epochs) == (
        "int8",
        "uniform8bit",
        3,
    )
    assert study.members[0].spec.swarm.compression == "float16"
    assert [m.repeat for m in study.members] == [1, 1, 1, 2]


def test_a_path_is_relative_to_the_study(tmp_path: Path):
    (tmp_path / "mine").mkdir()
    source = (STUDIES.parent / "library" / "local-2.yaml").read_text()
    (tmp_path / "mine" / "x.yaml").write_text(source)
    study = load_study(_written(tmp_path, "name: s\nexperiments: [./mine/x.yaml]\n"))
    assert study.members[0].spec.name == "local-2"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("name: s\nexperiments: [geo-b2, geo-c9]\n", "s.yaml:2:23: experiments[1].experiment: geo-c9: no such file"),
        ("name: s\nexperiments:\n  - geo-b2\n  - geo-b2\n", "s.yaml:4:5: experiments[1]: 'geo-b2' stands twice"),
        ("name: s\nexperiment: [geo-b2]\n", "unknown key 'experiment'; did you mean 'experiments'?"),
        ("name: S\nexperiments: [geo-b2]\n", "s.yaml:1:7: name: 'S' is not a study's name"),
        ("name: s\nexperiments: []\n", "must be at least 1"),
        ("name: s\nexperiments: [geo-b2]\ncontended_retries: 3\n", "s.yaml:3:20: contended_retries"),
        ("name: s\nexperiments: [geo-b2]\ncompare: {limits: none.csv}\n", "s.yaml:3:19: compare.limits"),
        (
            "name: s\nexperiments:\n  - experiment: geo-b2\n    set: {swarm.batch_siz: 1}\n",
            "s.yaml:4:28: experiments[0].set.swarm.batch_siz: swarm.batch_siz: unknown key",
        ),
        ("- geo-b2\n", "a study is a mapping"),
        (
            f"name: s\nexperiments: [{{experiment: geo-c8-nlp, label: {'x' * 25}, set: {{name: geo-c8-of-a-longer-name}}}}]\n",
            "longer than 46 characters",
        ),
        (
            "name: s\nexperiments: [{experiment: geo-b2, repeats: 2}, {experiment: geo-b2, label: r1}]\n",
            "two entries would both be called geo-b2-r1",
        ),
    ],
)  # fmt: skip
def test_mistakes_are_told_with_their_place(tmp_path: Path, text: str, says: str):
    with pytest.raises(SpecError) as caught:
        load_study(_written(tmp_path, text))
    assert says in str(caught.value)


def test_all_mistakes_at_once(tmp_path: Path):
    with pytest.raises(SpecError) as caught:
        load_study(
            _written(
                tmp_path, "name: s\nexperiments: [geo-x1, geo-x2, {experiment: geo-b2, set: {seed: -1}}]\n"
            )
        )
    assert len(caught.value.problems) == 3


def test_an_unknown_name_lists_the_studies():
    with pytest.raises(SpecError, match=r"paper-abd: no such study file.*did you mean 'paper-abc'"):
        load_study("paper-abd")


def _written(folder: Path, text: str) -> str:
    path = folder / "s.yaml"
    path.write_text(text)
    return str(path)
