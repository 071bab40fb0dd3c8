"""`orch init` from the command line: what it writes validates, plans and explains itself."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest

from cloud.datasets import stdlib
from experiments.catalog import models
from experiments.parse.load import load
from experiments.tasks.settings import read_settings
from experiments.tasks.tokenizer_file import TokenizerFile
from orchestrator.cli.app import run
from orchestrator.first_steps.templates import PaperTraining, TaskKind, name_of_folder

FILES = {
    "image-classification": ["mine.yaml"],
    "masked-lm": ["mine.yaml", "tokenizer.json"],
    "causal-lm": ["mine.yaml", "tokenizer.json"],
    "speech-recognition": ["mine.yaml", "tokenizer.json"],
    "python": ["mine.yaml", "task.py"],
}


@pytest.fixture(scope="module")
def sources() -> list[tuple[str, Path]]:
    """Some sources of the standard library, for which a tokenizer is trained sooner."""
    return stdlib.source_files()[:120]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sources: list[tuple[str, Path]]) -> Path:
    """The user's folder."""
    monkeypatch.setattr(stdlib, "source_files", lambda folder=None: sources)
    (tmp_path / "user").mkdir()
    monkeypatch.chdir(tmp_path / "user")
    return tmp_path / "user"


def written(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("kind", TaskKind)
def test_what_is_written_is_a_valid_experiment(
    kind: TaskKind, folder: Path, capsys: pytest.CaptureFixture[str]
):
    assert run(["init", "mine", "--task", kind, "-o", "json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"schema_version": 1, "files": FILES[kind]}
    assert written(folder) == FILES[kind]
    spec = load("mine.yaml")
    assert spec.name == "mine"
    assert spec.task is not None
    assert spec.task.name == (None if kind == "python" else kind)
    assert [group.resources.infra for group in spec.peers if group.resources] == [
        "gcp/us-central1/us-central1-a",
        "gcp/europe-west1/europe-west1-b",
    ]
    assert run(["validate", "mine.yaml", "--on", "local"]) == 0


@pytest.mark.parametrize("training", PaperTraining)
def test_the_papers_trainings_can_be_planned_before_the_data_are_there(
    training: PaperTraining, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    said = json.dumps(
        {"parameters": 1000, "shapes": [[[1000], 1]], "without_checkpointing": ""}
    )  # building a model of this size takes long
    done = subprocess.CompletedProcess(list[str](), 0, said, "")
    monkeypatch.setattr("orchestrator.launch.task_facts.subprocess.run", lambda *_, **__: done)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "x")
    monkeypatch.setenv("ORCH_HOME", str(folder / "home"))
    assert run(["init", "--template", training, "--bucket", "s3://my-bucket/data/"]) == 0
    assert f"orch plan {training}.yaml --on sky" in capsys.readouterr().err
    spec = load(f"{training}.yaml")
    assert spec.data.shards.startswith("s3://my-bucket/data/")
    assert spec.task is not None
    assert read_settings(str(spec.task.name), spec.task.settings).model_name in models()
    assert sum(group.count for group in spec.peers) == 8
    assert run(["validate", f"{training}.yaml", "--on", "sky"]) == 0
    capsys.readouterr()
    assert run(["plan", f"{training}.yaml", "--on", "sky"]) in (0, 3)  # 3: this machine cannot rent
    out = capsys.readouterr().out
    assert "in the experiment:" not in out
    assert "reserve at most $" in out
    assert all(len(line) <= 132 for line in Path(f"{training}.yaml").read_text().splitlines())


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--template", "imagenet-c8"], "is missing: --template imagenet-c8 reads your own data"),
        (["--bucket", "b"], "is only for --template"),
        (["--template", "whisper-a8", "--bucket", "a b"], "is no bucket or bucket/prefix"),
        (["--template", "whisper-a8", "--bucket", "bucket", "--task", "python"], "the template has a task"),
    ],
)
def test_options_that_do_not_fit_are_refused(
    arguments: list[str], says: str, folder: Path, capsys: pytest.CaptureFixture[str]
):
    assert run(["init", *arguments]) == 2
    assert says in " ".join(capsys.readouterr().err.split())
    assert written(folder) == []


@pytest.mark.parametrize("kind", TaskKind)
def test_every_key_is_explained(kind: TaskKind):
    assert run(["init", "mine", "--task", kind]) == 0
    lines = Path("mine.yaml").read_text().splitlines()
    section, checked = "", []
    for before, line in zip(["", *lines], lines, strict=False):
        key = re.match(r"( *)([a-z_]+):", line)
        if key is None:
            continue
        if not key[1]:
            section = key[2]
        explained = not key[1] and section not in ("data", "swarm")
        if explained or (len(key[1]) == 2 and section in ("data", "swarm")):
            checked.append(f"{section}.{key[2]}")
            assert before.lstrip().startswith("#"), line
    assert len(checked) > 12
    assert all(len(line) <= 132 for line in lines)


def test_the_tokenizer_of_the_texts_has_the_special_tokens():
    assert run(["init", "mine", "--task", "masked-lm"]) == 0
    tokenizer = TokenizerFile("tokenizer.json")
    assert tokenizer.size == stdlib.VOCABULARY
    assert {tokenizer.token(role) for role in ("pad", "bos", "eos", "mask")} == set(stdlib.SPECIAL_TOKENS)


def test_the_tokenizer_of_speech_has_a_token_for_each_digit():
    assert run(["init", "mine", "--task", "speech-recognition"]) == 0
    encoded = TokenizerFile(str(Path("tokenizer.json").resolve())).tokenizer.encode("seven zero five nine")
    assert [token.lstrip("Ġ") for token in encoded.tokens] == ["seven", "zero", "five", "nine"]


def test_a_task_of_ones_own_validates_plans_and_says_what_to_do_next(capsys: pytest.CaptureFixture[str]):
    assert run(["init", "mine", "--task", "python"]) == 0
    out, err = capsys.readouterr()
    assert out.splitlines() == ["mine.yaml", "task.py"]
    for command in ("try", "plan", "launch"):
        assert f"orch {command} mine.yaml" in err
    assert run(["validate", "mine.yaml"]) == 0
    capsys.readouterr()
    assert run(["plan", "mine.yaml", "-o", "json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert plan["launchable"]
    assert plan["task"]["parameters"] == 64 * 32 + 32 + 32 * 10 + 10


def test_files_that_exist_are_kept_unless_forced(folder: Path, capsys: pytest.CaptureFixture[str]):
    (folder / "task.py").write_text("# mine\n")
    assert run(["init", "mine", "--task", "python"]) == 2
    err = capsys.readouterr().err
    assert "task.py exists already" in err
    assert "--force" in err
    assert written(folder) == ["task.py"]
    assert (folder / "task.py").read_text() == "# mine\n"
    assert run(["init", "mine", "--task", "python", "--force"]) == 0
    assert written(folder) == ["mine.yaml", "task.py"]
    assert "def build" in (folder / "task.py").read_text()
    assert run(["init", "mine", "--task", "python"]) == 2
    assert "mine.yaml and task.py exist already" in capsys.readouterr().err


def test_without_a_name_the_folder_gives_it(folder: Path, monkeypatch: pytest.MonkeyPatch):
    (folder / "My Task_2").mkdir()
    monkeypatch.chdir(folder / "My Task_2")
    assert run(["init", "--task", "python"]) == 0
    assert load("my-task-2.yaml").name == "my-task-2"


@pytest.mark.parametrize(
    ("folder_name", "name"), [("Übung", "bung"), ("___", "mine"), ("x" * 50, "x" * 40), ("a--b", "a-b")]
)
def test_names_of_folders_become_valid(folder_name: str, name: str):
    assert name_of_folder(folder_name) == name


@pytest.mark.parametrize("name", ["../mine", "Mine", "", "x" * 41, "mine.yaml"])
def test_other_names_are_refused(name: str, folder: Path, capsys: pytest.CaptureFixture[str]):
    assert run(["init", name]) == 2
    assert "is no name of an experiment" in capsys.readouterr().err
    assert written(folder) == []


def test_an_unwritable_folder_is_named(folder: Path, capsys: pytest.CaptureFixture[str]):
    (folder / "mine.yaml").mkdir()
    assert run(["init", "mine", "--task", "python", "--force"]) == 2
    assert "mine.yaml cannot be written (Is a directory)" in capsys.readouterr().err
