"""Rates and clipping before a step: the same for a veteran, a joiner with a downloaded state, and a plain loop."""

from __future__ import annotations

import pytest
import torch
from hivemind.optim.state_averager import dump_optimizer_state, load_optimizer_state
from peer_rig import config_of

from experiments.learning_rate import CONSTANT, RateSchedule
from experiments.peer.config import PeerConfigError
from experiments.peer.optimizer.build import torch_optimizer_of, with_state
from experiments.peer.optimizer.update_rule import clip, update_rule_of

SCHEDULE = {"kind": "cosine", "epochs": 10, "warmup_epochs": 3, "final": 0.1}


class Peer:
    """Weights in two groups, the second with a rate of its own, as a task's parameter_groups gives them."""

    def __init__(self, clip_norm: float | None = 0.5) -> None:
        self.weights = [torch.nn.Parameter(torch.linspace(-1.0, 1.0, size)) for size in (6, 3)]
        settings = {"name": "adamw", "lr": 0.1}
        groups = [{"params": self.weights[:1]}, {"params": self.weights[1:], "lr": 0.02}]
        self.optimizer = with_state(torch_optimizer_of(settings))(groups)
        config = config_of("a", "", (), optimizer=settings, schedule=SCHEDULE, clip_norm=clip_norm)
        self.rule, self.epoch = update_rule_of(config, self.optimizer), 0

    @property
    def rates(self) -> list[float]:
        return [group["lr"] for group in self.optimizer.param_groups]

    def step(self, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        for weight in self.weights:
            weight.grad = torch.randn(weight.shape, generator=generator)
        self.rule.apply(self.epoch + 1)
        self.optimizer.step()
        self.epoch += 1

    def take_over(self, donor: Peer) -> None:
        """Load the donor's state, as `StateDonor` does."""
        about, tensors = dump_optimizer_state(donor.optimizer)
        load_optimizer_state(self.optimizer, about, [tensor.clone() for tensor in tensors])
        for own, theirs in zip(self.weights, donor.weights, strict=True):
            own.data.copy_(theirs.data)
        self.epoch = donor.epoch


def test_a_joiner_steps_with_the_rates_of_the_veteran_although_it_downloads_those_of_a_step_before() -> None:
    veteran, joiner = Peer(), Peer()
    for seed in range(4):
        veteran.step(seed)
    joiner.take_over(veteran)
    assert joiner.rates == veteran.rates == [0.1, 0.02]  # epoch 4 is the first one after the warm-up
    for seed in range(4, 9):
        veteran.step(seed)
        joiner.step(seed)
        factor = RateSchedule.of(SCHEDULE).factor(joiner.epoch)
        assert joiner.rates == veteran.rates == [0.1 * factor, 0.02 * factor]
        assert all(map(torch.equal, joiner.weights, veteran.weights))
    assert factor < 0.5


def test_without_a_schedule_the_rates_of_the_experiment_replace_downloaded_ones() -> None:
    weight = torch.nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD([weight], lr=0.3)
    rule = update_rule_of(config_of("a", "", ()), optimizer)
    optimizer.param_groups[0]["lr"] = 0.7
    rule.apply(99)
    assert optimizer.param_groups[0]["lr"] == 0.3


def with_gradients(*gradients: torch.Tensor) -> list[torch.nn.Parameter]:
    parameters = [torch.nn.Parameter(torch.zeros_like(gradient)) for gradient in gradients]
    for parameter, gradient in zip(parameters, gradients, strict=True):
        parameter.grad = gradient.clone()
    return parameters


def test_clipping_is_torchs_over_all_parameters() -> None:
    torch.manual_seed(3)
    gradients = [torch.randn(40, 30), torch.randn(7), torch.zeros(50)]
    ours, theirs = with_gradients(*gradients), with_gradients(*gradients)
    ours.append(torch.nn.Parameter(torch.ones(2)))  # without a gradient
    clip(ours, 1.5)
    torch.nn.utils.clip_grad_norm_(theirs, 1.5)
    for one, other in zip(ours, theirs, strict=False):
        assert one.grad is not None
        assert other.grad is not None
        assert torch.allclose(one.grad, other.grad, rtol=1e-6)
    total = torch.cat([p.grad.flatten() for p in ours if p.grad is not None]).norm()
    assert total == pytest.approx(1.5, rel=1e-5)


def test_a_shorter_gradient_keeps_its_bits() -> None:
    (parameter,) = with_gradients(torch.full((9,), 0.1))
    clip([parameter], 0.31)
    assert parameter.grad is not None
    assert torch.equal(parameter.grad, torch.full((9,), 0.1))


def test_the_order_of_summation_changes_no_bit() -> None:
    """Threads and devices add up in different orders; the norms of float32 sums differ then."""
    torch.manual_seed(5)
    values = torch.randn(1000) * torch.logspace(-4, 4, 1000)
    differing, found = set(), set()
    for seed in range(20):
        order = torch.randperm(len(values), generator=torch.Generator().manual_seed(seed))
        (parameter,) = with_gradients(values[order])
        clip([parameter], 1.0)
        assert parameter.grad is not None
        found.add(float((parameter.grad[torch.argsort(order)])[77]))
        differing.add(float(values[order].norm()))
    assert len(differing) > 1
    assert len(found) == 1


def test_an_unknown_schedule_is_a_problem_of_the_config() -> None:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.3)
    with pytest.raises(PeerConfigError, match=r"^schedule: kind 'step' is not one of constant"):
        update_rule_of(config_of("a", "", (), schedule={"kind": "step", "epochs": 2}), optimizer)
    assert update_rule_of(config_of("a", "", ()), optimizer)._schedule == CONSTANT
