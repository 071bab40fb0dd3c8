"""`task`, `code`, `requirements` and `data.pipeline`: what is refused, where, and which files are found."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
import yaml
from pure_wheel import wheel

from experiments.emulation.accelerators import is_padded
from experiments.parse import task_files
from experiments.parse.load import from_document, load, to_document
from experiments.parse.task_files import TaskFilesError, module_on_peer, placed, shipped_files
from experiments.schema.errors import SpecError
from experiments.schema.requirements import RequirementError, parse_requirement
from experiments.tasks.build import BUILT_IN
from experiments.tasks.settings import FIGURES, SETTINGS

BODY = """
data: {shards: "s3://digits/train-{000000..000003}.tar"}
swarm: {target_batch_size: 512, batch_size: 32}
peers:
  - {name: us, count: 2, resources: {infra: gcp/us-central1/us-central1-a, accelerators: "T4:1"}}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("my_task.py", "helper.py", "1bad.py"):
        (tmp_path / name).write_text("")
    (tmp_path / "package" / "inner").mkdir(parents=True)
    for name in ("__init__.py", "task.py", "inner/__init__.py", "inner/deep.py"):
        (tmp_path / "package" / name).write_text("")
    (tmp_path / "package" / "__pycache__").mkdir()
    (tmp_path / "package" / "__pycache__" / "task.pyc").write_text("")
    (tmp_path / "package" / ".hidden").write_text("")
    return tmp_path


def read(folder: Path, head: str, *changes: str, body: str = BODY) -> Any:
    (folder / "mine.yaml").write_text(f"name: mine\n{head}{body}")
    return load(str(folder / "mine.yaml"), changes)


def problems(folder: Path, head: str, *changes: str, body: str = BODY) -> list[tuple[int | None, str, str]]:
    with pytest.raises(SpecError) as caught:
        read(folder, head, *changes, body=body)
    return [(p.line, p.path, p.message) for p in caught.value.problems]


def test_built_in_tasks_have_settings():
    assert set(BUILT_IN) == set(SETTINGS) == set(FIGURES)


def test_a_task_of_ones_own_is_found_beside_the_file(folder: Path):
    spec = read(
        folder,
        "task: {python: my_task.py:build, with: {width: 3}}\ncode: [helper.py, package/]\n",
        "data.pipeline=null",
    )
    assert spec.task is not None
    assert (spec.task.python, spec.task.settings) == (f"{folder}/my_task.py:build", {"width": 3})
    assert spec.code == (f"{folder}/helper.py", f"{folder}/package")
    assert (spec.trains, spec.timed_as, spec.model) == ("my_task:build", "my_task:build", None)
    document = to_document(spec)
    assert document["task"]["with"] == {"width": 3}
    assert from_document(yaml.safe_load(yaml.safe_dump(document))) == spec
    assert not is_padded(spec)


def test_a_name_alone_is_a_built_in_task(folder: Path):
    spec = read(folder, "task: image-classification\n")
    assert (spec.trains, spec.task.settings) == ("image-classification", {})
    assert (
        read(folder, "task: {name: image-classification, with: {model: ResNet18}}\n").timed_as == "ResNet18"
    )


