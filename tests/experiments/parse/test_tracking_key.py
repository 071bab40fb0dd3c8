"""The section `tracking`: folders relative to the file, URLs, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from experiments.parse.load import from_document, load, to_document
from experiments.schema.errors import SpecError
from experiments.schema.models import ExperimentSpec

_REST = """
name: mine
model: digits
data: {shards: "s3://digits/train-{000000..000031}.tar"}
swarm: {target_batch_size: 1920}
peers: [{name: a, resources: {infra: gcp/us-central1/us-central1-a, accelerators: "T4:1"}}]
"""


def read(folder: Path, tracking: str, *overrides: str) -> ExperimentSpec:
    (folder / "mine.yaml").write_text(f"{_REST}tracking: {tracking}\n")
    return load(str(folder / "mine.yaml"), overrides)


def tracking(spec: ExperimentSpec) -> object:
    assert spec.tracking is not None
    return spec.tracking.as_mapping()


def test_folders_are_relative_to_the_file(tmp_path: Path):
    spec = read(tmp_path, "{tensorboard: tb, mlflow: ../store, wandb: {project: mine, folder: .}}")
    assert tracking(spec) == {
        "tensorboard": str(tmp_path / "tb"),
        "mlflow": str(tmp_path.parent / "store"),
        "wandb": {"project": "mine", "folder": str(tmp_path)},
    }
    assert from_document(to_document(spec)) == spec


def test_file_uris_are_folders_and_urls_stay(tmp_path: Path):
    spec = read(tmp_path, "{tensorboard: 'file:///data/t%20b', mlflow: 'https://mlflow.example:5000/x'}")
    assert tracking(spec) == {"tensorboard": "/data/t b", "mlflow": "https://mlflow.example:5000/x"}


def test_an_override_is_relative_to_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (elsewhere := tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(elsewhere)
    spec = read(tmp_path, "{tensorboard: tb}", "tracking.mlflow=store")
    assert tracking(spec) == {"tensorboard": str(tmp_path / "tb"), "mlflow": str(elsewhere / "store")}


@pytest.mark.parametrize(
    ("section", "said"),
    [
        ("{}", "names no tracker"),
        ("{tensorboard: s3://bucket/x}", "is not a folder"),
        ("{mlflow: 'sqlite:////x.db'}", "is not a folder"),
        ("{mlflow: 'https://me:secret@host/'}", "no credentials"),
        ("{mlflow: 'http://'}", "must have a host"),
        ("{wandb: {project: a/b, folder: x}}", "not a name of a W&B project"),
        ("{wandb: {project: mine}}", "folder"),
        ("{comet: x}", "comet"),
    ],
)
def test_bad_input_is_a_sentence_with_its_line(tmp_path: Path, section: str, said: str):
    with pytest.raises(SpecError) as found:
        read(tmp_path, section)
    assert said in str(found.value)
    assert "mine.yaml:7:" in str(found.value)
    assert "secret" not in str(found.value)
