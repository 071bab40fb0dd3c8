"""`matrix:`: the combinations of GitHub Actions, placeholders, and what is wrong with a file, by line and column."""

import json
from itertools import product
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from experiments.parse import SpecError, load, load_all, to_document
from experiments.parse.document import parse
from experiments.parse.load import source
from experiments.parse.matrix import MAX_COMBINATIONS, combinations, expand
from orchestrator.cli.app import run

HEAD = """\
name: fam-${matrix.n}${matrix.suffix}
description: "${matrix.model}, ${ matrix.n } peers"
matrix:
  n: [1, 2, 4]
  model: [ConvNextLarge, RoBERTaXLM]
  exclude:
    - {n: 4, model: RoBERTaXLM}
  include:
    - {model: ConvNextLarge, suffix: ""}
    - {model: RoBERTaXLM, suffix: -nlp}
"""
BODY = """\
model: ${matrix.model}
data:
  shards: s3://digits/train-{000000..000031}.tar
swarm:
  target_batch_size: 32768
peers:
  - name: us
    count: ${matrix.n}
    resources:
      infra: gcp/us-central1/us-central1-a
"""
FAMILY = HEAD + BODY
NAMES = ["fam-1", "fam-1-nlp", "fam-2", "fam-2-nlp", "fam-4"]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "fam.yaml"
    path.write_text(FAMILY)
    return path


def combined(text: str) -> list[dict]:
    document = parse(text, "x.yaml")
    found = combinations(document)
    assert document.problems == []
    return found


def test_the_example_of_github_actions_manual():
    """docs.github.com, "Running variations of jobs in a workflow", expanding or adding matrix configurations."""
    found = combined("""\
matrix:
  fruit: [apple, pear]
  animal: [cat, dog]
  include:
    - color: green
    - color: pink
      animal: cat
    - fruit: apple
      shape: circle
    - fruit: banana
    - fruit: banana
      animal: cat
""")
    assert found == [
        {"fruit": "apple", "animal": "cat", "color": "pink", "shape": "circle"},
        {"fruit": "apple", "animal": "dog", "color": "green", "shape": "circle"},
        {"fruit": "pear", "animal": "cat", "color": "pink"},
        {"fruit": "pear", "animal": "dog", "color": "green"},
        {"fruit": "banana"},
        {"fruit": "banana", "animal": "cat"},
    ]


def test_the_exclude_example_of_the_manual():
    found = combined("""\
matrix:
  os: [macos-latest, windows-latest]
  version: [12, 14, 16]
  environment: [staging, production]
  exclude:
    - {os: macos-latest, version: 12, environment: production}
    - {os: windows-latest, version: 16}
""")
    assert len(found) == 9  # of 12, "the matrix will produce nine jobs"
    assert {"os": "macos-latest", "version": 12, "environment": "staging"} in found


AXIS = st.lists(st.integers(0, 4), min_size=1, max_size=4, unique=True)
ENTRY = st.dictionaries(st.sampled_from("abcz"), st.integers(0, 5), min_size=1, max_size=3)


@given(
    st.dictionaries(st.sampled_from("abc"), AXIS, min_size=1, max_size=3),
    st.lists(ENTRY, max_size=3),
    st.lists(ENTRY, max_size=3),
)
def test_combinations_are_the_product_less_exclude_and_with_include(axes, exclude, include):
    exclude = [{k: v for k, v in e.items() if v in axes.get(k, ())} for e in exclude]
    exclude = [e for e in exclude if e]
    text = yaml.safe_dump({"matrix": {**axes, "exclude": exclude, "include": include}}, sort_keys=False)
    document = parse(text, "x.yaml")
    found = combinations(document)
    originals = [
        values
        for values in (dict(zip(axes, each, strict=True)) for each in product(*axes.values()))
        if not any(e.items() <= values.items() for e in exclude)
    ]
    alone = [e for e in include if not any(all(o.get(k, v) == v for k, v in e.items()) for o in originals)]
    if not originals and not include:
        assert document.problems != []
        return
    assert len(found) == len(originals) + len(alone)
    for original, made in zip(originals, found, strict=False):
        assert original.items() <= made.items()  # an axis is never overwritten
        added = {k for e in include if all(original.get(k, v) == v for k, v in e.items()) for k in e}
        assert set(made) == set(original) | added
    assert found[len(originals) :] == alone


