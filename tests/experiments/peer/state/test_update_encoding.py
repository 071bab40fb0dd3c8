"""Served updates and the steps taken with them: two donors without processes and network."""

from __future__ import annotations

import contextlib
import multiprocessing
import threading
from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hivemind.compression import Float16Compression, NoCompression

from experiments.peer.averaging.lineage import alone
from experiments.peer.averaging.powersgd_cache import LastFactors
from experiments.peer.averaging.powersgd_math import Factors, LowRankRound, rebuild
from experiments.peer.state.catch_up import Get
from experiments.peer.state.client import DownloadError, ReceivedBlob
from experiments.peer.state.encoding import pack, unpack
from experiments.peer.state.server import StateDonor
from experiments.peer.state.snapshot_cache import SnapshotCache
from experiments.peer.state.update_encoding import _infos

SHAPES = ((24, 30), (7,), (16, 3, 5, 2), (2, 3))
RANK = 2
VALUES, WIRE = 24 * 30 + 7 + 16 * 30 + 6, 2 * (24 + 30 + 16 + 30) + 7 + 6


class Loose(StateDonor):
    """As in the peer's own process, without the averager's process."""

    def __init__(self, compression: Any, rank: int | None = RANK) -> None:
        self._parent_pid = -1  # none: there is nothing to shut down
        self.lineage, self._before, self.local_epoch, self.rank = "", "", 0, rank
        self.dht: Any = SimpleNamespace(peer_id="donor")
        self._update_compression, self._weights_lock, self._cache = (
            compression,
            threading.RLock(),
            SnapshotCache(),
        )
        self.last_update = lambda: self.averaged
        self.last_factors = lambda lineage: self.factors.get(lineage)
        torch.manual_seed(0)
        self.weights = [torch.nn.Parameter(torch.randn(shape)) for shape in SHAPES]
        self.averaged = [torch.zeros(shape) for shape in SHAPES]
        self.factors: dict[str, Factors] = {}
        self.optimizer: Any = torch.optim.Adam(self.weights, lr=0.01)

    def say(self, *, averaging: bool) -> None:
        """Do nothing: no peer asks."""

    def step(self, *args: Any, **kwargs: Any) -> None:
        """Take the optimizer's step."""
        self.optimizer.step()
        self._before, self.local_epoch = self.lineage, self.local_epoch + 1

    def round(self, factors: Factors | None, lineage: str = "") -> None:
        """End a round with a step, from factors or from `averaged`."""
        for weight, gradient in zip(self.weights, self.averaged, strict=True):
            weight.grad = gradient.clone()
        self.step()
        self.lineage = lineage or f"round {self.local_epoch}"
        if factors is not None:
            self.factors[self.lineage] = factors

    def gives(self) -> ReceivedBlob:
        blob = self._packed_update(self.local_epoch)
        assert blob is not None
        return ReceivedBlob(header=blob.header, body=blob.body, donor="donor", received=blob.body.numel())

    def takes(self, taken: ReceivedBlob) -> None:
        self.use(Get("update", self.local_epoch + 1, ("donor",)), taken)


def a_round(donor: Loose, seed: int) -> Factors:
    """A round of one peer; its average is in `averaged` afterwards."""
    generator = torch.Generator().manual_seed(seed)
    for tensor in donor.averaged:
        tensor.copy_(torch.randn(tensor.shape, generator=generator) / 64)
    round_ = LowRankRound(donor.averaged, RANK, None, weight=1, warm=False, seed=seed, epoch=0)
    left = round_.left().half().float()
    right = round_.right(left).half().float()
    round_.finish(right, "")
    return Factors(RANK, left, right)


def equal(one: Loose, other: Loose) -> bool:
    return one.lineage == other.lineage and all(map(torch.equal, one.weights, other.weights))


def test_factors_are_served_in_the_bytes_of_a_round_and_lead_to_the_same_bits() -> None:
    donor, late = Loose(NoCompression()), Loose(NoCompression())
    for seed in range(3):
        donor.round(a_round(donor, seed))
        taken = donor.gives()
        assert 2 * WIRE <= taken.received < 2 * WIRE + 16
        assert taken.received < VALUES
        late.takes(taken)
        assert equal(donor, late)


def test_update_without_factors_is_served_whole() -> None:
    donor, late = Loose(NoCompression()), Loose(NoCompression())
    donor.round(a_round(donor, 1))
    late.takes(donor.gives())
    for tensor in donor.averaged:
        tensor.copy_(torch.randn(tensor.shape))
    donor.round(None, alone(donor.lineage, "donor"))
    taken = donor.gives()
    assert taken.received >= 4 * VALUES
    late.takes(taken)
    assert equal(donor, late)


def test_average_of_another_compression_is_served_as_gradients() -> None:
    donor, late = Loose(Float16Compression(), None), Loose(Float16Compression(), None)
    for tensor in donor.averaged:
        tensor.copy_(torch.randn(tensor.shape).half())
    donor.round(None)
    taken = donor.gives()
    assert 2 * VALUES <= taken.received < 2 * VALUES + 8 * len(SHAPES)
    late.takes(taken)
    assert equal(donor, late)


