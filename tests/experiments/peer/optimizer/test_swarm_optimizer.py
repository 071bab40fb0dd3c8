"""Gradients of failed rounds, with a real optimizer of one peer."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import hivemind
import pytest
import torch
from hivemind.averaging.control import StepControl
from hivemind.averaging.matchmaking import MatchmakingException
from hivemind.optim.grad_averager import GradientAverager
from hivemind.optim.progress_tracker import ProgressTracker
from hivemind_here import apart
from peer_rig import config_of

from experiments.peer.averaging.gradient_averager import RoundAverager
from experiments.peer.averaging.lineage import expected_peers, extended
from experiments.peer.averaging.rounds import Round
from experiments.peer.optimizer import swarm_optimizer as optimizer_module
from experiments.peer.optimizer.build import build_optimizer
from experiments.peer.optimizer.swarm_optimizer import SwarmOptimizer
from experiments.peer.state.catch_up import Offer
from experiments.peer.swarm.dht_node import start_dht
from experiments.peer.swarm.members import anybody

pytestmark = [pytest.mark.processes, pytest.mark.timeout(90)]

GRADIENTS = (1, 2, 3, 4)
# Attempts begin every second while 1.5 s are left: three of them, with half a second of slack on either side.
AVERAGING_TIMEOUT_S = 4.0
MENDS = (
    (SwarmOptimizer, hivemind.Optimizer, "_begin_averaging_gradients"),
    (SwarmOptimizer, hivemind.Optimizer, "_load_local_gradients_into_optimizer"),
    (SwarmOptimizer, hivemind.Optimizer, "_average_gradients_and_load_into_optimizer"),
    (RoundAverager, GradientAverager, "step"),
)


def epoch(optimizer: SwarmOptimizer, parameter: torch.nn.Parameter) -> tuple[float, Round]:
    """Four steps and the end of the epoch; returns what SGD subtracted and the round's report."""
    before = parameter.detach().clone()
    for gradient in GRADIENTS:
        (gradient * parameter.sum()).backward()
        optimizer.grad_averager.accumulate_grads_(1)
    optimizer._update_global_epoch(None)
    moved = before - parameter.detach()
    assert torch.equal(moved, moved[:1].expand(3))
    ready = torch.zeros(3) if optimizer.grad_averager.local_times_accumulated == 0 else torch.full((3,), 10.0)
    assert torch.equal(parameter.grad, ready)  # for the next epoch, or kept as they were
    return float(moved[0]), optimizer.take_round()


def peers_known(count: int) -> None:
    """Make every tracker count this many peers."""
    progress = property(
        lambda self: replace(self.__dict__["global_progress"], num_peers=count),
        lambda self, value: self.__dict__.update(global_progress=value),
    )
    ProgressTracker.global_progress = progress


class Controls:
    """Outcomes of consecutive averaging attempts; the last one repeats."""

    def __init__(self, optimizer: SwarmOptimizer, *ends: str) -> None:
        self.optimizer, self.ends, self.began = optimizer, list(ends), 0

    def result(self, _timeout: float | None = None) -> dict[str, Any]:
        self.began += 1
        end = self.ends.pop(0) if len(self.ends) > 1 else self.ends[0]
        if end == "breaks":
            raise RuntimeError("the round broke off")
        if end == "misses a part":
            raise MatchmakingException("Unable to run All-Reduce: a part is missing")
        own = self.optimizer._version
        other = replace(own, nonce="other") if end == "succeeds" else replace(own, epoch=own.epoch + 7)
        return {"a": own.as_list(), "b": other.as_list()}


class Others:
    """A membership with the given answers."""

    gone = ()
    is_member = staticmethod(anybody)

    def __init__(self, training: int) -> None:
        self.training = training

    def others_training(self, _: int) -> int:
        return self.training

    def others_expected(self, _: int, until: str = "enough answered") -> int:
        return self.training


