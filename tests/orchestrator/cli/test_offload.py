"""`orch offload serve`: one sentence and exit 2 for each thing that it cannot work with."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from experiments.offload.plan import Choice, OffloadPlan
from experiments.pipeline.builtin import imagenet
from orchestrator.cli.app import run

pytestmark = pytest.mark.processes

GOOD = {"--pipeline": "imagenet", "--shards": "s3://photos/train-{0..1}.tar"}


def serve(folder: Path, *more: str, plan: str | None = None, **changes: str) -> int:
    file = folder / "plan.json"
    file.write_text(plan or OffloadPlan.of(imagenet.pipeline(), 7, {"a": Choice(2)}).to_json())
    options = {**GOOD, "--plan": str(file), "--keys": str(folder / "keys"), **changes}
    return run(["offload", "serve", *(text for pair in options.items() for text in pair), *more])


@pytest.mark.parametrize(
    ("changes", "more", "sentence"),
    [
        ({"--plan": "nowhere.json"}, ("--slot", "a"), "cannot be read"),
        ({"plan": "{}"}, ("--slot", "a"), "is not a plan of offloading"),
        ({"--shards": "s3://photos/{9..1}.tar"}, ("--slot", "a"), "the range is reversed"),
        ({"--shards": "../x.tar"}, ("--slot", "a"), "is not the URL of a shard"),
        ({"--settings": "{"}, ("--slot", "a"), "is not JSON"),
        ({"--settings": "[]"}, ("--slot", "a"), "is not a JSON object"),
        ({"--settings": '{"size": 32}'}, ("--slot", "a"), "the plan was made for pipeline imagenet"),
        ({"--cores": "0"}, ("--slot", "a"), "cores: 0 is not a whole number"),
        ({"--memory-gb": "nan"}, ("--slot", "a"), "--memory-gb nan is not a number above 0"),
        ({"--sample-s": "-1"}, ("--slot", "a"), "--sample-s -1.0 is not a number above 0"),
        ({}, (), "make tokens with --slot NAME"),
        ({"--host": "192.0.2.1"}, ("--slot", "a"), "192.0.2.1:0 cannot be listened on"),
    ],
)
def test_a_mistake_is_a_sentence_and_leaves_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], changes, more: tuple[str, ...], sentence: str
) -> None:
    assert serve(tmp_path, *more, **changes) == 2
    said = " ".join(capsys.readouterr().err.replace("│", " ").split())
    assert sentence in said
    assert "Traceback" not in said
    assert not [
        path for path in tmp_path.rglob("*") if path.name in ("certificate.pem", "key.pem", "tokens.json")
    ]


def test_keys_that_are_there_are_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    keys = tmp_path / "keys"
    keys.mkdir()
    (keys / "tokens.json").write_text(json.dumps({"a": 1}))
    assert serve(tmp_path) == 2
    assert "not an object of tokens by slot" in capsys.readouterr().err
    assert serve(tmp_path, "--slot", "a") == 2
    assert "has tokens.json already" in capsys.readouterr().err
    assert [path.name for path in keys.iterdir()] == ["tokens.json"]
