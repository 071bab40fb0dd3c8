"""Several accelerators in one VM: two ranks are one with twice the batch, and what ends a rank ends the peer with the reason."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from peer_rig import PeerProcess, config_of, serve_folder

from cloud.storage.digits import write_shards
from experiments.peer.training.decoding import WorkerEndedError
from experiments.peer.training.ranks import Ranks
from experiments.peer.training.task import TaskRunner, build_runner
from experiments.tasks.protocol import TaskError

pytestmark = [pytest.mark.processes, pytest.mark.timeout(180)]

Batch = tuple[torch.Tensor, torch.Tensor]
PLACES = [[("s3://b/0.tar", str(n)) for n in range(4)]]


def batches() -> list[Batch]:
    rng = torch.Generator().manual_seed(3)
    return [(torch.rand(4, 64, generator=rng), torch.tensor([0, 1, 2, 3])) for _ in range(2)]


def gradients(task: TaskRunner) -> list[torch.Tensor]:
    found = [parameter.grad for parameter in task.parameters()]
    assert all(gradient is not None for gradient in found)
    return [gradient.clone() for gradient in found if gradient is not None]


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[TaskRunner, Ranks]]:
    threads, folder = torch.get_num_threads(), tmp_path_factory.mktemp("ranks")
    config = config_of("a", "", ("s3://b/train.tar",), model="digits", emulated=False, ranks=2, threads=1)
    task = build_runner(config)
    ranks = Ranks(config, folder, folder, task)
    yield task, ranks
    ranks.close()
    torch.distributed.destroy_process_group()
    torch.set_num_threads(threads)


def accumulate(task: TaskRunner, ranks: Ranks, own: Batch, others: Batch) -> list[float]:
    ranks.accumulate([others], PLACES)
    loss = task.loss(own)
    task.backward(loss)
    losses = ranks.losses(threading.Event())
    assert losses is not None
    return [loss.item(), *losses]


def test_two_ranks_equal_one_rank_with_twice_the_batch(pair: tuple[TaskRunner, Ranks]) -> None:
    task, ranks = pair
    first, second = batches()
    alone = build_runner(config_of("a", "", ("s3://b/train.tar",), model="digits", emulated=False))
    whole = alone.loss((torch.cat([first[0], second[0]]), torch.cat([first[1], second[1]])))
    alone.backward(whole)
    losses = accumulate(task, ranks, first, second)
    ranks.average_gradients()
    assert sum(losses) / 2 == pytest.approx(whole.item(), rel=1e-6)
    for ours, theirs in zip(gradients(task), gradients(alone), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-7)
    task.model.zero_grad(set_to_none=False)


def test_the_others_follow_the_peers_weights_bit_by_bit(pair: tuple[TaskRunner, Ranks]) -> None:
    """After new weights, the same batch has the same loss and gradient on both."""
    task, ranks = pair
    batch, _ = batches()
    accumulate(task, ranks, batch, batch)  # dropped below
    with torch.no_grad():
        for tensor in task.state():
            tensor.add_(0.25)
    task.model.zero_grad(set_to_none=False)
    ranks.copy_model(drop_gradients=True)
    losses = accumulate(task, ranks, batch, batch)
    own = gradients(task)
    ranks.average_gradients()
    assert losses[0] == losses[1]
    assert all(torch.equal(before, after) for before, after in zip(own, gradients(task), strict=True))
    task.model.zero_grad(set_to_none=False)
    accumulate(task, ranks, batch, batch)
    ranks.average_gradients()  # those before were not counted twice
    assert all(torch.equal(before, after) for before, after in zip(own, gradients(task), strict=True))
    task.model.zero_grad(set_to_none=False)


def test_a_batch_that_cannot_be_sent_is_an_error_and_not_awaited(pair: tuple[TaskRunner, Ranks]) -> None:
    class Local:
        pass

    _, ranks = pair
    with pytest.raises(TaskError, match="collate gives a batch that cannot be sent to another process"):
        ranks.accumulate([Local()], PLACES)


def test_steps_that_others_dropped_are_counted(pair: tuple[TaskRunner, Ranks]) -> None:
    task, _ = pair
    told: list[str] = []
    task.precision.warn = told.append
    for count in (0, 2, 2, 3):
        task.precision.others_dropped(count)
    assert [text.split("gradients of ")[1].split()[0] for text in told] == ["2", "3"]


def test_losses_that_are_not_finite_name_the_samples_of_their_rank(
    pair: tuple[TaskRunner, Ranks], caplog: pytest.LogCaptureFixture
) -> None:
    """They are logged and counted in the peer, by rank, and add no gradient."""
    task, ranks = pair
    good, _ = batches()
    bad = (torch.full((4, 64), float("nan")), good[1])
    for _ in range(2):
        losses = accumulate(task, ranks, good, bad)
        assert task.check_loss(losses[0], PLACES[0])  # rank 0's does not reset the count of rank 1
    own = gradients(task)
    assert "a loss of nan on accelerator 1 with samples s3://b/0.tar 0, s3://b/0.tar 1" in caplog.text
    ranks.average_gradients()
    assert all(torch.equal(before / 2, after) for before, after in zip(own, gradients(task), strict=True))
    ranks.accumulate([bad], PLACES)
    with pytest.raises(
        TaskError,
        match=r"the loss on accelerator 1 was not .* 3 times in a row, with samples 0 of s3://b/0\.tar",
    ):
        ranks.losses(threading.Event())
    accumulate(task, ranks, good, good)  # a good one resets it
    accumulate(task, ranks, good, bad)
    task.model.zero_grad(set_to_none=False)
    ranks.copy_model(drop_gradients=True)


def test_what_ends_a_rank_ends_the_peer(pair: tuple[TaskRunner, Ranks]) -> None:
    """Last: the rank is gone after it."""
    _, ranks = pair
    ranks.accumulate([(torch.zeros(4, 63), torch.zeros(4, dtype=torch.int64))], PLACES)
    with pytest.raises(TaskError, match=r"task digits: .*mat1 and mat2 shapes"):
        ranks.losses(threading.Event())
    with pytest.raises(WorkerEndedError, match="accelerator 1 ended with exit code 0"):
        ranks.losses(threading.Event())
    stop = threading.Event()
    stop.set()
    assert ranks.losses(stop) is None


def test_a_peer_trains_with_two_ranks_as_with_twice_the_batch(tmp_path: Path) -> None:
    """Two programs, each the only peer of its swarm."""
    made = write_shards(tmp_path / "store", 4, samples_per_shard=100)
    shards = tuple(f"s3://bucket/{name}" for name in made.train)
    settings = {
        "model": "digits", "emulated": False, "plain": True, "threads": 1, "target_batch_size": 128, "max_epochs": 4,
        "optimizer": {"name": "sgd", "lr": 0.1},
    }  # fmt: skip
    with serve_folder(tmp_path / "store") as endpoint:
        peers = [
            PeerProcess(
                tmp_path / name, config_of("a", endpoint, shards, batch_size=size, ranks=ranks, **settings)
            )
            for name, ranks, size in (("two", 2, 8), ("one", 1, 16))
        ]
        try:
            done = [peer.wait_for(lambda status: status["phase"] == "done", 120) for peer in peers]
            two, one = (np.fromfile(peer.folder / "parameters.f32", dtype="<f4") for peer in peers)
            children = [int(pid) for pid in _children(peers[0].process.pid)]
            peers[0].process.send_signal(signal.SIGKILL)
            peers[0].process.wait(20)
        finally:
            for peer in peers:
                peer.kill()
    assert [status["epoch"] for status in done] == [4, 4]
    np.testing.assert_allclose(two, one, rtol=1e-4, atol=1e-6)
    assert children
    give_up_at_s = time.monotonic() + 10
    while any(map(_alive, children)) and time.monotonic() < give_up_at_s:
        time.sleep(0.05)
    assert not any(map(_alive, children))  # the rank too ends with the peer


def _children(pid: int) -> list[str]:
    found: list[str] = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        found += (task / "children").read_text().split()
    return found


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z"
