"""Mixed precision: what is calculated in 16 bits, what stays in 32, and gradients that overflow."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from experiments.peer.config import PeerConfigError  # noqa: E402 - after torch is known to exist
from experiments.peer.optimizer.build import torch_optimizer_of  # noqa: E402
from experiments.peer.training import precision as module  # noqa: E402
from experiments.peer.training.task import TaskRunner, build_runner  # noqa: E402
from experiments.tasks.errors import TaskError  # noqa: E402
from tests.experiments.peer_rig import config_of  # noqa: E402

ITEMS = [{"image": torch.full((64,), n / 8).numpy(), "label": n} for n in range(8)]
TYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def runner_of(precision: str, **settings: Any) -> TaskRunner:
    task = {"call": "small_task:build", "with": settings, "sha256": "0" * 64}
    return build_runner(config_of("a", "", (), task=task, emulated=False, precision=precision))


def loss_of(runner: TaskRunner, times: float = 1.0) -> Any:
    return runner.loss(runner.move(runner.collate(ITEMS))) * times


def gradients_of(runner: TaskRunner) -> list[Any]:
    return [parameter.grad.clone() for parameter in runner.parameters()]


@pytest.mark.parametrize("precision", list(TYPES))
def test_loss_and_evaluation_are_calculated_in_it_and_the_loss_falls(precision: str) -> None:
    runner, calculated = runner_of(precision), set()
    runner.model[1].register_forward_hook(lambda _, __, output: calculated.add(output.dtype))
    optimizer, losses = torch_optimizer_of({"name": "sgd", "lr": 0.1})(runner.parameter_groups()), []
    for _ in range(30):
        optimizer.zero_grad()
        losses.append(loss_of(runner))
        assert runner.backward(losses[-1])
        optimizer.step()
    assert losses[-1] < 0.9 * losses[0]
    assert runner.evaluate([runner.collate(ITEMS)])["loss"] == pytest.approx(losses[-1].item(), rel=0.02)
    assert calculated == {TYPES[precision]}
    kept = {tensor.dtype for p in runner.parameters() for tensor in (p, p.grad)} | {
        loss.dtype for loss in losses
    }
    assert kept == {torch.float32}


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_accumulated_gradients_are_unscaled_and_about_those_of_fp32(precision: str) -> None:
    found, exact = runner_of(precision), runner_of("fp32")
    for runner in (found, exact):
        for _ in range(2):
            assert runner.backward(loss_of(runner, 0.5))
    for one, other in zip(gradients_of(found), gradients_of(exact), strict=True):
        assert torch.allclose(one, other, rtol=0.05, atol=0.01 * float(other.abs().max()))
        assert not torch.equal(one, other)


def test_gradients_that_overflow_are_dropped_counted_and_lower_the_scale() -> None:
    runner, warnings = runner_of("fp16"), list[str]()
    runner.precision.warn = warnings.append
    assert runner.backward(loss_of(runner))
    before = gradients_of(runner)
    while not runner.backward(loss_of(runner, 100.0)):  # 100 x 65536 / 8 does not fit into fp16
        assert all(map(torch.equal, gradients_of(runner), before))
    dropped = runner.precision.dropped
    assert 1 <= dropped <= 5
    assert runner.precision.scale == 2.0 ** (16 - dropped)
    assert len(warnings) == dropped
    assert warnings[-1].startswith(f"fp16: the gradients of {dropped} accelerator steps were not finite")
    exact = runner_of("fp32")
    exact.backward(loss_of(exact, 101.0))
    for one, other in zip(gradients_of(runner), gradients_of(exact), strict=True):
        assert torch.allclose(one, other, rtol=0.05, atol=0.01 * float(other.abs().max()))


def test_the_scale_grows_after_many_good_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_GOOD_STEPS", 2)
    runner, scales = runner_of("fp16"), []
    for times in (100.0, 1.0, 1e-3, 1e-3, 1e-3):
        runner.backward(loss_of(runner, times))
        scales.append(runner.precision.scale)
    assert scales == [2.0**15, 2.0**15, 2.0**16, 2.0**16, 2.0**17]


def test_gradients_that_are_never_finite_end_the_run() -> None:
    runner = runner_of("fp16")

    def step() -> bool:
        loss = loss_of(runner)
        return runner.backward(loss + (loss - loss).abs().sqrt())  # finite, but its gradient is not

    assert [step() for _ in range(19)] == [False] * 19
    with pytest.raises(TaskError, match="gradients of 20 steps in a row were not finite in fp16"):
        step()
    assert runner.precision.scale == 1.0


def test_the_emulated_network_with_ballast_trains_in_fp16() -> None:
    runner = build_runner(config_of("a", "", (), precision="fp16"))
    batch = runner.collate(ITEMS)
    for parameter in runner.parameters():
        parameter.grad = torch.zeros_like(parameter)
    buffers = [parameter.grad for parameter in runner.parameters()]
    assert runner.backward(runner.loss(batch))
    assert all(
        p.grad is before for p, before in zip(runner.parameters(), buffers, strict=True)
    )  # as Hivemind needs it
    assert sum(float(buffer.abs().sum()) > 0 for buffer in buffers) == 4  # weights and biases of two layers


def test_an_unknown_precision_is_a_problem_of_the_config() -> None:
    with pytest.raises(PeerConfigError, match="precision: 'fp8' is not one of fp32, bf16, fp16"):
        runner_of("fp8")


def test_a_loss_that_is_not_finite_in_fp16_has_another_advice() -> None:
    for precision, advice in (
        ("fp32", "; lower optimizer.lr"),
        ("fp16", "; set swarm.precision: bf16, lower"),
    ):
        runner = runner_of(precision)
        loss, samples = float("inf"), (("s3://b/a.tar", "7"),)
        assert [runner.check_loss(loss, samples) for _ in range(2)] == [False, False]
        with pytest.raises(TaskError, match=advice):
            runner.check_loss(loss, samples)
