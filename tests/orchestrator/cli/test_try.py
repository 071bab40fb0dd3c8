"""`orch try` from the command line: real tasks on generated and stored samples, and what goes wrong in them."""

from __future__ import annotations

import io
import json
import os
import shutil
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from moto import mock_aws

from cloud.storage.client import make_client
from cloud.storage.digits import make_digits
from orchestrator.cli.app import run

PARAMETERS = 64 * 32 + 32 + 32 * 10 + 10
STORE = "https://s3.us-east-1.amazonaws.com"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's folder with a new experiment and its task."""
    (tmp_path / "user").mkdir()
    monkeypatch.chdir(tmp_path / "user")
    assert run(["init", "mine", "--task", "python"]) == 0
    return tmp_path / "user"


@pytest.fixture
def orch_try(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, Any, str]]:
    """Run `orch try`: exit code, stdout (parsed where it is JSON) and stderr."""
    capsys.readouterr()

    def call(*arguments: str) -> tuple[int, Any, str]:
        code = run(["try", *arguments])
        out, err = capsys.readouterr()
        return code, json.loads(out) if out.startswith("{") else out, err

    return call


def change(folder: Path, old: str, new: str) -> int:
    """Change task.py; returns the line in which `new` begins."""
    text = (folder / "task.py").read_text()
    assert old in text
    (folder / "task.py").write_text(text.replace(old, new, 1))
    return text[: text.index(old)].count("\n") + 1


def test_a_new_task_works_and_is_measured(folder: Path, orch_try):
    before = (os.getcwd(), list(sys.path))
    code, found, err = orch_try("mine.yaml", "-o", "json", "--steps", "60", "--batch-size", "16")
    assert code == 0, err
    assert (found["schema_version"], found["task"], found["parameters"]) == (1, "task:build", PARAMETERS)
    assert found["shard"] == "s3://digits/train-000000.tar"
    assert (found["generated"], found["samples_repeated"]) == (True, False)
    assert (found["steps"], found["batch_size"]) == (60, 16)
    assert found["samples_read"] == 60 * 16 + 3 * 16
    assert found["stored_bytes_per_sample"]["value"] == 2 * 512 + 2 * 512
    assert found["decoded_bytes_per_sample"]["value"] == 64 * 4 + 8
    assert found["step_ms"]["n"] == 59
    assert found["decode_ms_per_sample"]["n"] == 60 * 16 - 1
    assert found["step_ms"]["low"] < found["step_ms"]["value"] < found["step_ms"]["high"]
    assert found["samples_per_s"]["value"] == pytest.approx(16_000 / found["step_ms"]["value"])
    assert found["loss"]["last"] < found["loss"]["first"]
    assert found["evaluation"]["shard"] == "s3://digits/heldout-000000.tar"
    assert found["evaluation"]["samples"] == 3 * 16
    assert found["evaluation"]["metrics"]["accuracy"] > 0.5
    assert found["saved_bytes"] > 4 * PARAMETERS
    assert found["peak_rss_bytes"] > 50e6
    assert found["bad_samples"] == {"count": 0, "policy": "fail", "first": None}
    assert (os.getcwd(), list(sys.path)) == before
    assert "task" not in sys.modules
    assert sorted(path.name for path in folder.iterdir() if path.name != "__pycache__") == [
        "mine.yaml",
        "task.py",
    ]


def test_the_table_has_a_line_for_each_subject(orch_try):
    code, text, err = orch_try("mine.yaml", "--steps", "1")
    assert code == 0, err
    lines = dict(line.split(maxsplit=1) for line in text.splitlines())
    assert lines["task"] == "task:build, 2,410 parameters"
    assert lines["bad"] == "no samples"
    assert "(n = 1, interval unknown)" in lines["step"]
    assert lines["loss"].endswith("in step 1")
    assert {"stored", "decoded", "decoding", "throughput", "evaluation", "saved", "memory"} <= set(lines)


