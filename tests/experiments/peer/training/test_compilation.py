"""`swarm.compile`: the same training with a compiled model, a first step without traces, and clear refusals."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402 - after torch is known to exist

from experiments.peer.training.compilation import compile_in_place, first_step  # noqa: E402
from experiments.peer.training.periodic_evaluation import build_copy  # noqa: E402
from experiments.peer.training.task import TaskRunner, build_runner  # noqa: E402
from experiments.tasks.compiler import missing_compiler  # noqa: E402
from experiments.tasks.protocol import TaskError  # noqa: E402
from tests.experiments.peer_rig import config_of  # noqa: E402

needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="no C++ compiler")
pytestmark = pytest.mark.timeout(600)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "compiled"))
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def config(name: str = "norm_task", **changes: Any) -> Any:
    task = {"call": f"{name}:build", "with": {}, "sha256": "0" * 64}
    return config_of(
        "a", "", ("s3://b/t.tar",), **{"task": task, "emulated": False, "compile": True, **changes}
    )


def batch() -> dict[str, Any]:
    generator = torch.Generator().manual_seed(3)
    return {"images": torch.rand(16, 64, generator=generator), "labels": torch.arange(16) % 10, "more": []}


def state(runner: TaskRunner) -> list[Any]:
    return [tensor.detach().clone() for tensor in runner.state()]


def equal(ours: list[Any], theirs: list[Any]) -> bool:
    return all(torch.equal(one, other) for one, other in zip(ours, theirs, strict=True))


def graphs() -> int:
    return torch._dynamo.utils.counters["stats"]["unique_graphs"]


@needs_compiler
def test_the_first_step_leaves_no_trace() -> None:
    runner = build_runner(config())
    kept = torch.ones(3)
    gradients = [torch.full_like(parameter, 2.0) for parameter in runner.parameters()]
    for parameter, gradient in zip(runner.parameters(), gradients, strict=True):
        parameter.grad = gradient
    before, drawn, digest, made = state(runner), torch.random.get_rng_state(), runner.start_digest(), graphs()
    assert runner.compile_with(batch()) > 0
    assert graphs() > made
    assert equal(state(runner), before)
    assert runner.start_digest() == digest == build_runner(config(compile=False)).start_digest()
    assert torch.equal(torch.random.get_rng_state(), drawn)
    for parameter, gradient in zip(runner.parameters(), gradients, strict=True):
        assert parameter.grad is gradient
        assert bool((gradient == 2.0).all())
    assert bool((kept == 1).all())


@needs_compiler
def test_names_and_gradients_are_those_of_the_plain_model_and_nothing_is_compiled_again() -> None:
    compiled, plain = build_runner(config()), build_runner(config(compile=False))
    for runner in (compiled, plain):  # random numbers of compiled code are others
        for module in runner.model.modules():
            if isinstance(module, nn.Dropout):
                module.p = 0.0
    compiled.compile_with(batch())
    made = graphs()
    for runner in (compiled, plain):
        for _ in range(3):
            runner.backward(runner.loss(batch()))
    assert graphs() == made
    assert list(compiled.model.state_dict()) == list(plain.model.state_dict())
    for ours, theirs in zip(compiled.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-4, atol=1e-5)


@needs_compiler
def test_evaluations_are_not_compiled_and_training_goes_on_compiled() -> None:
    compiled, plain = build_runner(config()), build_runner(config(compile=False))
    compiled.compile_with(batch())
    made = graphs()
    for runner in (compiled, plain):
        runner.common_batches = (batch(),)
    with compiled.common_statistics(), plain.common_statistics():
        assert compiled.evaluate([batch()]) == plain.evaluate([batch()])
    compiled.backward(compiled.loss(batch()))
    assert graphs() == made
    assert not build_copy(config()).compiles


def test_a_machine_without_a_compiler_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(
        TaskError,
        match=r"^swarm\.compile needs a C\+\+ compiler, but there is no no-such-compiler here; install it",
    ):
        build_runner(config())
    build_runner(config(compile=False))


def test_what_a_machine_lacks(tmp_path: Path) -> None:
    def have(name: str) -> None:
        (tmp_path / name).write_text("#!/bin/sh\n")
        (tmp_path / name).chmod(0o755)

    there = {"PATH": str(tmp_path)}
    assert "there is no g++ here" in str(missing_compiler("cpu", there))
    have("g++")
    assert missing_compiler("cpu", there) is None
    assert "there is no other here" in str(missing_compiler("cpu", {**there, "CXX": "other"}))


@needs_compiler
def test_a_loss_that_does_not_call_the_model_is_refused() -> None:
    runner = build_runner(config())
    layers = list(runner.model)

    class Parts:
        training = True

        def __call__(self, images: Any) -> Any:
            for layer in layers:
                images = layer(images)
            return images

    task: Any = runner.task
    task.model = Parts()
    with pytest.raises(
        TaskError, match="loss does not call its model, only parts of it, so nothing was compiled"
    ):
        runner.compile_with(batch())


@needs_compiler
def test_code_that_cannot_be_compiled_is_one_sentence() -> None:
    runner = build_runner(config())

    def fails(graph: Any, inputs: Any) -> Any:
        raise RuntimeError("no kernel for this")

    compile_in_place(runner.model, runner.device, backend=fails)
    before = state(runner)
    with pytest.raises(TaskError, match=r"torch\.compile cannot compile the model .*; remove swarm\.compile"):
        runner.compile_with(batch())
    assert equal(state(runner), before)


def test_an_error_of_the_task_stays_its_own() -> None:
    task = {"call": "norm_task:build", "with": {"fails": "loss"}, "sha256": "0" * 64}
    runner = build_runner(config(task=task, compile=False))
    with pytest.raises(TaskError, match=r"small_task\.py:\d+.*IndexError"):
        runner.compile_with(batch())


@needs_compiler
def test_buffers_that_the_first_step_makes_or_resizes_are_as_before() -> None:
    """As a cache that a model fills when it is called for the first time."""
    model = nn.Sequential(nn.Linear(3, 1))
    model.register_buffer("cache", torch.tensor([1.0, 2.0]))
    cache = model.get_buffer("cache")
    compile_in_place(model, torch.device("cpu"), backend="eager")

    def step(values: Any) -> None:
        model.register_buffer("made", torch.ones(1))
        cache.resize_(5).fill_(7.0)
        model(values).sum().backward()

    assert first_step(model, step, torch.ones(2, 3), torch.device("cpu")) > 0  # type: ignore[arg-type]
    assert dict(model.named_buffers()).keys() == {"cache"}
    assert model.get_buffer("cache") is cache
    assert cache.tolist() == [1.0, 2.0]
