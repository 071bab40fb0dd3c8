"""PowerSGD's arithmetic without a network: several peers' rounds in one process."""

from __future__ import annotations

import copy
from collections import Counter

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch.nn import functional

from experiments.averaging.model_shapes import model_shapes
from experiments.averaging.powersgd import factored, sent
from experiments.catalog import models
from experiments.emulation.scales import resolve_emulation
from experiments.parse.load import load
from experiments.peer.averaging.lineage import PeerVersion
from experiments.peer.averaging.powersgd import all_hold
from experiments.peer.averaging.powersgd_math import (
    MOST_TIMES,
    Kept,
    LowRankRound,
    Memory,
    first_right,
    orthonormal,
)
from experiments.peer.config import PeerConfigError
from experiments.peer.optimizer.build import compression_of
from experiments.peer.training.emulated_model import DigitsNet, build_emulated
from experiments.tasks.models import MODELS

BITS = [[87940, 509920], [-819104, -58753], [427596, -208780]]  # of torch.rand's Mersenne Twister, in 2^-20
SHAPES = ((24, 30), (7,), (16, 3, 5, 2), (2, 3))


def gradients(seed: int, shapes: tuple[tuple[int, ...], ...] = SHAPES) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator) for shape in shapes]


def mean(parts: list[torch.Tensor], weights: list[float]) -> torch.Tensor:
    total = sum(weights)
    return sum((w / total * part for w, part in zip(weights, parts, strict=True)), torch.zeros(1))


class Peer:
    """One peer's memory and the lineage of its weights."""

    def __init__(self) -> None:
        self.memory, self.lineage = Memory(), ""


def a_round(
    peers: list[Peer],
    given: list[list[torch.Tensor]],
    epoch: int,
    *,
    rank: int = 2,
    weights: list[float] | None = None,
    fails_after: str = "",
) -> list[torch.Tensor]:
    """What all step with. `fails_after`: the attempt breaks there; "finish": all of it came, but nobody believes it."""
    weights = weights or [1.0] * len(peers)
    kept = [peer.memory.begin(peer.lineage) for peer in peers]
    warm = all(one is not None for one in kept)
    tensors = [[g.clone() for g in gs] for gs in given]
    rounds = [
        LowRankRound(ts, rank, k, weight=w, warm=warm, seed=1, epoch=epoch)
        for ts, k, w in zip(tensors, kept, weights, strict=True)
    ]
    left = mean([r.left() for r in rounds], weights)
    if fails_after == "left":
        return []
    right = mean([r.right(left) for r in rounds], weights)
    if fails_after == "right":
        return []
    for peer, round_ in zip(peers, rounds, strict=True):
        peer.memory.keep(round_.finish(right, f"{peer.lineage}/{epoch}"))
        if not fails_after:
            peer.lineage = f"{peer.lineage}/{epoch}"
    assert all(torch.equal(a, b) for ts in tensors for a, b in zip(ts, tensors[0], strict=True))
    return tensors[0]


def remainders(peer: Peer) -> list[torch.Tensor]:
    kept = peer.memory.begin(peer.lineage)
    return [] if kept is None else [*kept.remainders]


def weight_kept(peer: Peer) -> float:
    kept = peer.memory.begin(peer.lineage)
    return 0.0 if kept is None else kept.weight


def test_factors_depend_only_on_the_arguments() -> None:
    one = first_right(1, 2, 3, 50, 4)
    assert one.shape == (50, 4)
    assert torch.equal(one, first_right(1, 2, 3, 50, 4))
    for other in ((2, 2, 3), (1, 3, 3), (1, 2, 4)):
        assert not torch.equal(one, first_right(*other, 50, 4))
    assert first_right(0, 0, 0, 10_000, 2).norm(dim=0).tolist() == pytest.approx([1, 1], abs=0.05)
    state = torch.random.get_rng_state()
    first_right(5, 5, 5, 9, 2)
    assert torch.equal(state, torch.random.get_rng_state())  # the process's own


def test_bits_of_the_factors_are_the_same_on_every_machine() -> None:
    found = first_right(7, 0, 0, 3, 2).mul(2**20).round().tolist()
    assert found == BITS


