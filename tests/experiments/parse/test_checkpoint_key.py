"""The section `checkpoint`: what is refused, where, and its default place."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from experiments.parse.load import from_document, load, to_document
from experiments.schema.errors import SpecError

TASK = """name: mine
task: image-classification
data: {shards: "s3://digits/train-{000000..000003}.tar"}
swarm: {target_batch_size: 512, batch_size: 32}
peers:
  - {name: us, count: 2, resources: {infra: gcp/us-central1/us-central1-a, accelerators: "CPU:1"}}
"""


def read(folder: Path, section: str, *changes: str) -> Any:
    (folder / "mine.yaml").write_text(f"{TASK}checkpoint: {section}\n")
    return load(str(folder / "mine.yaml"), changes)


def problem(folder: Path, section: str, *changes: str) -> tuple[str, str]:
    with pytest.raises(SpecError) as caught:
        read(folder, section, *changes)
    (found,) = caught.value.problems
    return found.path, found.message


def test_defaults(tmp_path: Path):
    spec = read(tmp_path, "{every_epochs: 5}")
    assert (spec.checkpoint.every_epochs, spec.checkpoint.every_s, spec.checkpoint.keep) == (5, None, 2)
    assert spec.checkpoint.folder(spec.data.shards) == "s3://digits/checkpoints"
    assert from_document(to_document(spec)) == spec
    assert read(tmp_path, "null").checkpoint is None
    assert load("local-2").checkpoint is None, "experiments without the section make none"


def test_a_place_of_ones_own(tmp_path: Path):
    spec = read(tmp_path, "{every_s: 600, keep: 3, to: s3://mine/models/gpt/}")
    assert spec.checkpoint.folder(spec.data.shards) == "s3://mine/models/gpt"


@pytest.mark.parametrize(
    ("section", "path", "said"),
    [
        ("{keep: 2}", "checkpoint", "neither 'every_epochs' nor 'every_s'"),
        ("{every_epochs: 1, every_s: 60}", "checkpoint", "both 'every_epochs' and 'every_s'"),
        ("{every_epochs: 0}", "checkpoint.every_epochs", "at least 1"),
        ("{every_epochs: 1, keep: 0}", "checkpoint.keep", "at least 1"),
        ("{every_epochs: 1, to: /tmp/here}", "checkpoint.to", "s3://bucket/prefix"),
        ("{every_epochs: 1, to: 's3://key:secret@mine/x'}", "checkpoint.to", "without credentials"),
        ("{every_epochs: 1, to: 's3://mine/*'}", "checkpoint.to", "without credentials or '*'"),
        ("{every_epochs: 1, upto: 3}", "checkpoint.upto", "unknown key 'upto'"),
    ],
)
def test_refused(tmp_path: Path, section: str, path: str, said: str):
    where, message = problem(tmp_path, section)
    assert where == path
    assert said in message


def test_a_stand_in_is_no_model_to_keep(tmp_path: Path):
    model = ("task=null", "model=ConvNextLarge", 'peers.us.resources.accelerators="T4:1"')
    where, message = problem(tmp_path, "{every_epochs: 1}", *model)
    assert where == "checkpoint"
    assert "emulation.accelerators: host" in message
    assert read(tmp_path, "{every_epochs: 1}", *model, "emulation.accelerators=host").checkpoint is not None
    assert read(tmp_path, "{every_epochs: 1}", *model, "emulation=null").checkpoint is not None
