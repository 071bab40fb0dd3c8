"""The torch optimizers that a peer builds."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hivemind.optim.state_averager import dump_optimizer_state, initialize_optimizer_state_

from experiments.peer.config import PeerConfigError
from experiments.peer.optimizer.build import torch_optimizer_of, with_state
from experiments.schema.models import Optimizer

NAMES = ("adam", "adamw", "sgd", "lamb")


def stepped(settings: dict[str, Any], steps: int = 3) -> torch.Tensor:
    weight = torch.nn.Parameter(torch.linspace(-1.0, 1.0, 5))
    optimizer = torch_optimizer_of(settings)([weight])
    for _ in range(steps):
        weight.grad = weight.detach().square() + 0.1
        optimizer.step()
    return weight.detach()


@pytest.mark.parametrize("name", NAMES)
def test_every_optimizer_of_the_experiment_file_can_be_built(name: str) -> None:
    settings = Optimizer(name=name, weight_decay=0.1).as_mapping()  # type: ignore[arg-type]
    assert not torch.equal(stepped(settings), stepped({**settings, "weight_decay": 0.0}))


def test_adamw_decays_weights_apart_from_the_gradient_and_by_default_as_torch_does() -> None:
    found = stepped(Optimizer(name="adamw", lr=0.1).as_mapping())
    weight = torch.nn.Parameter(torch.linspace(-1.0, 1.0, 5))
    torchs = torch.optim.AdamW([weight], lr=0.1)
    for _ in range(3):
        weight.grad = weight.detach().square() + 0.1
        torchs.step()
    assert torch.equal(found, weight.detach())
    without = {"name": "adamw", "lr": 0.1, "weight_decay": 0.0}
    assert torch.equal(stepped(without), stepped({"name": "adam", "lr": 0.1}))
    assert not torch.equal(found, stepped(without))


def test_settings_of_another_optimizer_are_refused() -> None:
    with pytest.raises(PeerConfigError, match="adamw does not take these settings"):
        torch_optimizer_of({"name": "adamw", "momentum": 0.9})
    with pytest.raises(PeerConfigError, match="'adagrad' is not one of adam, adamw, sgd, lamb"):
        torch_optimizer_of({"name": "adagrad"})


@pytest.mark.parametrize("name", NAMES)
def test_statistics_exist_from_the_beginning_and_no_weight_has_moved(name: str) -> None:
    settings = {"name": name, "lr": 0.5, "weight_decay": 0.1}
    weight, theirs = (torch.nn.Parameter(torch.linspace(-1.0, 1.0, 5)) for _ in range(2))
    optimizer = with_state(torch_optimizer_of(settings))([weight])
    assert torch.equal(weight, torch.linspace(-1.0, 1.0, 5))
    assert (optimizer.param_groups[0]["lr"], optimizer.param_groups[0]["weight_decay"]) == (0.5, 0.1)
    hiveminds = torch_optimizer_of(settings)([theirs])
    initialize_optimizer_state_(hiveminds)
    assert dump_optimizer_state(optimizer)[0] == dump_optimizer_state(hiveminds)[0]
    assert not torch.equal(theirs, weight)  # the reason for doing it here


@pytest.mark.parametrize("name", NAMES)
def test_without_weight_decay_the_statistics_are_those_of_hiveminds_own_step(name: str) -> None:
    settings = {"name": name, "lr": 0.5, "weight_decay": 0.0}
    weight, theirs = (torch.nn.Parameter(torch.linspace(-1.0, 1.0, 5)) for _ in range(2))
    (ours, tensors), hiveminds = (
        dump_optimizer_state(with_state(torch_optimizer_of(settings))([weight])),
        torch_optimizer_of(settings)([theirs]),
    )
    initialize_optimizer_state_(hiveminds)
    metadata, expected = dump_optimizer_state(hiveminds)
    assert ours == metadata
    assert all(map(torch.equal, tensors, expected))
    assert torch.equal(weight, theirs)