@pytest.mark.parametrize("rounded", [True, False])
def test_peer_alone_steps_with_the_values_that_others_will_receive(rounded: bool) -> None:
    """Adam's first step has the same length for every non-zero gradient, and some of these are zero in float16."""
    donor, late = Loose(Float16Compression(), None), Loose(Float16Compression(), None)
    for tensor in donor.averaged:
        tensor.copy_(torch.randn(tensor.shape) * 1e-7)
    if rounded:
        donor.round_for_update(donor.averaged)
    donor.round(None, alone("", "donor"))
    late.takes(donor.gives())
    assert equal(donor, late) == rounded
    with torch.no_grad():
        apart = max(float((a - b).abs().max()) for a, b in zip(donor.weights, late.weights, strict=True))
    assert (apart == 0.0) if rounded else (apart > 0.005)


@pytest.mark.parametrize(
    ("change", "why"),
    [("shapes", "factors of"), ("epoch", "to epoch 1 at epoch 1"), ("lineage", "after '', not 'alone'")],
)
def test_update_that_does_not_fit_changes_nothing(change: str, why: str) -> None:
    donor, late = Loose(NoCompression()), Loose(NoCompression())
    donor.round(a_round(donor, 1))
    taken = donor.gives()
    if change == "shapes":
        late.weights[0] = torch.nn.Parameter(torch.zeros(24, 31))
        late.optimizer = torch.optim.Adam(late.weights, lr=0.01)
    elif change == "epoch":
        late.local_epoch = 1
    else:
        late.lineage = "alone"
    before = [weight.detach().clone() for weight in late.weights]
    with pytest.raises(DownloadError, match="does not fit") as error:
        late.takes(taken)
    assert why in str(error.value)
    assert all(map(torch.equal, late.weights, before))


def test_factors_of_another_round_are_not_served() -> None:
    donor = Loose(NoCompression())
    donor.round(a_round(donor, 1))
    donor.gives()
    donor.factors = {"round 2": a_round(donor, 2)}  # a round that it took no step with
    assert donor._packed_update(donor.local_epoch) is None


@pytest.mark.parametrize(
    ("rank", "dtype"),
    [
        ("2", torch.float32),
        ([2], torch.float32),
        (2.0, torch.float32),
        (3, torch.float32),
        (1, torch.float32),
        (RANK, torch.int64),
        (RANK, torch.float64),
        (RANK, torch.float16),
        (RANK, torch.bool),
    ],
)
def test_invalid_factors_are_refused_and_change_nothing(rank: Any, dtype: torch.dtype) -> None:
    donor, late = Loose(NoCompression()), Loose(NoCompression())
    donor.round(a_round(donor, 1))
    taken = donor.gives()
    about, tensors = unpack(taken.header, taken.body)
    assert (about["rank"], *(tensor.dtype for tensor in tensors)) == (RANK, torch.float32, torch.float32)
    if rank in (1, 3):  # as many values as it needs
        tensors = [torch.ones(rank * (24 + 16)), torch.ones(rank * (30 + 30) + 7 + 6)]
    strange = [tensor.to(dtype) for tensor in tensors]
    blob = pack({**about, "rank": rank}, strange, _infos(strange), NoCompression())
    before = [weight.detach().clone() for weight in late.weights]
    with pytest.raises(DownloadError, match=r"does not fit: ValueError\(.factors of"):
        late.takes(
            ReceivedBlob(header=blob.header, body=blob.body, donor="donor", received=blob.body.numel())
        )
    assert all(map(torch.equal, late.weights, before))
    late.takes(taken)
    assert equal(donor, late)


def test_factors_are_refused_without_powersgd() -> None:
    donor, late = Loose(NoCompression()), Loose(NoCompression(), None)
    donor.round(a_round(donor, 1))
    with pytest.raises(DownloadError, match="factors of rank 2, not None"):
        late.takes(donor.gives())


def test_factors_of_other_shapes_are_refused() -> None:
    factors = a_round(Loose(NoCompression()), 1)
    for other in ((*SHAPES, (3,)), SHAPES[:-1], ((30, 25), *SHAPES[1:])):
        tensors = [torch.ones(shape) for shape in other]
        with pytest.raises(ValueError, match="factors of"):
            rebuild(tensors, factors)
        assert all(bool((tensor == 1).all()) for tensor in tensors)


@contextlib.contextmanager
def in_another_process(last: LastFactors, puts: Sequence[tuple[Factors, str]]) -> Iterator[None]:
    def work() -> None:
        for factors, lineage in puts:
            last.put(factors, lineage)

    process = multiprocessing.get_context("fork").Process(target=work)
    process.start()
    try:
        process.join(20)
        assert process.exitcode == 0
        yield
    finally:
        process.kill()
        process.join()


def test_last_factors_are_shared_between_the_processes() -> None:
    first, second = (a_round(Loose(NoCompression()), seed) for seed in (1, 2))
    last = LastFactors(SHAPES, RANK)
    assert last.get("") is None
    with in_another_process(last, [(first, "a" * 16), (second, "b" * 16)]):
        assert last.get("a" * 16) is None
        got = last.get("b" * 16)
        assert got is not None
        assert (got.rank, torch.equal(got.left, second.left), torch.equal(got.right, second.right)) == (
            RANK,
            True,
            True,
        )