def test_each_combination_is_an_experiment_with_its_types(file):
    specs = load_all(str(file))
    assert [s.name for s in specs] == NAMES
    assert [s.peer_count for s in specs] == [1, 1, 2, 2, 4]
    assert specs[3].description == "RoBERTaXLM, 2 peers"
    for choice in (["fam-2-nlp"], ["n=2", "model=RoBERTaXLM"], ["suffix=-nlp", "n=2"]):
        assert load(str(file), [], choice) == specs[3]
    assert load(str(file), ["seed=9"], ["fam-4"]).seed == 9
    assert [s.name for s in load_all(str(file), (), ["n=2"])] == ["fam-2", "fam-2-nlp"]


def test_run_stores_the_chosen_experiment(file, tmp_path):
    spec = load(str(file), [], ["fam-2-nlp"])
    kept = tmp_path / "kept.yaml"
    kept.write_bytes(source(str(file), spec))
    assert load(str(kept)) == spec
    assert source("geo-b2", load("geo-b2")).startswith(b"# yaml-language-server")


@pytest.mark.parametrize(
    ("choice", "said"),
    [
        ([], "5 experiments (fam-1, fam-1-nlp, fam-2, fam-2-nlp, fam-4): choose one by `--matrix n=1` or `--matrix fam-1`"),
        (["n=2"], "(fam-2, fam-2-nlp): choose one by `--matrix model=ConvNextLarge` or `--matrix fam-2`"),
        (["m=2"], "'m' is not in its matrix (n, model, suffix)"),
        (["n=3"], "no combination has n=3 (there are 1, 2, 4)"),
        (["n=4", "model=RoBERTaXLM"], "no combination has model=RoBERTaXLM (there are ConvNextLarge)"),
        (["fam-3"], "'fam-3' is not one of its names; did you mean 'fam-4'?"),
    ],
)  # fmt: skip
def test_one_must_be_chosen(file, choice, said):
    with pytest.raises(SpecError) as error:
        load(str(file), [], choice)
    assert said in str(error.value)
    assert str(error.value).startswith(str(file))


def test_a_file_without_a_matrix_takes_no_choice():
    with pytest.raises(SpecError, match="has no 'matrix:'; leave --matrix out"):
        load("geo-b2", [], ["n=2"])


@pytest.mark.parametrize(
    ("old", "new", "line", "column", "said"),
    [
        ("model: ${matrix.model}", "model: ${matrix.modle}", 11, 8, "(there are n, model, suffix); did you mean 'model'?"),
        ('"${matrix.model}, ${ matrix.n } peers"', '"${matrix.model}, ${matrix.m} peers"', 2, 32, "'m' is not in the matrix"),
        ("model: ${matrix.model}\n", "model: ${{ matrix.model }}\n", 11, 8, "is not a placeholder; use ${matrix.NAME}"),
        ("    - {model: ConvNextLarge, suffix: \"\"}\n", "", 1, 22, "has no value for n=1, model=ConvNextLarge"),
        ("name: fam-${matrix.n}${matrix.suffix}", "name: fam-${matrix.n}", 1, 7, "'fam-1' is the name for n=1, model="),
        ("n: [1, 2, 4]", "n: [1, 2, 2]", 4, 13, "2 is a duplicate"),
        ("n: [1, 2, 4]", "n: 4", 4, 6, "must be a list of values, such as n: [1, 2]"),
        ("n: [1, 2, 4]", "n: [1, [2], 4]", 4, 10, "must be text, a number, true or false"),
        ("- {n: 4, model: RoBERTaXLM}", "- {m: 4, model: RoBERTaXLM}", 7, 8, "'m' is not an axis (n, model)"),
        ("- {n: 4, model: RoBERTaXLM}", "- 4", 7, 7, "must be a mapping of axes to values"),
        ("- {n: 4, model: RoBERTaXLM}", '- {n: "4", model: RoBERTaXLM}', 7, 11, '"4" is not a value of n (1, 2, 4), so this'),
        ("- {n: 4, model: RoBERTaXLM}", "- {model: RoBERTa}", 7, 15, '"RoBERTa" is not a value of model ("ConvNextLarge", '),
        ("n: [1, 2, 4]", "n: [yes, 4, on]", 4, 15, "true is a duplicate"),
        ("model: ${matrix.model}\n", "model: ${Matrix.model}\n", 11, 8, "is not a placeholder; use ${matrix.NAME}"),
        ("model: ${matrix.model}\n", 'model: "{{matrix.model}}"\n', 11, 9, "'{{matrix.model}}' is not a placeholder"),
        ("model: ${matrix.model}\n", "model: ${matrix .model}\n", 11, 8, "'${matrix .model}' is not a placeholder"),
        ("suffix: -nlp", 'suffix: "-${matrix.n}"', 10, 37, "'${matrix.n}' is in the matrix itself; use the value"),
        ("swarm:\n", 'file_mounts:\n  "/data/${matrix.n}": s3://digits\nswarm:\n', 15, 3, "'${matrix.n}' is in a key"),
        ("n: [1, 2, 4]", f"n: [{', '.join(map(str, range(200)))}]", 4, 3, f"402 combinations; must be at most {MAX_COMBINATIONS}"),
    ],
)  # fmt: skip
def test_matrix_errors_have_a_position(file, old, new, line, column, said):
    assert FAMILY.count(old) == 1
    file.write_text(FAMILY.replace(old, new))
    with pytest.raises(SpecError) as error:
        load_all(str(file))
    first = error.value.problems[0]
    assert said in first.message
    assert (first.line, first.column) == (line, column)


