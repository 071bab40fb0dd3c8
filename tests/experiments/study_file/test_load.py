"""Study files: what they may say, what ships with orch, and where a mistake stands."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from experiments.catalog import models, published
from experiments.emulation.scales import resolve_emulation
from experiments.emulation.windows import windows_of
from experiments.parse.load import load
from experiments.schema.errors import SpecError
from experiments.study_file.expectations import of_row
from experiments.study_file.load import STUDIES, load_study, studies, study_schema


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


def test_accuracy_study_differs_only_in_what_is_not_learned():
    study = load_study("accuracy-c8")
    assert study.spec.compare.held_out is not None
    both = study.spec.compare.held_out
    sides = [[m.spec for m in study.members if m.spec.name == name] for name in (both.of, both.against)]
    assert [[spec.seed for spec in side] for side in sides] == [[1, 2, 3]] * 2
    swarm, alone = (side[0] for side in sides)
    for name in ("target_batch_size", "batch_size", "optimizer"):
        assert getattr(swarm.swarm, name) == getattr(alone.swarm, name)
    assert (swarm.data, swarm.measure) == (alone.data, alone.measure)
    assert swarm.measure.warmup_epochs + swarm.measure.epochs >= 20
    c8 = load("geo-c8")
    assert swarm.peers == c8.peers
    assert swarm.swarm.optimizer == c8.swarm.optimizer
    assert (alone.swarm.plain, alone.peer_count) == (True, 1)
    plans = [resolve_emulation(spec, 2) for spec in (swarm, alone)]
    assert plans[0].raw_target_batch_size == plans[1].raw_target_batch_size == 4096
    for spec, plan in zip((swarm, alone), plans, strict=True):
        (coalesce,) = plan.coalesce.values()  # whole reports: no peer goes beyond the target
        assert 4096 % (spec.peer_count * spec.swarm.batch_size * coalesce) == 0
    assert [plan.parameters > models()["digits"].parameters for plan in plans] == [True, False]  # ballast


def test_path_model_study_has_all_experiments_with_several_peers_per_region():
    study = load_study("path-model")
    pairs = [study.members[n : n + 2] for n in range(0, len(study.members), 2)]
    assert [[m.label for m in pair] for pair in pairs] == [["with", "without"]] * len(pairs)
    for one, other in pairs:
        assert one.spec.emulation.path_model == "study"
        calm = other.spec.emulation.model_copy(update={"path_model": "study"})
        assert one.spec == other.spec.model_copy(update={"emulation": calm})
    several = {
        member.key
        for member in load_study("paper-abc").members
        if member.key.endswith("-nlp")
        and len(member.spec.peers) > 1
        and max(group.count for group in member.spec.peers) > 1
    }
    assert {pair[0].key.removesuffix("-with") for pair in pairs} == several


@pytest.mark.parametrize("name", studies())
def test_shipped_studies_load_and_name_their_schema(name: str):
    study = load_study(name)
    assert study.spec.name == name
    assert study.text.startswith("# yaml-language-server: $schema=study.schema.json\n")


def test_shipped_study_schema_is_up_to_date():
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


def test_the_options_of_c8_differ_in_nothing_but_the_options():
    study = load_study("beyond-c8")
    assert study.spec.compare.baseline == "kernel"
    of_label = {(m.spec.name, m.label): m.spec for m in study.members}
    for name in ("geo-c8", "geo-c8-nlp"):
        base = of_label[name, "kernel"]
        assert [m.repeat for m in study.members if (m.spec.name, m.label) == (name, "kernel")] == [1, 2, 3]
        own = {label: spec for (other, label), spec in of_label.items() if other == name}
        assert set(own) >= {
            "default",
            "kernel",
            "wan",
            "none",
            "uniform8bit",
            "blockwise8bit",
            "powersgd",
            "hierarchical",
            "delayed",
            "best",
        }
        for label, spec in own.items():
            assert (spec.seed, spec.measure, spec.peers) == (base.seed, base.measure, base.peers)
            assert spec.swarm.target_batch_size == base.swarm.target_batch_size
            assert spec.emulation is not None
            assert spec.emulation.path_model == "study-calm"
            assert windows_of(spec.emulation, spec.network_tuning) == (
                "paced" if label == "default" else "kernel"
            )
        plain = base.model_copy(update={"network_tuning": "wan", "emulation": own["wan"].emulation})
        assert own["wan"] == plain


def test_a_path_is_relative_to_the_study(tmp_path: Path):
    (tmp_path / "mine").mkdir()
    source = (STUDIES.parent / "library" / "local-2.yaml").read_text()
    (tmp_path / "mine" / "x.yaml").write_text(source)
    study = load_study(_written(tmp_path, "name: s\nexperiments: [./mine/x.yaml]\n"))
    assert study.members[0].spec.name == "local-2"


_ROWS = "name: s\nexperiments: [{experiment: geo-a8, label: x}, geo-a8-nlp]\n"


def _expect(entry: str) -> str:
    rows = "{experiment: geo-a8, label: x}, {experiment: geo-a8, label: y}"
    return f"name: s\nexperiments: [{rows}]\ncompare: {{baseline: x, expect: [{entry}]}}\n"


def test_expectations_of_c8_refer_to_existing_rows():
    study = load_study("beyond-c8")
    rows = {(m.spec.name, m.label): m.spec.model for m in study.members}
    asked = {(key, one.figure, one.words) for one in study.spec.compare.expect for key in of_row(rows, one)}
    nlp, cv = "geo-c8-nlp", "geo-c8"
    assert {
        ((nlp, "wan"), "sps", "within 10 %"),
        ((nlp, "wan"), "sps", "at least 1.4"),
        ((nlp, "hierarchical"), "intercontinental_bytes", "at most 0.53"),
        ((cv, "hierarchical"), "intercontinental_bytes", "at most 0.53"),
        ((nlp, "hierarchical"), "usd_per_1m", "at least 1.5 times lower"),
        ((cv, "best"), "usd_per_1m", "at least 1.5 times lower"),
        ((cv, "wan-hierarchical"), "heldout_loss", "within noise"),
        *(((name, "none"), loss, "within noise") for name in (nlp, cv) for loss in ("loss", "heldout_loss")),
    } <= asked
    assert {key[1] for key, figure, words in asked if figure in ("loss", "heldout_loss") and words} == {
        "wan", "hierarchical", "wan-hierarchical", "none",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("name: s\nexperiments: [geo-b2, geo-c9]\n", "s.yaml:2:23: experiments[1].experiment: geo-c9: the library has none"),
        ("name: s\nexperiments:\n  - geo-b2\n  - geo-b2\n", "s.yaml:4:5: experiments[1]: 'geo-b2' is a duplicate of entry 0"),
        ("name: s\nexperiment: [geo-b2]\n", "unknown key 'experiment'; did you mean 'experiments'?"),
        ("name: S\nexperiments: [geo-b2]\n", "s.yaml:1:7: name: 'S' is not a study's name"),
        ("name: s\nexperiments: []\n", "must be at least 1"),
        ("name: s\nexperiments: [geo-b2]\ncontended_retries: 3\n", "s.yaml:3:20: contended_retries"),
        ("name: s\nexperiments: [geo-b2]\ncompare: {limits: none.csv}\n", "s.yaml:3:19: compare.limits"),
        (
            "name: s\nexperiments:\n  - experiment: geo-b2\n    set: {swarm.batch_siz: 1}\n",
            "s.yaml:4:28: experiments[0].set.swarm.batch_siz: swarm.batch_siz: unknown key",
        ),
        (
            "name: s\nexperiments: [geo-b2, geo-a2]\ncompare:\n  held_out: {of: geo-b3, against: geo-a2}\n",
            "s.yaml:4:18: compare.held_out.of: this study has no experiment 'geo-b3'; did you mean 'geo-b2'?",
        ),
        (
            "name: s\nexperiments: [geo-b2]\ncompare: {held_out: {of: geo-b2, against: geo-b2}}\n",
            "compare.held_out.against: 'geo-b2' would be compared with itself",
        ),
        ("- geo-b2\n", "a study is a mapping"),
        (
            "name: s\nexperiments: [geo-a8, {experiment: geo-c8, label: kernel}]\ncompare: {baseline: kernal}\n",
            "s.yaml:3:21: compare.baseline: no entry has the label 'kernal'; did you mean 'kernel'? (kernel)",
        ),
        ("name: s\nexperiments: [geo-a8]\ncompare: {baseline: x}\n", "no entry has the label 'x': no entry has a label"),
        (
            "name: s\nexperiments: [{experiment: geo-a8, label: x}, {experiment: geo-c8, against: y}]\ncompare: {baseline: x}\n",
            "s.yaml:2:77: experiments[1].against: no entry has the label 'y' (x)",
        ),
        (
            "name: s\nexperiments: [{experiment: geo-a8, label: x, against: x}]\n",
            "experiments[0].against: needs a baseline",
        ),
        (
            f"{_ROWS}compare: {{baseline: x}}\n",
            "s.yaml:3:21: compare.baseline: no entry of the model RoBERTaXLM has the label 'x', so there is nothing",
        ),
        (
            _ROWS.replace("geo-a8-nlp", "{experiment: geo-a8-nlp, against: x}") + "compare: {baseline: x}\n",
            "s.yaml:2:81: experiments[1].against: no entry of geo-a8-nlp or of its model RoBERTaXLM with the label 'x'",
        ),
        (_expect("{row: y, figure: speed}"), "s.yaml:3:50: compare.expect[0].figure: found 'speed'; must be one of sps"),
        (
            _expect("{row: z, figure: sps}"),
            "s.yaml:3:39: compare.expect[0].row: no entry has the label 'z' and no experiment has that name (x, geo-a8, y)",
        ),
        (_expect("{row: y, experiment: geo-a9, figure: sps}"), "compare.expect[0].experiment: this study has no experiment"),
        (_expect("{row: y, against: geo-a9, figure: sps}"), "compare.expect[0].against: no entry has the label 'geo-a9'"),
        (_expect("{row: x, figure: sps}"), "compare.expect[0].against: geo-a8 x would be compared with itself"),
        (_expect("{row: geo-a8, against: x, figure: sps}"), "compare.expect[0].against: geo-a8 x would be compared with itself"),
        (_expect("{row: y, against: geo-a8, figure: sps}"), "compare.expect[0].against: several rows match 'geo-a8' for geo-a8 y"),
        (_expect("{row: y, figure: sps, at_least: 1, within: 0.1}"), "compare.expect[0]: has 2 limits (at_least, within)"),
        (_expect("{row: y, figure: loss, at_most: 1}"), "compare.expect[0].at_most: a loss is judged by its difference"),
        (_expect("{row: y, figure: sps, within_noise: true}"), "compare.expect[0].within_noise: 'within_noise' applies to"),
        (
            "name: s\nexperiments: [geo-a8]\ncompare: {expect: [{row: geo-a8, figure: sps}]}\n",
            "compare.expect: needs a baseline",
        ),
        ("name: s\nexperiments: [geo-a8]\ncompare: {columns: [sps]}\n", "compare.columns: need a baseline"),
        (
            "name: s\nexperiments: [{experiment: geo-a8, label: x}]\ncompare: {baseline: x, columns: [sps, sps]}\n",
            "compare.columns: contain a figure twice",
        ),
        (
            "name: s\nexperiments: [{experiment: geo-a8, label: x}]\ncompare: {baseline: x, columns: [speed]}\n",
            "compare.columns[0]",
        ),
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
def test_errors_have_a_position(tmp_path: Path, text: str, says: str):
    with pytest.raises(SpecError) as caught:
        load_study(_written(tmp_path, text))
    assert says in str(caught.value)


def test_bare_name_is_looked_up_in_the_library_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "geo-c8.yaml").write_text(_library("geo-c8").replace("32768", "4096"))
    (tmp_path / "geo-b2").write_text("no experiment")
    (tmp_path / "geo-e-a-1").mkdir()
    loaded = load_study(_written(tmp_path, "name: s\nexperiments: [geo-c8, geo-b2, geo-f-a-1-nlp]\n"))
    assert [m.spec.swarm.target_batch_size for m in loaded.members] == [32768] * 3
    own = load_study(_written(tmp_path, "name: s\nexperiments: [geo-c8.yaml]\n"))
    assert own.members[0].spec.swarm.target_batch_size == 4096


@pytest.mark.parametrize("folder", [".", "sub"])
def test_file_is_relative_to_the_study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: str):
    monkeypatch.chdir(tmp_path)
    beside = tmp_path / folder
    beside.mkdir(exist_ok=True)
    (beside / "own.yaml").write_text(_library("local-2"))
    if folder != ".":
        (tmp_path / "own.yaml").write_text("not this one")
        (tmp_path / "else.yaml").write_text(_library("geo-c8"))
    (beside / "s.yaml").write_text("name: s\nexperiments: [own.yaml]\n")
    assert load_study(f"{folder}/s.yaml").members[0].spec.name == "local-2"
    for name in ("else.yaml", "./geo-c8", "own"):
        (beside / "s.yaml").write_text(f"name: s\nexperiments: [{name}]\n")
        with pytest.raises(SpecError, match=r"experiments\[0\].experiment"):
            load_study(f"{folder}/s.yaml")


def test_matrix_or_family_expands_to_all_its_experiments(tmp_path: Path):
    text = _library("local-2").replace("name: local-2", "name: m-${matrix.seed}")
    text = text.replace("seed: 0", "seed: ${matrix.seed}")
    (tmp_path / "m.yaml").write_text(f"{text}matrix: {{seed: [1, 2, 3]}}\n")
    study = load_study(_written(tmp_path, "name: s\nrepeats: 2\nexperiments: [./m.yaml]\n"))
    assert [m.key for m in study.members] == ["m-1-r1", "m-1-r2", "m-2-r1", "m-2-r2", "m-3-r1", "m-3-r2"]
    chosen = load_study(
        _written(
            tmp_path,
            "name: s\nexperiments: [{experiment: m.yaml, matrix: [seed=2], label: x, judged: true}]\n",
        )
    )
    assert [(m.key, m.spec.seed, m.judged) for m in chosen.members] == [("m-2-x", 2, True)]
    family = load_study(_written(tmp_path, "name: s\nexperiments: [{experiment: geo-e-a, matrix: [n=2]}]\n"))
    assert [m.key for m in family.members] == ["geo-e-a-2", "geo-e-a-2-nlp"]
    assert len(load_study(_written(tmp_path, "name: s\nexperiments: [geo-e-a]\n")).members) == 8
    wrong = "name: s\nexperiments: [{experiment: geo-e-a, matrix: [n=9]}]\n"
    with pytest.raises(SpecError, match=r"experiments\[0\].matrix: .*no combination has n=9"):
        load_study(_written(tmp_path, wrong))


@pytest.mark.parametrize(
    ("limits", "says"),
    [
        ("", "limits.csv:1: has no limit"),
        ("scope,figure\neach,sps\n", "limits.csv:2: a row needs scope"),
        ("scope,experiments,figure,limit,around,why\neach,*,speed,1,,\n", "limits.csv:2: a row needs scope"),
    ],
)
def test_limits_are_read_with_the_study(tmp_path: Path, limits: str, says: str):
    (tmp_path / "limits.csv").write_text(limits)
    with pytest.raises(SpecError) as caught:
        load_study(_written(tmp_path, "name: s\nexperiments: [geo-x1]\ncompare: {limits: limits.csv}\n"))
    assert len(caught.value.problems) == 2  # beside what else is wrong
    assert "s.yaml:3:19: compare.limits" in str(caught.value)
    assert says in str(caught.value)


def test_an_experiment_is_no_study():
    for name in ("geo-c8", "a10-2-rn18"):
        with pytest.raises(SpecError, match=rf"is an experiment, not a study; `orch launch {name}` runs it"):
            load_study(name)


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


def _library(name: str) -> str:
    return (STUDIES.parent / "library" / f"{name}.yaml").read_text()


def _written(folder: Path, text: str) -> str:
    path = folder / "s.yaml"
    path.write_text(text)
    return str(path)