def test_paths_of_overrides_start_at_the_working_directory(folder: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(folder / "package")
    spec = read(folder, "task: {python: my_task.py:build}\n", "data.pipeline=task.py:PIPELINE")
    assert spec.data.pipeline == f"{folder}/package/task.py:PIPELINE"
    assert spec.task.python == f"{folder}/my_task.py:build"


def test_files_of_built_in_settings_are_found(folder: Path):
    (folder / "tok.json").write_text("{}")
    spec = read(folder, "task: {name: causal-lm, with: {tokenizer: tok.json}}\n")
    assert spec.task.settings["tokenizer"] == str(folder / "tok.json")
    spec = read(
        folder, "task: {name: causal-lm, with: {tokenizer: tok.json, weights: 's3://b/w.safetensors'}}\n"
    )
    assert spec.task.settings["weights"] == "s3://b/w.safetensors"
    assert problems(folder, "task: {name: causal-lm, with: {tokenizer: none.json}}\n") == [
        (2, "task.with.tokenizer", f"{folder}/none.json does not exist; correct the path, or create it")
    ]


BAD = [
    ("", 1, "model", "is missing; add the key 'model', or 'task'"),
    ("model: digits\ntask: causal-lm\n", 3, "task", "found both 'model' and 'task'"),
    ("task: {with: {}}\n", 2, "task", "found neither 'name' nor 'python'"),
    ("task: {name: causal-lm, python: my_task.py:build}\n", 2, "task", "found both 'name' and 'python'"),
    ("task: casual-lm\n", 2, "task.name", "did you mean 'causal-lm'"),
    ("task: {python: my_task.py}\n", 2, "task.python", "is not a Python file and a function in it, such as my_task.py:build"),
    ("task: {python: none.py:build}\n", 2, "task.python", "none.py does not exist"),
    ("task: {python: 1bad.py:build}\n", 2, "task.python", "'1bad.py' is not a module's name"),
    ("task: {python: my_task.py:build, settings: {}}\n", 2, "task.settings", "(allowed: name, python, with, facts)"),
    ("task: {name: image-classification, with: {clases: 3}}\n", 2, "task.with", "'clases' is not a setting"),
    ("task: {python: my_task.py:build}\ncode: [helper.py, no.py]\n", 3, "code[1]", "no.py does not exist"),
    ("model: digits\ncode: [helper.py]\n", 3, "code", "belongs to a 'task'"),
    ("model: digits\nrequirements: [six]\n", 3, "requirements", "belongs to a 'task'"),
    ("task: {python: my_task.py:build}\nrequirements: [-r x.txt]\n", 3, "requirements[0]", "not an allowed option"),
    ("task: {python: my_task.py:build}\nrequirements: ['six=1']\n", 3, "requirements[0]", "is not a requirement"),
    ("task: {python: my_task.py:build}\nrequirements: [mine.whl]\n", 3, "requirements[0]", "is not a wheel's file name"),
    (
        "task: {python: my_task.py:build}\nrequirements: [mine-1-py3-none-any.whl]\n",
        3,
        "requirements[0]",
        "mine-1-py3-none-any.whl does not exist",
    ),
    ("task: {python: my_task.py:build}\nrequirements: [--find-links package]\n", 3, "requirements[0]", "has no wheels"),
    (
        "task: {python: my_task.py:build}\nemulation: {bytes_scale: 10}\n",
        3,
        "emulation.bytes_scale",
        "nothing is scaled down where steps take as long as the machine needs",
    ),
    (
        "task: {python: my_task.py:build}\nemulation: {accelerators: padded}\n",
        3,
        "emulation.accelerators",
        "'padded' needs a step time, and none is known of this task; use host",
    ),
    (
        "task: {name: image-classification, with: {model: ResNet18}}\nemulation: {accelerators: padded}\n",
        8,
        "peers[0].resources.accelerators",
        "no step time is known for ResNet18 on T4:1 (known for it: A10:1)",
    ),
    (
        "task: {python: my_task.py:build}\nnetwork_tuning: wan\n",
        None,
        "emulation.windows",
        "the model that is trained here is not scaled down",
    ),
    ("model: RoBERTaXLM\nemulation: {accelerators: host}\n", 3, "emulation.accelerators", "has no data"),
]  # fmt: skip


@pytest.mark.parametrize(("head", "line", "path", "message"), BAD, ids=[f"{b[2]}: {b[3][:30]}" for b in BAD])
def test_what_is_refused(folder: Path, head: str, line: int | None, path: str, message: str):
    (found,) = problems(folder, head)
    assert found[1] == path
    assert message in found[2]
    assert line is None or found[0] == line


def test_stored_values_need_a_task_and_a_store(folder: Path):
    body = BODY.replace("data: {", "data: {stored: true, endpoint: 'http://store:1', ")
    (found,) = problems(folder, "model: digits\n", body=body)
    assert found[:2] == (4, "data.stored")
    task = "task: {python: my_task.py:build}\n"
    assert read(folder, task, body=body).data.stored
    (found,) = problems(folder, task, body=BODY.replace("data: {", "data: {stored: true, "))
    assert found == (4, "data.stored", "the embedded store holds no stored values; add the key 'endpoint'")


def test_a_pipeline_without_a_task_is_refused(folder: Path):
    body = BODY.replace("data: {", "data: {pipeline: helper.py:P, ")
    (found,) = problems(folder, "model: digits\n", body=body)
    assert found[:2] == (4, "data.pipeline")


@pytest.mark.parametrize("name", ["torch.py", "random.py", "experiments.py"])
def test_a_file_that_would_replace_a_module_of_the_peer_is_refused(folder: Path, name: str):
    (folder / name).write_text("")
    (found,) = problems(folder, f"task: {{python: my_task.py:build}}\ncode: [{name}]\n")
    assert found[:2] == (3, "code")
    assert f"would replace the module '{name[:-3]}' that the peer needs; rename it" in found[2]


def test_too_much_code_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(task_files, "MAX_CODE_BYTES", 1_000_000)
    large = folder / "large.bin"
    large.write_bytes(bytes(1_000_001))
    (found,) = problems(folder, "task: {python: my_task.py:build}\ncode: [large.bin]\n")
    assert found[:2] == (3, "code")
    assert f"the files to ship have 1.0 MB in all (the largest: {large} 1.0 MB" in found[2]
    assert "and at most 1 MB can be shipped" in found[2]
    monkeypatch.setattr(task_files, "_MAX_FILES", 3)
    (found,) = problems(folder, "task: {python: my_task.py:build}\ncode: [package]\n")
    assert "has too many files" in found[2]


def test_layout_on_the_peers(folder: Path):
    code = [folder / "helper.py", folder / "package"]
    task = folder / "package" / "inner" / "deep.py"
    assert module_on_peer(task, code) == "package.inner.deep"
    assert module_on_peer(folder / "my_task.py", code) == "my_task"
    files = shipped_files(placed(code, [task, folder / "my_task.py", folder / "helper.py"]))
    assert list(files) == [
        "helper.py",
        "my_task.py",
        "package/__init__.py",
        "package/task.py",
        "package/inner/__init__.py",
        "package/inner/deep.py",
    ]
    assert files["package/inner/deep.py"] == task
    other = folder / "package" / "helper.py"
    with pytest.raises(TaskFilesError, match="would have the same name on the peers"):
        placed([folder / "helper.py", other], [])


def test_wheels_are_found(folder: Path):
    made = wheel(folder / "wheels")
    head = "task: {python: my_task.py:build}\nrequirements: [--find-links wheels/, mine, wheels/mine-1.0-py3-none-any.whl]\n"
    assert read(folder, head).requirements == (f"--find-links {folder}/wheels", "mine", str(made))


def test_facts_are_kept_and_checked(folder: Path):
    document = to_document(read(folder, "task: {python: my_task.py:build}\n"))
    document["task"]["facts"] = {"sha256": "0" * 64, "parameters": 10, "shapes": [[[5], 2]]}
    spec = from_document(document)
    assert spec.task.facts.shapes == (((5,), 2),)
    assert from_document(to_document(spec)) == spec
    document["swarm"]["compression"] = "powersgd:4"
    with pytest.raises(SpecError, match="sends 10 of the task's 10 values"):
        from_document(document)


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("pkg @ https://user:secret@h/x-1-py3-none-any.whl", "the URL of pkg has a user or password"),
        ("pkg @ file:///home/me/pkg-1-py3-none-any.whl", "give the path of its wheel instead of a URL"),
        ("x @ https://a/b\n--pre", "a requirement has a control character"),
    ],
)
def test_requirements_that_no_vm_should_get_are_refused(line: str, sentence: str):
    with pytest.raises(RequirementError, match=sentence):
        parse_requirement(line)


