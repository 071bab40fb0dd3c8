"""The data set of the embedded store: from the experiment to the program that makes it, and what its failure says."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from cloud.local.host import store
from cloud.local.options import StoreOptions
from experiments.parse.load import load
from experiments.schema.errors import SpecError
from experiments.schema.trained_model import known_model
from orchestrator.errors import RunFailedError, UsageError
from orchestrator.launch import prepare
from orchestrator.launch.local_checks import local_obstacles
from orchestrator.launch.local_store import READABLE, dataset_of


def test_digits_are_made_as_ever():
    assert dataset_of(load("local-2", ["seed=4"])) == (
        "cloud.local.host.store:make_digits",
        {"shards": 32, "to_url": "s3://digits", "seed": 4},
    )


def test_a_task_names_the_data_set():
    assert dataset_of(load("glyphs-2")) == (
        "cloud.local.host.store:make_generated",
        {"dataset": "glyphs", "shards": 16, "to_url": "s3://glyphs", "seed": 0},
    )
    other = load("glyphs-2", ["data.heldout=s3://glyphs/heldout-{000000..000003}.tar"])
    with pytest.raises(UsageError, match=r"s3://BUCKET/train-\{000000\.\.N\}\.tar and heldout-000000\.tar"):
        dataset_of(other)


def test_an_emulated_model_learns_digits_only():
    with pytest.raises(SpecError, match=r"data\.dataset: found stdlib, but a 'model' is trained on digits"):
        load("local-2", ["data.dataset=stdlib"])


@pytest.mark.parametrize(
    ("changes", "size"),
    [
        ([], 3557),
        (["data.dataset=digits"], 2060),
        (["data.dataset=speech"], None),  # depends on this machine's synthesiser
        (["data.bytes_per_sample=7"], 7),
        (["data.endpoint=http://store.example:80"], None),
    ],
)
def test_the_size_of_samples_is_that_of_the_embedded_data_set(changes: list[str], size: int | None):
    spec = load("glyphs-2", changes)
    assert spec.task is not None
    facts = {"sha256": "0" * 64, "parameters": 10, "shapes": [[[10], 1]]}
    task = type(spec.task).model_validate({**spec.task.model_dump(by_alias=True), "facts": facts})
    found = known_model(None, task, spec.data)
    assert found is not None
    assert found.bytes_per_sample == size


@pytest.mark.parametrize("name", READABLE)
def test_a_built_in_task_has_data_that_it_can_read(name: str, tmp_path: Path):
    tokenizer = tmp_path / "tok.json"
    tokenizer.write_text("{}")
    settings = "{classes: 62}" if name == "image-classification" else f"{{tokenizer: {tokenizer}}}"
    task = f"task={{name: {name}, with: {settings}}}"
    good = READABLE[name][0]
    bad = "speech" if name == "image-classification" else "glyphs"
    assert list(local_obstacles(load("glyphs-2", [task, f"data.dataset={good}"]))) == []
    (found,) = local_obstacles(load("glyphs-2", [task, f"data.dataset={bad}"]))
    assert found.code == "model_data"
    assert f"holds the data set {bad}, which {name} cannot read; set data.dataset to {good}" in found.text
    own = load("glyphs-2", [task, f"data.dataset={bad}", "data.endpoint=http://store.example:80"])
    assert list(local_obstacles(own)) == []


def break_down(arguments: dict[str, Any], report: Any) -> None:
    """A `dataset` program that fails."""
    report({"done": False})
    raise OSError(f"no font for {arguments['dataset']}")


def make_two(arguments: Mapping[str, Any], report: Callable[[Any], None]) -> None:
    """A data set's program."""
    report({"done": True, "shards": 2})


def put_back(arguments: Mapping[str, Any], report: Callable[[Any], None]) -> None:
    """A program that stores a checkpoint from a folder."""
    report({"checkpoint_bytes": 7})
    told = json.loads(Path(arguments["folder"]).read_text())
    assert told == {"done": False, "shards": 2, "checkpoint_bytes": 7}, (
        "it is not filled before this has ended"
    )


def _filled_by(dataset: str, folder: Path | None = None) -> StoreOptions:
    return StoreOptions(
        dataset=f"{__name__}:{dataset}",
        dataset_arguments={"dataset": "glyphs"},
        restore=f"{__name__}:put_back" if folder else "",
        restore_arguments={"folder": str(folder)},
    )


def test_a_checkpoint_is_stored_after_the_data_set(tmp_path: Path):
    progress = tmp_path / store.DATASET_FILE
    store._fill(_filled_by("make_two", progress), {}, progress)
    assert json.loads(progress.read_text()) == {"done": True, "shards": 2}


def test_the_store_says_why_it_was_not_filled(tmp_path: Path):
    with pytest.raises(OSError, match="no font"):
        store._fill(_filled_by("break_down"), {}, tmp_path / store.DATASET_FILE)
    words = store._why_not_filled(tmp_path)
    assert words == (
        f"the data set was not written (OSError: no font for glyphs); see {tmp_path}/console.log"
    )
    (tmp_path / store.DATASET_FILE).write_text(json.dumps({"done": False}))
    assert store._why_not_filled(tmp_path).startswith("the data set was not written; see ")


class _Cloud:
    """A store that shows these states, a second apart; afterwards nothing changes."""

    fatal = ""

    def __init__(self, *states: dict[str, Any]) -> None:
        self._states = list(states)

    def store(self) -> dict[str, Any]:
        return self._states.pop(0) if len(self._states) > 1 else self._states[0]


def filling(samples: int) -> dict[str, Any]:
    return {"state": "filling", "dataset": {"done": False, "samples": samples}}


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [0.0]
    monkeypatch.setattr(prepare.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(prepare.time, "sleep", lambda _: now.__setitem__(0, now[0] + 100.0))
    return now


def test_a_store_that_is_being_filled_is_waited_for(clock: list[float], tmp_path: Path):
    prepare._await_dataset(_Cloud(*map(filling, range(10)), {"state": "ready"}), tmp_path)
    assert clock == [1000.0]


def test_a_store_that_is_not_filled_any_further_ends_the_launch(clock: list[float], tmp_path: Path):
    with pytest.raises(RunFailedError, match="nothing was added to it for 180 s"):
        prepare._await_dataset(_Cloud(filling(0), filling(1)), tmp_path)
    failed = {"state": "failed", "error": "the data set was not written"}
    with pytest.raises(RunFailedError, match="the embedded store failed: the data set was not written"):
        prepare._await_dataset(_Cloud(failed), tmp_path)