def test_the_shipped_digits_work_and_emulated_models_are_refused(orch_try):
    code, found, err = orch_try("local-2", "-o", "json")
    assert code == 0, err
    assert (found["task"], found["parameters"]) == ("digits", 4810)
    code, _, err = orch_try("geo-b2")
    assert code == 2
    assert "the model ConvNextLarge is emulated by a small network, so there is nothing to try" in err


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("return functional.cross_entropy(self", "raise ValueError('no loss')  # ", "ValueError: no loss"),
        ("images = torch.from_numpy", "raise KeyError('pixel')  # ", "KeyError: 'pixel'"),
        ("self.pipeline = pipeline(noise)", "self.width = widht", "NameError: name 'widht'"),
        ("SIDE, CLASSES = 8, 10", "import no_such_module", "No module named 'no_such_module'"),
        ("logits = self.model(images)", "raise OSError('full')", "OSError: full"),
        ("SIDE, CLASSES = 8, 10", "raise SystemExit(0)", "SystemExit: 0"),
    ],
)
def test_errors_of_the_users_code_name_her_file_and_line(
    folder: Path, orch_try, old: str, new: str, says: str
):
    line = change(folder, old, new)
    code, out, err = orch_try("mine.yaml")
    assert (code, out) == (1, "")
    assert says in err
    assert f"{folder / 'task.py'}:{line}: " in err
    assert len(err.splitlines()) == 1
    assert "Traceback" not in err


def test_what_the_task_prints_is_not_in_the_json(folder: Path, orch_try):
    change(folder, "    unknown = set", "    print('hello')\n    unknown = set")
    code, found, err = orch_try("mine.yaml", "-o", "json")
    assert code == 0
    assert found["task"] == "task:build"
    assert "hello" in err


@pytest.mark.parametrize(("policy", "exit_code"), [("fail", 1), ("skip", 0)])
def test_the_first_bad_sample_is_named(folder: Path, orch_try, policy: str, exit_code: int):
    line = change(folder, "    return int(data)", "    return int(data.replace(b'3', b'three'))")
    code, found, err = orch_try("mine.yaml", "-o", "json", "--set", f"data.bad_samples={policy}")
    assert code == exit_code, err
    bad = found["bad_samples"]
    assert bad["count"] > 5
    assert bad["policy"] == policy
    assert bad["first"]["shard"] == "s3://digits/train-000000.tar"
    assert bad["first"]["key"].isdigit()
    assert f"sample {bad['first']['key']}, operation digit: {folder / 'task.py'}:{line}: ValueError" in err
    assert found["samples_repeated"]  # as many as needed were generated, but some are bad
    assert 5 * 32 + 3 * 32 < found["samples_read"] < 5 * 32 + 3 * 32 + bad["count"]


def test_if_all_samples_are_bad_there_is_one_sentence(folder: Path, orch_try):
    change(folder, '"label": ("cls",)', '"label": ("json",)')
    code, _, err = orch_try("mine.yaml")
    assert code == 1
    assert "samples are all bad, so the pipeline does not fit the data: s3://digits/train-000000.tar" in err
    assert "it has no member" in err


def test_a_model_that_is_not_saved_whole_is_found(folder: Path, orch_try):
    change(
        folder, "        images, labels = batch\n", "        images, labels = batch\n        self.seen = 1\n"
    )
    change(
        folder,
        'return {"loss": loss / count',
        'return {"seen": getattr(self, "seen", 0), "loss": loss / count',
    )
    code, _, err = orch_try("mine.yaml")
    assert code == 1
    assert "the saved and loaded model evaluates to another seen, 0 instead of 1" in err


