"""Running statistics: peers with equal weights evaluate and store equal ones, whatever data they have seen."""

from __future__ import annotations

import io
import random
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from moto import mock_aws  # noqa: E402 - after torch is known to exist
from PIL import Image  # noqa: E402
from storage_fakes import make_tar  # noqa: E402
from torch import nn  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

from cloud.storage.client import make_client  # noqa: E402
from cloud.storage.opener import ShardOpener  # noqa: E402
from experiments.checkpoints.layout import MODEL, run_prefix  # noqa: E402
from experiments.checkpoints.store import CheckpointStore  # noqa: E402
from experiments.peer.checkpoints.report import CheckpointReport  # noqa: E402
from experiments.peer.checkpoints.writer import CheckpointWriter, Trained  # noqa: E402
from experiments.peer.optimizer.build import torch_optimizer_of  # noqa: E402
from experiments.peer.status import Status  # noqa: E402
from experiments.peer.training.running_statistics import layers_with_statistics, recomputed  # noqa: E402
from experiments.peer.training.task import TaskRunner, build_runner  # noqa: E402
from experiments.peer.training.task_data import statistics_batches  # noqa: E402
from experiments.pipeline.errors import BadSampleError  # noqa: E402
from tests.experiments.checkpoint_rig import KEYS, RUN, SETTINGS, TO, manifest  # noqa: E402
from tests.experiments.peer_rig import config_of  # noqa: E402

CPU = torch.device("cpu")
SHARDS = ("s3://b/train-0.tar", "s3://b/train-1.tar")


def task_of(name: str) -> dict[str, Any]:
    return {"call": f"{name}:build", "with": {}, "sha256": "0" * 64}


def digit(number: int) -> bytes:
    file = io.BytesIO()
    Image.new("L", (8, 8), 25 * (number % 10)).save(file, "png")
    return file.getvalue()


def tar(first: int, count: int) -> bytes:
    return make_tar(
        {f"{n:04}": {"png": digit(n), "cls": f"{n % 10}".encode()} for n in range(first, first + count)}
    )


class Opener(ShardOpener):
    """Opens two shards of 100 samples each, and notes which."""

    def __init__(self, **changes: bytes) -> None:
        self.shards = {SHARDS[0]: tar(0, 100), SHARDS[1]: tar(100, 100), **changes}
        self.opened: list[str] = []

    def open(self, url: str) -> Any:
        self.opened.append(url)
        return io.BytesIO(self.shards[url])


def peer(seed: int, task: str = "norm_task", opener: Any = None, **changes: Any) -> TaskRunner:
    """A peer's task after some steps on its own data, with the weights of all others."""
    config = config_of("a", "", SHARDS, task=task_of(task), emulated=False, **changes)
    runner = build_runner(config)
    runner.common_batches = statistics_batches(config, Opener() if opener is None else opener, runner)
    torch.manual_seed(seed)
    for _ in range(5):
        batch = {"images": torch.randn(8, 64) * (1 + seed), "labels": torch.arange(8), "more": []}
        runner.backward(runner.loss(batch))
    runner.model.zero_grad()
    return runner


def buffers(runner: TaskRunner) -> list[Any]:
    return [tensor.clone() for tensor in runner.model.buffers()]


def equal(ours: list[Any], theirs: list[Any]) -> bool:
    return all(torch.equal(one, other) for one, other in zip(ours, theirs, strict=True))


def held_out() -> list[Any]:
    generator = torch.Generator().manual_seed(3)
    return [{"images": torch.rand(20, 64, generator=generator), "labels": torch.arange(20) % 10, "more": []}]


def test_peers_with_equal_weights_evaluate_alike_whatever_data_they_have_seen() -> None:
    one, other = peer(1), peer(2)
    assert equal(list(one.model.parameters()), list(other.model.parameters()))
    assert not equal(buffers(one), buffers(other))
    assert one.evaluate(held_out()) != other.evaluate(held_out())  # what the statistics are for
    with one.common_statistics(), other.common_statistics():
        assert equal(buffers(one), buffers(other))
        assert one.evaluate(held_out()) == other.evaluate(held_out())


