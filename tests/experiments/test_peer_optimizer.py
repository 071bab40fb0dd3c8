"""The two mends of hivemind.Optimizer with reused gradient buffers, on a real optimizer of one peer."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import hivemind
import pytest
import torch
from hivemind.averaging.control import StepControl
from hivemind.optim.progress_tracker import ProgressTracker

from experiments.peer.build import build_optimizer
from experiments.peer.optimizer import Round, SwarmOptimizer
from experiments.peer.swarm import start_dht

sys.path.insert(0, str(Path(__file__).parent))
from hivemind_here import apart
from peer_rig import config_of

pytestmark = [pytest.mark.processes, pytest.mark.timeout(90)]

GRADIENTS = (1, 2, 3, 4)
MENDS = (
    "_begin_averaging_gradients",
    "_load_local_gradients_into_optimizer",
    "_average_gradients_and_load_into_optimizer",
)


def epoch(optimizer: SwarmOptimizer, parameter: torch.nn.Parameter) -> tuple[float, Round]:
    """Four steps, then the end of the epoch: what SGD subtracted, and what was said about the round."""
    before = parameter.detach().clone()
    for gradient in GRADIENTS:
        (gradient * parameter.sum()).backward()
        optimizer.grad_averager.accumulate_grads_(1)
    optimizer._update_global_epoch(None)
    moved = before - parameter.detach()
    assert torch.equal(moved, moved[:1].expand(3))
    assert torch.equal(parameter.grad, torch.zeros(3))  # the buffers are ready for the next epoch
    return float(moved[0]), optimizer.take_round()


def peers_known(count: int) -> None:
    """From now on every tracker counts so many peers."""
    progress = property(
        lambda self: replace(self.__dict__["global_progress"], num_peers=count),
        lambda self, value: self.__dict__.update(global_progress=value),
    )
    ProgressTracker.global_progress = progress


def broken(_control: StepControl, _timeout: float | None = None) -> None:
    raise RuntimeError("the round broke off")


def four_epochs(folder: Path) -> dict[str, tuple[float, Round]]:
    """Alone and after a failed round, mended and as Hivemind is."""
    parameter = torch.nn.Parameter(torch.zeros(3))
    config = config_of("a", "", (), optimizer={"name": "sgd", "lr": 1.0}, target_batch_size=10**6)
    dht, _ = start_dht(config, folder / "a.key")
    optimizer = build_optimizer(config, dht, [parameter])
    StepControl.result = broken
    found = {}
    for kind in ("mended", "unmended"):
        for peers, name in ((1, "alone"), (2, "failed round")):
            peers_known(peers)
            found[f"{kind}, {name}"] = epoch(optimizer, parameter)
        for name in MENDS:
            setattr(SwarmOptimizer, name, getattr(hivemind.Optimizer, name))
    return found


@pytest.fixture(scope="module")
def found() -> dict[str, tuple[float, Round]]:
    return apart(four_epochs)


def test_alone_it_steps_with_the_mean_of_the_gradients(found) -> None:
    moved, done = found["mended, alone"]
    assert moved == 2.5
    assert (done.group_size, done.losses) == (1, [])


def test_after_a_failed_round_it_steps_with_its_own_mean(found) -> None:
    moved, done = found["mended, failed round"]
    assert moved == 2.5
    assert done.group_size == 1
    assert done.losses == ["averaging failed (RuntimeError): local gradients"]


def test_unmended_hivemind_still_has_the_faults(found) -> None:
    """Alone the sum, after a failed round nothing. If this fails, the mends can go."""
    assert found["unmended, alone"][0] == 10.0
    assert found["unmended, failed round"][0] == 0.0
