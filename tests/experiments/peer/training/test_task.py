"""A task on a device: checks of what it returns, and one sentence for everything that goes wrong in it."""

from __future__ import annotations

import sys
from collections import namedtuple
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from experiments.peer.config import PeerConfigError  # noqa: E402 - after torch is known to exist
from experiments.peer.optimizer.build import torch_optimizer_of  # noqa: E402
from experiments.peer.training.emulated_model import ModelSizeError  # noqa: E402
from experiments.peer.training.task import (  # noqa: E402
    TaskRunner,
    build_runner,
    evaluation_samples,
    use_code_folder,
)
from experiments.peer.training.tensors import map_tensors  # noqa: E402
from experiments.pipeline.errors import BadSampleError, PipelineError  # noqa: E402
from experiments.tasks.protocol import TaskError  # noqa: E402
from tests.experiments.peer_rig import config_of  # noqa: E402

ITEMS = [{"image": torch.full((64,), n / 8).numpy(), "label": n} for n in range(8)]
KEYS = tuple(("s3://b/a.tar", f"{n:04d}") for n in range(8))


def runner_of(**changes: Any) -> TaskRunner:
    task = {"call": "small_task:build", "with": changes.pop("settings", {}), "sha256": "0" * 64}
    return build_runner(config_of("a", "", (), **{"task": task, "emulated": False, **changes}))


def loss_of(runner: TaskRunner) -> Any:
    return runner.loss(runner.move(runner.collate(ITEMS)))


def test_a_users_task_trains_and_is_evaluated() -> None:
    runner = runner_of()
    assert runner.ran == "small_task:build"
    optimizer = torch_optimizer_of({"name": "sgd", "lr": 0.1})(runner.parameter_groups())
    assert [group["lr"] for group in optimizer.param_groups] == [0.1, 0.001]
    losses = []
    for _ in range(30):
        optimizer.zero_grad()
        loss = loss_of(runner)
        runner.backward(loss)
        optimizer.step()
        losses.append(float(loss.detach()))
        runner.check_loss(losses[-1], KEYS)
    assert losses[-1] < losses[0]
    figures = runner.evaluate([runner.collate(ITEMS[:4]), runner.collate(ITEMS[4:])])
    assert figures.keys() == {"loss", "wer"}  # "seen" is not finite: unknown
    assert figures["loss"] == pytest.approx(loss_of(runner).item(), rel=1e-5)
    assert runner.model.training


def test_equal_seeds_give_equal_digests_and_other_weights_another() -> None:
    one, same, other = runner_of(), runner_of(), runner_of(seed=8)
    assert one.start_digest() == same.start_digest()
    assert len(one.start_digest()) == 16
    assert one.start_digest() != other.start_digest()
    with torch.no_grad():
        same.model[1].bias[3] += 1e-7
    assert one.start_digest() != same.start_digest()
    one.model.register_buffer("counter", torch.tensor(3))
    assert one.start_digest() != runner_of().start_digest()


def test_a_named_pipeline_replaces_those_of_the_task() -> None:
    assert runner_of().pipeline.name == "small"
    assert runner_of().heldout_pipeline.name == "small held out"
    replaced = runner_of(pipeline="small_task:OTHER")
    assert (replaced.pipeline.name, replaced.heldout_pipeline.name) == ("other", "other")
    with pytest.raises(PipelineError, match="small_task:build is a function, not a Pipeline"):
        runner_of(pipeline="small_task:build")
    with pytest.raises(PipelineError, match="small_task:NONE: small_task defines no NONE"):
        runner_of(pipeline="small_task:NONE")


@pytest.mark.parametrize(
    ("fails", "sentence"),
    [
        ("loss", r"loss failed: .*small_task\.py:\d+: IndexError: list index out of range"),
        ("number", "loss gives a float, not a tensor"),
        (
            "vector",
            r"loss gives a tensor of shape \(3,\) and type torch.float32.*return the mean over the batch",
        ),
        ("detached", "the loss has no gradient"),
        ("memory", "out of memory on cpu in loss with batches of 16 samples; set swarm.batch_size: 8"),
    ],
)
def test_a_wrong_loss_is_one_sentence(fails: str, sentence: str) -> None:
    with pytest.raises(TaskError, match=f"^task small_task:build: {sentence}"):
        loss_of(runner_of(settings={"fails": fails}))


def test_out_of_memory_with_one_sample_asks_for_another_machine() -> None:
    with pytest.raises(TaskError, match="batches of 1 samples; use a machine with more memory"):
        loss_of(runner_of(settings={"fails": "memory"}, batch_size=1))


def test_errors_of_collate_and_of_samples() -> None:
    with pytest.raises(TaskError, match=r"collate failed: .*small_task\.py:\d+: RuntimeError: no such batch"):
        runner_of(settings={"fails": "collate"}).collate(ITEMS)

    def damaged() -> Any:
        raise BadSampleError("s3://b/a.tar", "7", "decode", "bad")
        yield

    with pytest.raises(BadSampleError):  # not the task's fault
        runner_of().evaluate(damaged())


def test_losses_that_are_not_finite_end_the_run_after_three_in_a_row() -> None:
    runner = runner_of(settings={"fails": "nan"})
    loss = float(loss_of(runner).detach())
    for good in (0.5, 0.4):
        assert not runner.check_loss(loss, KEYS)  # and so its gradient is not added
        assert not runner.check_loss(float("inf"), KEYS)
        assert runner.check_loss(good, KEYS)
    runner.check_loss(loss, KEYS[:1])
    runner.check_loss(loss, KEYS[1:2])
    with pytest.raises(
        TaskError, match=r"3 times in a row, with samples 0000 of s3://b/a\.tar, 0001 of .* 4 others"
    ):
        runner.check_loss(loss, KEYS)