def test_training_goes_on_as_if_nothing_had_happened() -> None:
    runner = peer(1)
    before, drawn = buffers(runner), torch.random.get_rng_state()
    with runner.common_statistics():
        assert not equal(buffers(runner), before)
        runner.evaluate(held_out())
    assert equal(buffers(runner), before)
    assert torch.equal(torch.random.get_rng_state(), drawn)
    assert runner.model.training
    assert [layer.momentum for layer in layers_with_statistics(runner.model)] == [0.1]
    assert all(parameter.grad is None for parameter in runner.model.parameters())


def test_random_numbers_of_a_loss_do_not_make_them_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = peer(1), peer(2)

    def drawing(batch: Any, plain: Any) -> Any:
        noise = torch.full((64,), random.random() + np.random.rand())
        return plain({**batch, "images": batch["images"] + noise})

    for runner in (one, other):
        monkeypatch.setattr(runner._task, "loss", partial(drawing, plain=runner._task.loss))
    random.seed(1)
    np.random.seed(1)
    with one.common_statistics():
        ours = buffers(one)
    drawn = random.random(), float(np.random.rand())
    with other.common_statistics():
        assert equal(ours, buffers(other))
    random.seed(1)
    np.random.seed(1)
    assert drawn == (random.random(), float(np.random.rand()))  # training draws what it would have drawn


def test_what_fails_leaves_the_statistics_as_they_were() -> None:
    runner = peer(1)
    before = buffers(runner)
    runner.common_batches = (*runner.common_batches[:1], {"images": torch.zeros(8, 3)})
    with (
        pytest.raises(Exception, match="loss, for the running statistics, failed"),
        runner.common_statistics(),
    ):
        raise AssertionError("the statistics cannot be calculated")
    assert equal(buffers(runner), before)
    assert [layer.momentum for layer in layers_with_statistics(runner.model)] == [0.1]