@given(st.integers(1, 20), st.integers(1, 8), st.integers(0, 2**31))
def test_an_orthonormal_basis(rows: int, rank: int, seed: int) -> None:
    basis = orthonormal(gradients(seed, ((rows, rank),))[0])
    lengths = basis.norm(dim=0)
    products = basis.T @ basis
    assert torch.allclose(products, torch.diag((lengths > 0).float()), atol=1e-5)
    assert int((lengths > 0).sum()) <= min(rows, rank)


def test_dependent_columns_are_dropped_and_nan_stays_nan() -> None:
    a, b = gradients(0, ((9,), (9,)))
    basis = orthonormal(torch.stack([a, b, 3 * a - b, torch.zeros(9)], 1))
    assert basis.norm(dim=0).tolist() == pytest.approx([1, 1, 0, 0])
    assert orthonormal(torch.tensor([[float("nan")], [1.0]])).isnan().all()


@given(st.integers(1, 4), st.integers(0, 2**31))
def test_matrix_of_the_rank_is_restored_exactly(rank: int, seed: int) -> None:
    a, b, vector = gradients(seed, ((40, rank), (50, rank), (7,)))
    matrix = orthonormal(a) @ orthonormal(b).T
    seen = torch.linalg.svdvals(
        matrix @ first_right(1, 0, 0, 50, 4)
    )  # the matrix, from where the round begins
    assume(seen[rank - 1] > 0.01 * seen[0])  # else a column counts as noise, and a later round sends it
    (got, rest) = a_round([Peer()], [[matrix, vector]], 0, rank=4)
    assert torch.allclose(got, matrix, atol=1e-4)
    assert torch.equal(rest, vector)


def test_processors_that_round_differently_drop_the_same_columns() -> None:
    """Rows in another order are summed up in another order."""
    dropped = list[bool]()
    for seed in range(40):
        ways = orthonormal(gradients(seed, ((50, 2),))[0].double())
        matrix = torch.stack([ways[:, 0], ways[:, 0] + 1e-3 * ways[:, 1]], 1).float()  # at the limit
        generator = torch.Generator().manual_seed(seed)
        orders = [torch.randperm(50, generator=generator) for _ in range(8)]
        found = {bool((orthonormal(matrix[order])[:, 1] == 0).all()) for order in orders}
        assert len(found) == 1, seed
        dropped += found
    assert 4 < sum(dropped) < 36  # float32's own rounding of the matrix decides


def test_weighted_mean_of_the_rank_is_restored_exactly() -> None:
    ways = orthonormal(gradients(3, ((40, 3),))[0]), orthonormal(gradients(4, ((30, 3),))[0])
    given_ = [[ways[0] @ torch.diag(d) @ ways[1].T] for d in gradients(5, ((3,), (3,), (3,)))]
    (got,) = a_round([Peer() for _ in given_], given_, 0, rank=3, weights=[1, 2, 5])
    assert torch.allclose(got, mean([g[0] for g in given_], [1, 2, 5]), atol=1e-4)


SAMPLES = st.lists(st.sampled_from([0.0, 1.0, 3.0, 16.0, 64.0]), min_size=3, max_size=3).filter(any)


@given(
    st.lists(
        st.tuples(st.sampled_from(["", "", "left", "right", "finish"]), SAMPLES), min_size=1, max_size=8
    ),
    st.integers(0, 2**31),
)
@settings(max_examples=40, deadline=None)
def test_remainder_is_sent_later_and_never_twice(attempts: list[tuple[str, list[float]]], seed: int) -> None:
    """Whatever attempts fail, at whatever point, and whoever has how many of a round's samples: all that was applied and
    what is kept make up the gradients of all samples."""
    peers = [Peer() for _ in range(3)]
    applied = [torch.zeros(shape) for shape in SHAPES]
    wanted = [torch.zeros(shape) for shape in SHAPES]
    epoch = 0
    given_ = [gradients(seed + k) for k in range(3)]
    samples = 1.0
    for fails_after, weights in attempts:
        got = a_round(peers, given_, epoch, fails_after=fails_after, weights=weights)
        if fails_after:
            continue  # the same gradients go into the next attempt
        for total, part in zip(applied, got, strict=True):
            total += sum(weights) * part
        for i, total in enumerate(wanted):
            total += sum(weights) * mean([g[i] for g in given_], weights)
        samples += sum(weights)
        epoch += 1
        given_ = [gradients(seed + 7 * epoch + k) for k in range(3)]
    for peer in peers:
        of = weight_kept(peer)
        indices = [i for i, shape in enumerate(SHAPES) if factored(shape, 2)]
        for index, rest in zip(indices, remainders(peer) or [torch.zeros(1)] * 2, strict=True):
            applied[index] += of * (rest.reshape(SHAPES[index]) if of else 0)
    for total, part in zip(wanted, applied, strict=True):
        assert torch.allclose(part / samples, total / samples, atol=1e-4)