@pytest.mark.parametrize(
    ("path", "sentence"),
    [
        ("~nobody-here/x.py", "~nobody-here/x.py does not exist; correct the path, or create it"),
        ("x" * 300 + ".py", "cannot be read (File name too long); correct the path"),
    ],
)
def test_paths_that_cannot_be_read_are_problems_of_the_file(folder: Path, path: str, sentence: str):
    (found,) = problems(folder, f"task: {{python: my_task.py:build}}\ncode: ['{path}']\n")
    assert found[:2] == (3, "code[0]")
    assert found[2].endswith(sentence)


def test_evaluations_during_training_need_held_out_samples(folder: Path):
    body = BODY.replace('000003}.tar"', '000003}.tar", heldout: s3://digits/heldout-000000.tar')
    every = "data.evaluate_every_epochs=3"
    assert read(folder, "model: digits\n", every, body=body).data.evaluate_every_epochs == 3
    assert read(folder, "model: digits\n", body=body).data.evaluate_every_epochs is None
    found = problems(folder, "model: digits\n", every)
    assert [(path, message) for _, path, message in found] == [
        ("data.evaluate_every_epochs", "there are no held-out samples; add the key 'heldout'")
    ]


HELD_OUT = BODY.replace('000003}.tar"', '000003}.tar", heldout: s3://digits/heldout-000000.tar')