def test_statistics_are_those_of_torch_over_the_same_batches() -> None:
    """Compared with torch's own `update_bn`, which averages in the same way."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 4, 3), nn.BatchNorm2d(4)
    )
    images = [torch.rand(6, 3, 9, 9) for _ in range(5)]
    with recomputed(model, layers_with_statistics(model), 5, lambda number: model(images[number]), CPU):
        found = [tensor.clone() for tensor in model.buffers()]
    torch.optim.swa_utils.update_bn(images, model)
    for ours, theirs in zip(found, model.buffers(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)


class Twice(nn.Module):
    """A block whose activations are calculated again in the backward pass."""

    def __init__(self, kept: bool) -> None:
        super().__init__()
        self.kept = kept
        self.block = nn.Sequential(
            nn.Linear(4, 4), nn.BatchNorm1d(4), nn.InstanceNorm1d(4, track_running_stats=True)
        )

    def forward(self, values: Any) -> Any:
        values = values.unsqueeze(0).transpose(1, 2) if values.dim() == 1 else values
        block = lambda x: self.block[2](self.block[1](self.block[0](x)).unsqueeze(2).expand(-1, -1, 3))  # noqa: E731
        return block(values) if self.kept else checkpoint(block, values, use_reentrant=False)


def test_gradient_checkpointing_does_not_change_them() -> None:
    batches = [torch.randn(8, 4, generator=torch.Generator().manual_seed(n)) for n in range(3)]
    found = []
    for kept in (True, False):
        torch.manual_seed(0)
        model = Twice(kept)
        model(batches[2]).sum().backward()
        with recomputed(
            model, layers_with_statistics(model), 3, lambda n, model=model: model(batches[n]), CPU
        ):
            found.append([tensor.clone() for tensor in model.buffers()])
    assert equal(*found)


def test_frozen_and_unused_layers_keep_theirs() -> None:
    model = nn.ModuleList([nn.BatchNorm1d(4), nn.BatchNorm1d(4), nn.BatchNorm1d(4)])
    values = torch.randn(8, 4) * 3 + 1
    for layer in model:
        layer(values)
    model[0].eval()
    before = [tensor.clone() for layer in (model[0], model[1]) for tensor in layer.buffers()]
    with recomputed(
        model, layers_with_statistics(model), 1, lambda _: (model[0](values), model[2](values)), CPU
    ):
        assert equal([tensor for layer in (model[0], model[1]) for tensor in layer.buffers()], before)
        torch.testing.assert_close(model[2].running_mean, values.mean(0))


def test_a_model_without_statistics_reads_nothing() -> None:
    opener = Opener()
    runner = peer(1, "small_task", opener)
    assert (runner.has_statistics, runner.common_batches, opener.opened) == (False, (), [])
    with runner.common_statistics():
        runner.evaluate(held_out())


def test_batches_are_the_first_samples_of_all_shards_in_order() -> None:
    opener = Opener()
    batches = peer(1, opener=opener, batch_size=48).common_batches
    assert [len(batch["images"]) for batch in batches] == [48] * 4  # the last 8 of 200 are left out
    assert opener.opened == list(SHARDS)
    assert torch.cat([batch["labels"] for batch in batches]).tolist() == [n % 10 for n in range(192)]


def test_no_more_is_read_than_is_needed() -> None:
    shards = {SHARDS[0]: tar(0, 700)}
    opener = Opener(**shards)
    assert sum(len(batch["images"]) for batch in peer(1, opener=opener, batch_size=64).common_batches) == 512
    assert opener.opened == [SHARDS[0]]


def test_few_samples_are_one_batch() -> None:
    opener = Opener(**{SHARDS[0]: tar(0, 5), SHARDS[1]: tar(5, 5)})
    assert [len(batch["images"]) for batch in peer(1, opener=opener, batch_size=32).common_batches] == [10]


def test_bad_samples_are_left_out_or_end_the_run_as_in_training() -> None:
    broken = make_tar({"0": {"png": b"no picture", "cls": b"1"}})
    shards = {SHARDS[0]: broken}
    batches = peer(1, opener=Opener(**shards), bad_samples="skip", batch_size=50).common_batches
    assert sum(len(batch["images"]) for batch in batches) == 100
    with pytest.raises(BadSampleError):
        peer(1, opener=Opener(**shards), bad_samples="fail")


@pytest.fixture
def bucket() -> Iterator[None]:
    with mock_aws():
        make_client(**KEYS).create_bucket(Bucket="bucket")
        yield


def test_checkpoints_are_equal_whoever_stored_them(bucket: None, tmp_path: Path) -> None:
    store = CheckpointStore(run_prefix(TO, RUN), KEYS)
    stored = []
    for epoch, runner in enumerate((peer(1), peer(2)), 1):
        optimizer = torch_optimizer_of(SETTINGS["sgd"])(runner.parameters())
        trained = Trained(runner.task, lambda o=optimizer: o, runner.ballast, None, runner.common_statistics)
        report = CheckpointReport(Status(tmp_path / "status.json"))
        writer = CheckpointWriter(store, trained, tmp_path / "made", 2, report)
        assert writer.begin(manifest(epoch), {})
        writer.wait(lambda: False)
        newest = store.newest()
        assert newest is not None
        assert newest.epoch == epoch
        stored.append(newest.files[f"{MODEL}/model.safetensors"].sha256)
    assert stored[0] == stored[1]


def test_statistics_that_cannot_be_calculated_are_a_failed_checkpoint_not_the_end(
    bucket: None, tmp_path: Path
) -> None:
    runner = peer(1)
    runner.common_batches = ({"images": torch.zeros(8, 3)},)
    status = Status(tmp_path / "status.json")
    report = CheckpointReport(status)
    optimizer = torch_optimizer_of(SETTINGS["sgd"])(runner.parameters())
    trained = Trained(runner.task, lambda: optimizer, runner.ballast, None, runner.common_statistics)
    writer = CheckpointWriter(
        CheckpointStore(run_prefix(TO, RUN), KEYS), trained, tmp_path / "made", 2, report
    )
    assert not writer.begin(manifest(3), {})
    assert "for the running statistics, failed" in (tmp_path / "status.json").read_text()


def test_other_buffers_that_a_forward_pass_changes_stay_as_they_are() -> None:
    """The vectors of spectral normalisation follow each forward pass in training mode, and are part of the next one."""
    torch.manual_seed(3)
    model = nn.Sequential(torch.nn.utils.spectral_norm(nn.Linear(6, 6)), nn.BatchNorm1d(6)).train()
    values = torch.randn(8, 6)
    model(values)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with recomputed(model, layers_with_statistics(model), 3, lambda _: model(values), CPU):
        inside = model.state_dict()
        assert torch.equal(inside["0.weight_u"], before["0.weight_u"])
        assert not torch.equal(inside["1.running_mean"], before["1.running_mean"])
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, before[name]), name