@pytest.mark.parametrize(
    "variable", ["${matrix}", "${matrix:-big}", "$matrix.n", "${matrix[0]}", "${#matrix}"]
)
def test_shell_variables_are_left_alone(file, variable):
    file.write_text(FAMILY + f"setup: echo {variable} ${{matrix.n}}\n")
    assert [s.setup for s in load_all(str(file))][-1] == f"echo {variable} 4"


def test_placeholder_without_a_matrix_is_an_error(file):
    file.write_text(BODY.replace("model: ${matrix.model}", "name: x\nmodel: ConvNextLarge"))
    with pytest.raises(SpecError) as error:
        load(str(file))
    said = "'${matrix.n}': the file has no 'matrix:'"
    assert [(p.line, p.column, p.path) for p in error.value.problems if said in p.message] == [
        (9, 12, "peers[0].count")
    ]


def test_errors_of_some_combinations_name_them(file):
    file.write_text(FAMILY.replace("target_batch_size: 32768", "target_batch_size: 64"))
    with pytest.raises(SpecError) as error:
        load_all(str(file))
    (problem,) = error.value.problems
    assert problem.message.startswith("found 64; must be at least peers x batch_size = 4 x 32 = 128")
    assert problem.message.endswith("(in fam-4)")
    file.write_text(FAMILY.replace("target_batch_size: 32768", "target_batch_size: 0"))
    with pytest.raises(SpecError) as error:
        load_all(str(file))
    assert [p.message for p in error.value.problems] == ["found 0; must be at least 1"]  # once for all five


def test_positions_are_those_of_the_template(file):
    variants = expand(parse(FAMILY, "x.yaml"))
    assert {v.document.values["peers", 0, "count"] for v in variants} == {(18, 12)}
    assert all(path[:1] != ("matrix",) for v in variants for path in v.document.values)


def test_the_commands_list_check_and_choose(file, capsys):
    def said(*arguments: str, code: int = 0) -> str:
        assert run(list(arguments)) == code
        shown = capsys.readouterr()
        return shown.out if code == 0 else shown.err

    can = "5 of 5 can be launched on this machine; 0 of 5 can be launched on rented VMs"
    assert said("validate", str(file)) == f"{file}: ok (5 experiments: {', '.join(NAMES)}); {can}\n"
    (row,) = json.loads(said("validate", str(file), "-o", "json"))["files"]
    assert (row["ok"], row["name"], [e["name"] for e in row["experiments"]]) == (True, None, NAMES)
    assert [line.split()[0] for line in said("show", str(file)).splitlines()] == ["NAME", *NAMES]
    shown = said("show", str(file), "--matrix", "fam-4", "-o", "json")
    assert json.loads(shown) == to_document(load(str(file), (), ["fam-4"]))
    for command, *more in (["plan"], ["launch", "--dry-run"], ["launch", "--dry-run", "--on", "sky"]):
        assert "is a matrix of 5 experiments" in said(command, str(file), *more, code=2)
        assert "fam-4: ConvNextLarge, 4 peers" in said(command, str(file), "--matrix", "n=4", *more)
    assert "is a matrix of 5 experiments" in said("simulate", str(file), code=2)
    assert '"status": "done"' in said(
        "simulate", str(file), "--matrix", "fam-1", "--epochs", "1", "--faults", "none", "-o", "json"
    )