def test_a_helper_file_is_shipped_and_a_missing_one_is_noticed(folder: Path, orch_try):
    (folder / "helper.py").write_text("WIDTH = 16\n")
    change(folder, "import io\n", "import io\nimport helper\n")
    code, _, err = orch_try("mine.yaml", "-o", "json")
    assert code == 1
    assert "No module named 'helper'" in err
    code, found, err = orch_try("mine.yaml", "-o", "json", "--set", f"code=[{folder}/helper.py]")
    assert code == 0, err
    assert found["parameters"] == PARAMETERS
    assert "helper" not in sys.modules


def test_wrong_files_and_options(folder: Path, orch_try):
    assert orch_try("none.yaml")[0] == 2
    assert orch_try("mine.yaml", "-o", "xml")[0] == 2
    assert orch_try("mine.yaml", "--steps", "0")[0] == 2
    code, _, err = orch_try("mine.yaml", "--set", "task.with={height: 2}")
    assert code == 1
    assert "'height' is not a setting; use width, noise" in err


def test_samples_of_the_users_store(folder: Path, orch_try, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hunter2")
    stored = (
        "--set",
        f"data.endpoint={STORE}",
        "--set",
        "data.shards=s3://bucket/a/train-{000000..000001}.tar",
    )
    with mock_aws():
        code, _, err = orch_try("mine.yaml", *stored, "--set", "data.heldout=null")
        assert code == 2
        assert "bucket" in err
        client = make_client()
        make_digits(2, "s3://bucket/a", client, folder=tmp_path / "shards", samples_per_shard=40, seed=1)
        code, found, err = orch_try("mine.yaml", *stored, "--set", "data.heldout=null", "-o", "json")
    assert code == 0, err
    assert found["shard"] == found["evaluation"]["shard"] == "s3://bucket/a/train-000000.tar"
    assert (found["generated"], found["samples_repeated"]) == (False, True)
    assert found["evaluation"]["samples"] == 40
    assert found["samples_read"] == 40 + 40


def test_a_tokenizer_in_the_store_is_read(
    folder: Path, orch_try, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "testing")
    assert run(["init", "text", "--task", "causal-lm"]) == 0
    capsys.readouterr()
    settings = "task={name: causal-lm, with: {tokenizer: 's3://words/tokenizer.json'}}"
    with mock_aws():
        client = make_client(STORE)
        client.create_bucket(Bucket="words")
        client.upload_file("tokenizer.json", "words", "tokenizer.json")
        client.create_bucket(Bucket="stdlib")
        text = b"import this\n" * 20
        shard = tar_of({f"{n:04d}.txt": text for n in range(64)})
        for name in ("train", "heldout"):
            client.put_object(Bucket="stdlib", Key=f"{name}-000000.tar", Body=shard)
        arguments = ("text.yaml", "--set", settings, "--steps", "2", "--batch-size", "4", "-o", "json")
        code, found, err = orch_try(*arguments, "--set", f"data.endpoint={STORE}")
    assert code == 0, err
    assert found["evaluation"]["metrics"]["nats_per_byte"] > 0
    code, _, err = orch_try(*arguments)
    assert code == 2
    assert "task.with.tokenizer: s3://words/tokenizer.json cannot be read" in err


def tar_of(files: dict[str, bytes]) -> bytes:
    """A tar file of these files."""
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as tar:
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return made.getvalue()


def test_without_a_compiler_there_is_one_sentence(orch_try, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    code, _, err = orch_try("mine.yaml", "--steps", "2", "--set", "swarm.compile=true")
    assert code != 0
    assert "swarm.compile needs a C++ compiler, but there is no no-such-compiler here; install it" in err


@pytest.mark.timeout(600)
@pytest.mark.skipif(shutil.which("g++") is None, reason="no C++ compiler")
def test_the_seconds_of_compiling_are_shown(orch_try):
    code, found, err = orch_try("mine.yaml", "-o", "json", "--steps", "3", "--set", "swarm.compile=true")
    assert code == 0, err
    assert found["compile_s"] > 0
    assert found["steps"] == 3