def test_remainder_is_weighted_by_its_samples_and_at_most_four_times() -> None:
    rest, right = gradients(1, ((24, 30), (30, 2)))
    kept = Kept("", (rest,), (right,), 8.0)
    lefts = {
        weight: LowRankRound(
            [torch.zeros(24, 30)], 2, kept, weight=weight, warm=False, seed=1, epoch=0
        ).left()
        for weight in (8.0, 16.0, 2.0, 0.5, 0.0)
    }
    for weight, times in ((16.0, 0.5), (2.0, MOST_TIMES), (0.5, MOST_TIMES), (0.0, 0.0)):
        assert torch.allclose(lefts[weight], times * lefts[8.0], rtol=1e-5)


def test_remainder_of_a_small_round_is_limited_in_the_next_one() -> None:
    """Samples 256, then 1 and 1: nothing new in the small rounds, and nothing of it that their factors could hold."""
    rest, right = gradients(1, ((24, 30), (30, 2)))
    kept, added, none = Kept("", (rest,), (right,), 256.0), list[float](), torch.zeros(2 * 30)
    for _ in range(2):
        round_ = LowRankRound([torch.zeros(24, 30)], 2, kept, weight=1.0, warm=False, seed=1, epoch=0)
        once = LowRankRound(
            [torch.zeros(24, 30)],
            2,
            Kept("", (rest,), (right,), 1.0),
            weight=1.0,
            warm=False,
            seed=1,
            epoch=0,
        )
        added.append(float(round_.left().norm() / once.left().norm()))
        round_.right(torch.zeros(2 * 24))  # no column: nothing is sent
        kept = round_.finish(none, "")
        assert torch.allclose(kept.weight * kept.remainders[0], 256.0 * rest, rtol=1e-4)
    assert added == pytest.approx([MOST_TIMES, MOST_TIMES], rel=1e-3)


def test_retry_is_unaffected_by_the_failed_attempt() -> None:
    once, again = [Peer(), Peer()], [Peer(), Peer()]
    for epoch in range(3):
        given_ = [gradients(10 * epoch), gradients(10 * epoch + 1)]
        for fails_after in ("left", "right", "finish"):
            a_round(again, given_, epoch, fails_after=fails_after)
        straight, retried = a_round(once, given_, epoch), a_round(again, given_, epoch)
        assert all(torch.equal(a, b) for a, b in zip(straight, retried, strict=True))
    assert all(torch.equal(a, b) for a, b in zip(remainders(once[0]), remainders(again[0]), strict=True))


def test_remainder_is_reset_after_a_state_download_or_without_factors() -> None:
    peers = [Peer(), Peer()]
    a_round(peers, [gradients(1), gradients(2)], 0)
    assert peers[0].memory.lineages == ["/0"]
    joiner = Peer()
    joiner.lineage = "/0"
    a_round([*peers, joiner], [gradients(1), gradients(2), gradients(3)], 1)  # asserts that all get the same
    with pytest.raises(ValueError, match="not available"):
        LowRankRound(gradients(1), 2, None, weight=1, warm=True, seed=1, epoch=0)
    peers[1].lineage = "another"
    assert peers[1].memory.begin("another") is None
    assert peers[1].memory.lineages == []


def test_all_peers_keep_the_factors_of_one_round_or_all_restart() -> None:
    told = PeerVersion(3, "abc", "n")
    assert all_hold([(told, True), (told, True)])
    assert not all_hold([(told, True), (told, False)])
    assert not all_hold([(told, True), (PeerVersion(3, "other", "n"), True)])
    assert not all_hold([(told, True), (None, True)])