def test_goals_that_end_a_run(folder: Path):
    sets = ("train.until={samples: 5000, usd: 2.5}",)
    until = read(folder, "model: digits\n", *sets).train.until
    assert until.as_mapping() == {"samples": 5000, "usd": Decimal("2.5")}
    assert str(until) == "samples 5,000, usd 2.5"
    metric = (
        "data.evaluate_every_epochs=2",
        "train.until.metric={name: loss, at_most: 1.5}",
        "train.until.time_s=60",
    )
    spec = read(folder, "model: digits\n", *metric, body=HELD_OUT)
    assert str(spec.train.until) == "time_s 60, loss at most 1.5"
    assert from_document(to_document(spec)) == spec
    assert read(folder, "model: digits\n").train is None


@pytest.mark.parametrize(
    ("sets", "path", "message"),
    [
        (("train.until={}",), "train.until", "names no goal; give one of samples, time_s, usd, metric"),
        (
            ("train.until.metric={name: loss}", "data.evaluate_every_epochs=1"),
            "train.until.metric",
            "found neither 'at_most' nor 'at_least'; give exactly one of them",
        ),
        (
            ("train.until.metric={name: loss, at_most: 1, at_least: 2}", "data.evaluate_every_epochs=1"),
            "train.until.metric",
            "found both 'at_most' and 'at_least'; give exactly one of them",
        ),
        (
            ("train.until.metric={name: loss, at_most: .nan}", "data.evaluate_every_epochs=1"),
            "train.until.metric.at_most",
            "must be a finite number",
        ),
        (
            ("train.until.metric={name: loss, at_most: 1}",),
            "train.until.metric",
            "peers evaluate only when they end; add the key 'data.evaluate_every_epochs'",
        ),
    ],
)
def test_goals_that_are_refused(folder: Path, sets: tuple[str, ...], path: str, message: str):
    found = problems(folder, "model: digits\n", *sets, body=HELD_OUT)
    assert [(path_, text) for _, path_, text in found] == [(path, message)]


@pytest.mark.parametrize(
    ("head", "name", "message"),
    [
        (
            "model: digits\n",
            "acuracy",
            "found 'acuracy', which digits does not evaluate; use one of loss, accuracy; did you mean 'accuracy'?",
        ),
        (
            "task: image-classification\n",
            "wer",
            "found 'wer', which image-classification does not evaluate; use one of loss, accuracy",
        ),
    ],
)
def test_a_metric_that_is_not_evaluated_is_refused(folder: Path, head: str, name: str, message: str):
    sets = (f"train.until.metric={{name: {name}, at_least: 0.9}}", "data.evaluate_every_epochs=1")
    found = problems(folder, head, *sets, body=HELD_OUT)
    assert [(path, text) for _, path, text in found] == [("train.until.metric.name", message)]
    own = read(folder, "task: {python: my_task.py:build}\n", *sets, body=HELD_OUT)  # `orch try` checks it
    assert own.train.until.metric.name == name


def test_a_metric_needs_held_out_samples(folder: Path):
    found = problems(folder, "model: digits\n", "train.until.metric={name: loss, at_most: 1}")
    assert [(path, text) for _, path, text in found] == [
        ("train.until.metric", "there are no held-out samples; add the key 'data.heldout'")
    ]