def epochs(folder: Path) -> dict[str, tuple[float, Round, Any]]:
    """Subtracted gradients, reports and actions by scenario, followed by two epochs with unpatched Hivemind."""
    parameter = torch.nn.Parameter(torch.zeros(3))
    config = config_of(
        "a", "", (), optimizer={"name": "sgd", "lr": 1.0}, target_batch_size=10**6,
        averaging_timeout_s=AVERAGING_TIMEOUT_S, matchmaking_time_s=1.5,
    )  # fmt: skip
    dht, _ = start_dht(config, folder / "a.key")
    optimizer = build_optimizer(config, dht, [parameter])
    optimizer_module._GIVE_UP_S = 0.3  # nobody ends the group's round here
    retried: list[str] = []
    loads: list[int] = []
    running: list[Controls] = []
    SwarmOptimizer.load_state_from_peers = lambda self: loads.append(self.local_epoch)
    found: dict[str, tuple[float, Round, Any]] = {}

    def run(name: str, peers: int, others: int, *ends: str) -> None:
        peers_known(peers)
        optimizer.watch_others(Others(others), retried.append)
        StepControl.result = lambda _self, timeout=None: controls.result(timeout)
        controls = Controls(optimizer, *ends)
        running[:] = [controls]
        before, lineage, began = optimizer.local_epoch, optimizer._lineage, time.monotonic()
        moved, done = epoch(optimizer, parameter)
        extra = {
            "epochs": optimizer.local_epoch - before, "attempts": controls.began, "retried": list(retried),
            "lost": optimizer._version.lost,
            "served": [float(sent[0]) for sent in optimizer._last_update() or ()],
            "seconds": time.monotonic() - began, "loads": list(loads), "new lineage": optimizer._lineage != lineage,
        }  # fmt: skip
        found[name] = moved, done, extra
        retried.clear(), loads.clear()

    run("alone", 1, 0, "breaks")
    run("not seen yet", 1, 1, "succeeds")
    run("second attempt", 2, 1, "breaks", "succeeds")
    run("a part is missing", 2, 1, "misses a part", "succeeds")
    run("no attempt", 2, 1, "breaks")
    run("the others died", 2, 0, "breaks")
    run("astray", 2, 1, "other lineage")
    optimizer.grad_averager.reset_accumulated_grads_()  # as a loaded state does
    newer = replace(optimizer.tracker.global_progress, epoch=optimizer.local_epoch + 1)
    optimizer.progress.ask = lambda _=0.0: newer
    run("the others went on", 2, 1, "breaks")
    optimizer.grad_averager.reset_accumulated_grads_()
    older, looks = replace(newer, epoch=optimizer.local_epoch), list[int]()

    def news_at_the_second_look_after_the_last_attempt(_timeout_s: float = 0.0) -> Any:
        looks.append(running[0].began)
        return newer if looks.count(3) > 1 else older

    optimizer.progress.ask = news_at_the_second_look_after_the_last_attempt
    run("the others' last attempt", 2, 1, "breaks")
    optimizer.progress.ask = lambda _=0.0: newer
    optimizer.grad_averager.reset_accumulated_grads_()
    passed = Offer("b", 0.1, newer.epoch, False, 0, extended(optimizer._lineage, "passed over"))
    optimizer.state_averager.offers = lambda: [passed]
    run("the others gave up", 2, 1, "breaks")
    del optimizer.state_averager.offers
    for ours, theirs, name in MENDS:
        setattr(ours, name, getattr(theirs, name))
    run("unpatched, alone", 1, 0, "breaks")
    run("unpatched, no attempt", 2, 1, "breaks")
    return found


@pytest.fixture(scope="module")
def found() -> dict[str, tuple[float, Round, Any]]:
    return apart(epochs)


def test_alone_it_steps_with_the_mean_of_the_gradients(found) -> None:
    moved, done, extra = found["alone"]
    assert moved == 2.5
    assert (done.group_size, done.losses, extra["epochs"]) == (1, [], 1)


@pytest.mark.parametrize("why", ["alone", "the others died"])
def test_a_lone_peer_serves_the_gradient_with_which_it_stepped(found, why: str) -> None:
    moved, _, extra = found[why]
    assert extra["served"] == [moved]


