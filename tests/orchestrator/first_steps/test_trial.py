"""Generated samples and trials of all kinds of tasks."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, cast

import pytest
from moto import mock_aws

from cloud.datasets import stdlib
from cloud.datasets.generate import SIZES, Size
from cloud.datasets.glyphs import glyph_records
from cloud.local.host.store import make_digits, make_generated
from cloud.storage.client import make_client
from cloud.storage.samples import read_shard
from cloud.storage.shards import HELDOUT, TRAIN
from experiments.parse.load import load
from orchestrator.cli.render.trial import trial_lines
from orchestrator.first_steps.samples import open_generated_heldout, samples_of
from orchestrator.first_steps.templates import TaskKind, experiment_files
from orchestrator.first_steps.trial import TrialError, check_metric, try_experiment
from orchestrator.launch.local_store import dataset_of


@pytest.fixture(scope="module")
def sources() -> list[tuple[str, Path]]:
    return stdlib.source_files()[:120]


@pytest.fixture(autouse=True)
def fewer_sources(monkeypatch: pytest.MonkeyPatch, sources: list[tuple[str, Path]]) -> None:
    monkeypatch.setattr(stdlib, "source_files", lambda folder=None: sources)


def samples(path: Path) -> list[dict]:
    return list(read_shard("s3://x/y.tar", path.open("rb")))


@pytest.mark.parametrize(
    ("dataset", "members"),
    [
        ("digits", {"png", "cls"}),
        ("glyphs", {"jpg", "cls"}),
        ("stdlib", {"txt"}),
        ("photos", {"jpg", "cls"}),
        ("speech", {"wav", "txt"}),
        ("pages", {"html"}),
        ("power", {"npy", "cls"}),
    ],
)
def test_each_data_set_gives_both_splits(dataset: str, members: set[str], tmp_path: Path):
    made = samples_of(dataset, tmp_path, train=6, heldout=3, seed=2)
    assert sorted(made) == [HELDOUT, TRAIN]
    train, heldout = samples(made[TRAIN]), samples(made[HELDOUT])
    assert len(train) == 6
    assert len(heldout) == (364 if dataset == "digits" else 3)
    assert members <= set(train[0]) & set(heldout[0])


def test_the_samples_are_the_first_of_the_store(tmp_path: Path):
    made = samples_of("glyphs", tmp_path, train=5, heldout=2, seed=3)
    expected = [record.members["jpg"] for record in islice(glyph_records(100, 10, seed=3), 5)]
    assert [sample["jpg"] for sample in samples(made[TRAIN])] == expected


@pytest.mark.parametrize("dataset", ["digits", "glyphs", "stdlib", "speech"])
def test_generated_heldout_samples_are_those_of_the_store_byte_for_byte(
    dataset: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    for name, size in SIZES.items():
        monkeypatch.setitem(cast(Any, SIZES), name, Size(size.shards, 16))
    shards, heldout = "s3://bkt/p/train-{000000..000002}.tar", "s3://bkt/p/heldout-000000.tar"
    spec = load("local-2", [f"data.shards={shards}", f"data.heldout={heldout}", "seed=5"])
    spec = spec.model_copy(update={"data": spec.data.model_copy(update={"dataset": dataset})})
    arguments = {**dataset_of(spec)[1], "endpoint": "", "access_key": "key", "secret_key": "hunter2"}
    with mock_aws():
        make_client().create_bucket(Bucket="bkt")
        program = make_digits if dataset == "digits" else make_generated
        program(arguments, lambda _: None)
        expected = make_client().get_object(Bucket="bkt", Key="p/heldout-000000.tar")["Body"].read()
    with open_generated_heldout(spec, tmp_path / "made")(heldout) as file:
        assert file.read() == expected


def test_an_unknown_data_set_is_refused(tmp_path: Path):
    with pytest.raises(KeyError, match="birds"):
        samples_of("birds", tmp_path, train=1, heldout=1, seed=0)


@dataclass
class Ticks:
    """A clock on which each reading is 0.5 s after the last."""

    now_s: float = 0.0

    def __call__(self) -> float:
        self.now_s += 0.5
        return self.now_s


def test_a_goal_on_a_figure_that_the_task_does_not_evaluate_is_an_error():
    goal = ["data.evaluate_every_epochs=1", "train.until.metric={name: accuracy, at_least: 0.9}"]
    spec = load("local-2", goal)
    check_metric(spec, "mine", {"loss": 1.0, "accuracy": 0.5})
    with pytest.raises(
        TrialError,
        match=r"does not evaluate 'accuracy'.*; use one of loss, acuracy; did you mean 'acuracy'\?",
    ):
        check_metric(spec, "mine", {"loss": 1.0, "acuracy": 0.5})


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "dataset", "metrics"),
    [
        (TaskKind.image_classification, "glyphs", {"loss", "accuracy"}),
        (TaskKind.masked_lm, "stdlib", {"loss", "accuracy", "perplexity"}),
        (TaskKind.causal_lm, "stdlib", {"loss", "perplexity", "nats_per_byte"}),
        (TaskKind.speech_recognition, "speech", {"loss", "wer"}),
    ],
)
def test_each_kind_of_a_new_experiment_works(
    kind: TaskKind, dataset: str, metrics: set[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    for name, content in experiment_files(kind, "mine").items():
        Path(name).write_bytes(content.replace(f"dataset: {dataset}\n".encode(), b"dataset: digits\n"))
    spec = load("mine.yaml")
    spec = spec.model_copy(update={"data": spec.data.model_copy(update={"dataset": dataset})})
    trial = try_experiment(spec, steps=2, batch_size=4, clock=Ticks())
    assert trial.task == kind
    assert set(trial.metrics) == metrics
    assert (trial.evaluated_samples, trial.samples_read) == (12, 20)
    assert (trial.step_s.value, trial.decode_s.value) == (0.5, 0.5)
    assert trial.samples_per_s.value == 8
    assert trial.bad_samples == 0
    assert any(line.startswith("throughput  8 (n = 1") for line in trial_lines(trial))
