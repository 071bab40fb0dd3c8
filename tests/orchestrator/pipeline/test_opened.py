"""Inputs opened from a real embedded store."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from cloud.storage.samples import read_shard
from orchestrator.errors import UsageError
from orchestrator.pipeline.opened import OpenInput, open_input, stacked
from orchestrator.pipeline.target import Target, find_target

pytestmark = pytest.mark.processes


@pytest.fixture(autouse=True)
def home(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("home")
    monkeypatch.setenv("ORCH_HOME", str(folder))
    before = children()
    yield folder
    assert children() <= before
    assert [path.name for path in folder.iterdir()] == []


def children() -> set[str]:
    """Process ids of this process's children."""
    return {pid for file in Path("/proc/self/task").glob("*/children") for pid in file.read_text().split()}


def samples_of(opened: OpenInput) -> list[dict[str, object]]:
    return [s for shard in opened.shards for s in read_shard(shard, opened.opener.open(shard))]


def test_a_pipeline_alone_has_generated_samples_that_it_can_decode() -> None:
    with open_input(find_target("power"), samples=20) as opened:
        found = samples_of(opened)
        items = [opened.pipeline.run(sample, opened.seed, 0) for sample in found[:2]]
        folder = opened.folder
    assert len(found) == 20
    assert (opened.generated, opened.location, opened.spec) == (True, "", None)
    assert opened.collate(items)["power"].shape == (2, 3, 500)
    assert not folder.exists()


def test_an_experiment_without_an_endpoint_has_its_own_data_set_and_collate() -> None:
    with open_input(find_target("geo-b2"), samples=40) as opened:
        items = [opened.pipeline.run(sample, opened.seed, 0) for sample in samples_of(opened)]
        pixels, labels = opened.collate(items)
    assert opened.batch_size == find_target("geo-b2").spec.swarm.batch_size
    assert (pixels.shape[1:], labels.shape[0]) == (torch.Size([64]), pixels.shape[0])
    assert labels.shape[0] >= 40


def test_an_experiments_own_store_is_read() -> None:
    with open_input(find_target("power"), samples=9) as made:
        keys = made.client()._request_signer._credentials
        target = find_target("local-2", [f"data.endpoint={made.endpoint}", f'data.shards="{made.shards[0]}"'])
        with pytest.MonkeyPatch.context() as environment:
            environment.setenv("AWS_ACCESS_KEY_ID", keys.access_key)
            environment.setenv("AWS_SECRET_ACCESS_KEY", keys.secret_key)
            with open_input(target) as opened:
                assert (opened.generated, opened.shards) == (False, made.shards[:1])
                assert len(samples_of(opened)) == 1


def test_stored_values_need_a_store() -> None:
    spec = find_target("local-2").spec
    assert spec is not None
    stored = spec.model_copy(update={"data": spec.data.model_copy(update={"stored": True})})
    with (
        pytest.raises(UsageError, match="has no stored values"),
        open_input(Target("local-2", spec=stored)),
    ):
        pass


def test_arrays_of_one_shape_are_stacked_and_others_stay_apart() -> None:
    batch = stacked([{"a": 1, "b": [1.0]}, {"a": 2, "b": [1.0, 2.0]}])
    assert batch["a"].tolist() == [1, 2]
    assert [b.tolist() for b in batch["b"]] == [[1.0], [1.0, 2.0]]