def test_lost_all_reduce_is_reported_in_the_next_attempt(found) -> None:
    """Its group then continues for peers that can still succeed (`lineage.patient`)."""
    assert found["second attempt"][2]["lost"] == 0
    assert found["a part is missing"][2]["lost"] == 1


def test_announced_peers_are_expected_before_their_progress_is_seen(found) -> None:
    moved, done, extra = found["not seen yet"]
    assert (moved, done.group_size, extra["attempts"]) == (2.5, 2, 1)


def test_a_second_attempt_has_the_same_gradients(found) -> None:
    moved, done, extra = found["second attempt"]
    assert moved == 2.5
    assert (done.group_size, done.losses, done.failed) == (
        2,
        [],
        ["averaging failed (RuntimeError: the round broke off)"],
    )
    assert (extra["attempts"], extra["retried"], extra["epochs"]) == (2, done.failed, 1)


def test_round_that_fails_until_the_timeout_is_given_up_by_all(found) -> None:
    """A peer that stepped with its own gradients would diverge permanently."""
    moved, done, extra = found["no attempt"]
    assert moved == 0.0
    assert done.group_size == 1
    assert done.losses == [
        "round given up: gradients dropped (averaging failed (RuntimeError: the round broke off))"
    ]
    assert extra["attempts"] == 3
    assert extra["seconds"] < 2 * AVERAGING_TIMEOUT_S
    assert (extra["epochs"], extra["new lineage"]) == (1, True)


def test_last_remaining_peer_steps_with_its_own_mean(found) -> None:
    moved, done, extra = found["the others died"]
    assert (moved, done.group_size, done.losses, extra["epochs"]) == (2.5, 1, [], 1)


@pytest.mark.parametrize("why", ["astray", "the others went on"])
def test_peer_with_other_parameters_loads_the_state(found, why: str) -> None:
    moved, done, extra = found[why]
    assert (moved, done.losses, extra["epochs"]) == (0.0, [], 0)
    assert len(extra["loads"]) == 1
    assert extra["attempts"] == 1


def test_outcome_of_the_others_last_attempt_is_awaited(found) -> None:
    """After its third attempt this peer has no time for another one; peers that gave up then were seen to diverge."""
    moved, done, extra = found["the others' last attempt"]
    assert (moved, done.losses, extra["epochs"], extra["attempts"]) == (0.0, [], 0, 3)
    assert len(extra["loads"]) == 1


def test_peer_gives_up_with_the_others_without_a_download(found) -> None:
    """The others have the same weights and no update, so the download would be the whole state."""
    moved, done, extra = found["the others gave up"]
    assert (moved, extra["epochs"], extra["attempts"], extra["loads"]) == (0.0, 1, 1, [])
    assert done.losses[0].startswith("round given up")


@pytest.mark.parametrize(
    ("failed", "late_s", "peers"), [([], 1.0, 8), (["x"], -1.0, 8), (["x"], 1.0, 1), (["x", "y"], 1.0, 1)]
)
def test_any_group_is_accepted_late_in_a_round(failed: list[str], late_s: float, peers: int) -> None:
    """Otherwise a live majority that does not take part (downloading, paused) would cost all peers the round."""
    peer: Any = SimpleNamespace(
        _others_known=lambda: 7, round=Round(failed=failed), local_epoch=4, _lineage="x",
        _any_group_at_s=time.monotonic() - late_s,
    )  # fmt: skip
    version = SwarmOptimizer._next_version(peer)
    assert (version.peers, version.attempt) == (peers, 1 + len(failed))
    assert expected_peers({"a": version, "b": version}) == (None if peers == 1 else 8)


def test_unpatched_hivemind_still_has_the_faults(found) -> None:
    """Alone it steps with the sum, after a failed round with nothing. If this fails, the patches can be removed."""
    assert found["unpatched, alone"][0] == 10.0
    assert found["unpatched, no attempt"][0] == 0.0