def test_factors_of_the_last_round_approximate_better_than_new_ones() -> None:
    """The reason to keep them: power iteration goes on from round to round."""
    a, b = orthonormal(gradients(1, ((60, 60),))[0]), orthonormal(gradients(2, ((60, 60),))[0])
    matrix = a @ torch.diag(torch.arange(1.0, 61).pow(-0.5)) @ b.T
    kept, errors = None, list[float]()
    for _ in range(6):
        tensor = matrix.clone()
        round_ = LowRankRound([tensor], 4, kept, weight=1, warm=kept is not None, seed=0, epoch=0)
        found = round_.finish(round_.right(round_.left()), "")
        kept = Kept(
            "", (torch.zeros(60, 60),), found.rights, 1
        )  # the same matrix each time, nothing of before
        errors.append(float((tensor - matrix).norm()))
    assert errors == sorted(errors, reverse=True)
    best = float(torch.arange(5.0, 61).pow(-1).sum().sqrt())
    assert errors[-1] < 1.05 * best < errors[0]


def test_the_ballast_sends_what_the_plan_says() -> None:
    for name, rank in (("geo-c8", 4), ("geo-c8-nlp", 4), ("geo-b2-nlp", 32)):
        spec = load(name, [f"swarm.compression=powersgd:{rank}"])
        plan = resolve_emulation(spec, cores=2)
        network = build_emulated(plan.parameters, 0, plan.matrices)
        tensors = [torch.zeros_like(p) for p in network.parameters()]
        assert sum(t.numel() for t in tensors) == plan.parameters
        round_ = LowRankRound(tensors, rank, None, weight=1, warm=False, seed=0, epoch=0)
        left = round_.left()
        values = len(left) + len(round_.right(left))
        sent_values = spec.swarm.method.compression.sent_values(spec.model, models()[spec.model].parameters)
        assert values == round(sent_values / plan.bytes_scale)


@pytest.mark.slow  # transformers is imported
@pytest.mark.parametrize("model", MODELS)
def test_the_shapes_are_those_of_the_models(model: str) -> None:
    with torch.device("meta"):
        network = MODELS[model]()
    assert Counter(tuple(p.shape) for p in network.parameters()) == Counter(dict(model_shapes()[model]))


def test_shapes_of_the_trained_network() -> None:
    assert Counter(tuple(p.shape) for p in DigitsNet().parameters()) == Counter(
        dict(model_shapes()["digits"])
    )
    assert sent(model_shapes()["digits"], 4).wire == 4 * (128 + 74) + 74


def test_powersgd_ranks_are_validated() -> None:
    assert type(compression_of("powersgd:4")) is type(compression_of("float16"))
    with pytest.raises(PeerConfigError, match="powersgd:<rank> with a rank from 1 to 64"):
        compression_of("powersgd:65")


def trained(rank: int | None, updates: int) -> float:
    """Loss of four peers' digits after so many updates of Adam, gradients averaged whole or at a rank, in float16."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    pixels = torch.tensor(digits["data"], dtype=torch.float32) / 16
    labels = torch.tensor(digits["target"])
    torch.manual_seed(0)
    network = DigitsNet()
    optimizer = torch.optim.Adam(network.parameters(), lr=0.01)
    order = torch.Generator().manual_seed(1)
    peers = [Peer() for _ in range(4)]
    for epoch in range(updates):
        found: list[list[torch.Tensor]] = []
        for _ in peers:
            chosen = torch.randperm(len(labels), generator=order)[:64]
            one = copy.deepcopy(network)
            functional.cross_entropy(one(pixels[chosen]), labels[chosen]).backward()
            found.append([p.grad for p in one.parameters() if p.grad is not None])
        if rank is None:
            average = [mean([f[i] for f in found], [1.0] * 4).half().float() for i in range(len(found[0]))]
        else:
            average = a_round(peers, found, epoch, rank=rank)
        for parameter, gradient in zip(network.parameters(), average, strict=True):
            parameter.grad = gradient
        optimizer.step()
    with torch.no_grad():
        return float(functional.cross_entropy(network(pixels), labels))


def test_the_digits_are_learnt_at_a_low_rank() -> None:
    whole = trained(None, 40)
    assert trained(8, 40) < 1.2 * whole  # 36 % of the values
    assert whole < trained(2, 40) < 4 * whole  # 10 %: later, but they are learnt