@pytest.mark.parametrize(
    ("figures", "sentence"),
    [
        ({"accuracy": 93.0}, "an accuracy of 93, which is not between 0 and 1"),
        ({"Top 5": 0.5}, "a figure named 'Top 5'"),
        ({f"m{n}": 0.5 for n in range(40)}, "43 figures, but at most 32"),
        ({"wer": "x"}, r"evaluate failed: .*ValueError"),
    ],
)
def test_figures_that_cannot_be_published_are_refused(figures: dict[str, Any], sentence: str) -> None:
    runner = runner_of(settings={"figures": figures})
    with pytest.raises(TaskError, match=sentence):
        runner.evaluate([runner.collate(ITEMS)])
    assert runner.model.training


@pytest.mark.parametrize(
    "groups",
    [
        lambda model: [],
        lambda model: [{"params": [model[1].bias]}, {"params": [model[1].bias]}],
        lambda model: [{"params": [torch.nn.Parameter(torch.zeros(1))]}],
    ],
)
def test_wrong_parameter_groups_are_refused(groups: Any) -> None:
    runner = runner_of()
    runner._task.parameter_groups = lambda: groups(runner.model)
    with pytest.raises(TaskError, match="parameter_groups gives"):
        runner.parameter_groups()
    runner._task.parameter_groups = lambda: [{"lr": 1.0}]
    with pytest.raises(TaskError, match=r"parameter_groups failed: .*KeyError"):
        runner.parameter_groups()


def test_an_emulated_task_gets_the_parameters_it_lacks() -> None:
    runner = runner_of(emulated=True, parameters=5000)
    assert sum(p.numel() for p in runner.parameters()) == 5000
    assert sum(p.numel() for group in runner.parameter_groups() for p in group["params"]) == 5000
    assert all(p.grad is not None for p in runner.parameter_groups()[-1]["params"])
    assert runner.device.type == "cpu"
    assert sum(p.numel() for p in runner_of(emulated=True, parameters=650).parameters()) == 650
    with pytest.raises(ModelSizeError, match="the network itself has 650"):
        runner_of(emulated=True, parameters=649)


def test_batches_of_an_evaluation_are_not_larger_than_those_of_the_training() -> None:
    task = {"call": "small_task:build"}
    assert evaluation_samples(config_of("a", "", (), batch_size=16)) == 64
    assert evaluation_samples(config_of("a", "", (), batch_size=16, task=task)) == 16
    assert evaluation_samples(config_of("a", "", (), batch_size=256, task=task)) == 64


def test_tensors_are_found_in_nested_batches() -> None:
    pair = namedtuple("pair", "a b")
    batch = {"x": [torch.zeros(1), "text"], "y": (pair(torch.zeros(1), None), 3)}
    moved = map_tensors(lambda tensor: tensor + 1, batch)
    assert moved == {"x": [torch.ones(1), "text"], "y": (pair(torch.ones(1), None), 3)}
    assert type(moved["y"][0]) is pair


USER = {
    "my_error.py": ("import math\nmath.nothing\n", r"my_error\.py:2: AttributeError"),
    "my_empty.py": ("", "my_empty:build: my_empty defines no build"),
    "my_syntax.py": ("def build(:\n", r"my_syntax\.py:1: SyntaxError"),
    "my_import.py": (
        "import not_there_at_all\n",
        r"my_import\.py:1: ModuleNotFoundError: .*not_there_at_all",
    ),
    "my_raise.py": ("def build(config, seed):\n    return 1 / 0\n", r"my_raise\.py:2: ZeroDivisionError"),
    "my_none.py": ("def build(config, seed):\n    return None\n", "its 'model' is not a Module"),
}


@pytest.mark.parametrize("name", USER)
def test_errors_of_the_users_file_name_file_and_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    source, sentence = USER[name]
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / name).write_text(source)
    config = config_of("a", "", (), code_folder="code", task={"call": f"{name[:-3]}:build"})
    use_code_folder(config, tmp_path)
    with pytest.raises(TaskError, match=sentence):
        build_runner(config)


def test_a_module_that_was_not_shipped_is_named() -> None:
    for changes in ({"task": {"call": "not_there:build"}}, {"pipeline": "not_there:NAME"}):
        with pytest.raises(
            (TaskError, PipelineError), match=r"cannot be imported \(No module named 'not_there'\)"
        ):
            build_runner(config_of("a", "", (), **changes))


def test_settings_of_a_task_that_are_wrong_are_refused() -> None:
    with pytest.raises(TaskError, match=r"task small_task:build: with\.wrong: this setting does not exist"):
        runner_of(settings={"wrong": 1})


def test_a_missing_code_folder_is_refused(tmp_path: Path) -> None:
    use_code_folder(config_of("a", "", ()), tmp_path)
    with pytest.raises(PeerConfigError, match=r"code_folder: .*nowhere is not a folder"):
        use_code_folder(config_of("a", "", (), code_folder="nowhere"), tmp_path)


def test_memory_of_a_gpu_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    runner = runner_of()
    runner.device = torch.device("cuda")
    properties = SimpleNamespace(name="NVIDIA T4", total_memory=15_600_000_000)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: properties)
    runner._task.loss = lambda _: (_ for _ in ()).throw(torch.OutOfMemoryError("CUDA out of memory"))
    with pytest.raises(TaskError, match=r"out of memory on NVIDIA T4 \(15\.6 GB\) in loss .*batch_size: 8"):
        runner.loss({})
