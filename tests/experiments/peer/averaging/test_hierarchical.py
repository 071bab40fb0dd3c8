"""Hierarchical averaging with real Hivemind averagers on loopback: six in three regions, dying one after the other."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest
import torch
from hivemind.compression import Float16Compression
from hivemind.p2p import P2PContext
from hivemind.proto.averaging_pb2 import AveragingData  # type: ignore[attr-defined]
from hivemind.utils.mpfuture import MPFuture, SharedBytes
from hivemind_here import apart
from peer_rig import config_of

from experiments.peer.averaging.atomic_commit import State
from experiments.peer.averaging.hierarchical import HierarchicalAverager
from experiments.peer.averaging.hierarchical_exchange import Level, TwoLevelRound
from experiments.peer.averaging.hierarchical_plan import Hierarchy
from experiments.peer.processes import descendants
from experiments.peer.swarm.dht_node import start_dht
from experiments.wire.record_keys import generate_identity

pytestmark = [pytest.mark.processes, pytest.mark.timeout(180)]

REGIONS = ("us", "us", "eu", "eu", "asia", "asia")
SHAPES = ((40, 30), (7,), (3000,))
# who dies in which phase: parts within the region, between the regions, results going back, the agreement
DEATHS = ((1, "region"), (2, "between"), (5, "back"), (0, "agreement"))
_FORK = get_context("fork")
_PHASES = ("", *(phase for _, phase in DEATHS))
_AT_THE_END = -1


class Mortal(HierarchicalAverager):
    """Stops, ready to be killed, when the round reaches the phase named by `doom`."""

    def __init__(self, *args: Any, dht: Any, **kwargs: Any) -> None:
        self.doom = _FORK.Value("i", 0)
        self._fellows = [dht.pid, *descendants(dht.pid)]
        super().__init__(*args, dht=dht, **kwargs)

    def run(self) -> None:
        after_first(TwoLevelRound, "_messages", lambda level, *_: self.reached(level.value))
        after_first(
            TwoLevelRound, "serve", lambda level, *_: self.reached("back") if level is Level.REGION else None
        )
        super().run()

    def reached(self, phase: str) -> None:
        if self.doom.value == _PHASES.index(phase):
            self.doom.value = _AT_THE_END
            time.sleep(60)

    def kill(self, limit_s: float) -> None:
        """Kill a peer and its p2p daemon from outside, as soon as it has reached its phase.

        Here all peers are children of one process and share Hivemind's locks: a process that died while holding one would
        block all others forever. So the killer holds them.
        """
        deadline = time.monotonic() + limit_s
        while self.doom.value != _AT_THE_END:
            assert time.monotonic() < deadline, "the round did not come to the phase"
            time.sleep(0.005)
        with MPFuture._initialization_lock, MPFuture._update_lock, SharedBytes._lock:
            for pid in [*self._fellows, self.pid]:
                os.kill(pid, signal.SIGKILL)
            for process in (self, self.dht):
                process.join(10)

    async def rpc_agree(self, request: AveragingData, context: P2PContext) -> AveragingData:
        if request.weight == State.READY:
            self.reached("agreement")
        return await super().rpc_agree(request, context)


def after_first(cls: type, name: str, hook: Callable[..., None]) -> None:
    """Call the hook with the method's arguments once it has yielded something."""
    original = getattr(cls, name)

    async def hooked(self: Any, *args: Any) -> AsyncIterator[Any]:
        async for item in original(self, *args):
            yield item
            hook(*args)

    setattr(cls, name, hooked)


@dataclass
class Found:
    """What each round left, by peer."""

    regions: int
    errors: dict[str, float]  # largest difference from the mean in ulps of float16, by the preceding event
    equal: dict[str, bool]
    failed: dict[str, list[str]]  # errors of the survivors' failed attempts, by phase
    kept_whole: dict[str, bool]  # whether the failed attempt left the gradients as they were
    seconds: dict[str, float]


def gradients(peer: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(peer)
    return [torch.randn(shape, generator=generator) for shape in SHAPES]


def samples(peer: int) -> int:
    return 32 * (1 + peer)


def make(folder: Path) -> list[Mortal]:
    made: list[Mortal] = []
    maddrs: tuple[str, ...] = ()
    for peer, region in enumerate(REGIONS):
        key = folder / f"{peer}.key"
        key.write_bytes(generate_identity()[0])
        dht, maddr = start_dht(config_of(str(peer), "", (), initial_peers=maddrs), key)
        maddrs = maddrs or (maddr,)
        parameters = [torch.nn.Parameter(torch.zeros(shape)) for shape in SHAPES]
        made.append(
            Mortal(
                parameters,
                dht=dht,
                region=region,
                prefix="two-levels",
                start=True,
                reuse_grad_buffers=True,
                min_matchmaking_time=1.5,
                request_timeout=1.0,
                allreduce_timeout=20.0,
                next_chunk_timeout=3.0,
                compression=Float16Compression(),
                part_size_bytes=512,
                allow_state_sharing=False,
            )
        )
        for parameter, gradient in zip(parameters, gradients(peer), strict=True):
            parameter.grad = gradient
        made[-1].accumulate_grads_(samples(peer))
    return made


def attempt(averagers: dict[int, Mortal]) -> dict[int, Any]:
    """Run a round of all peers; returns the group or the exception of each."""
    controls = {
        peer: averager.step(wait=False, timeout=20.0, reset_accumulators=False, allow_retries=False)
        for peer, averager in averagers.items()
    }
    for averager in averagers.values():
        if averager.doom.value:
            averager.kill(limit_s=20.0)
    results: dict[int, Any] = {}
    for peer, control in controls.items():
        if averagers[peer].doom.value:
            continue
        try:
            results[peer] = control.result(25.0)
        except Exception as error:  # noqa: BLE001 - what a failed attempt says is the result
            results[peer] = error
    return results


def tensors_of(averager: Mortal) -> list[torch.Tensor]:
    averager.notify_used_averaged_gradients()
    with averager.get_tensors() as tensors:
        return [tensor.clone() for tensor in tensors]


def error_ulps(peers: Sequence[int], found: list[torch.Tensor]) -> float:
    """Deviation from the weighted mean, in float16 ulps of the largest gradient (10 fraction bits)."""
    total = sum(samples(p) for p in peers)
    known = {p: gradients(p) for p in peers}
    largest = max(float(g.abs().max()) for of_peer in known.values() for g in of_peer)
    ulp = 2.0 ** (torch.tensor(largest).log2().floor().item() - 10)
    means = [sum(samples(p) / total * known[p][i].double() for p in peers) for i in range(len(SHAPES))]
    return max(float((m - f).abs().max()) for m, f in zip(means, found, strict=True)) / ulp


def rounds(pids: Path, folder: Path) -> Found:
    averagers = dict(enumerate(make(folder)))
    pids.write_text(" ".join(map(str, [os.getpid(), *descendants(os.getpid())])))
    found = Found(len(Hierarchy.of(REGIONS).regions), {}, {}, {}, {}, {})

    def good(name: str) -> None:
        deadline, failures = time.monotonic() + 15, None
        while True:
            results = attempt(averagers)
            if all(isinstance(r, dict) and len(r) == len(averagers) for r in results.values()):
                break
            failures = results
            assert time.monotonic() < deadline, failures
        kept = {p: tensors_of(a) for p, a in averagers.items()}
        first = next(iter(kept.values()))
        found.equal[name] = all(
            torch.equal(x, y) for one in kept.values() for x, y in zip(one, first, strict=True)
        )
        found.errors[name] = error_ulps([*averagers], first)

    good("")
    for victim, phase in DEATHS:
        averagers[victim].doom.value = _PHASES.index(phase)
        began = time.monotonic()
        results = attempt(averagers)
        found.seconds[phase] = time.monotonic() - began
        del averagers[victim]
        found.failed[phase] = [repr(r) for r in results.values() if isinstance(r, BaseException)]
        found.kept_whole[phase] = all(
            torch.equal(x, y)
            for peer, averager in averagers.items()
            for x, y in zip(tensors_of(averager), gradients(peer), strict=True)
        )
        good(phase)
    return found


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Found]:
    pids = tmp_path_factory.mktemp("two-levels") / "pids"
    try:
        yield apart(partial(rounds, pids), limit_s=140)
    finally:
        for pid in (
            pids.read_text().split() if pids.exists() else ()
        ):  # the killed remove no memory that they shared
            for file in Path("/dev/shm").glob(f"torch_{pid}_*"):
                file.unlink(missing_ok=True)


def test_six_peers_in_three_regions_get_the_mean(found: Found) -> None:
    assert found.regions == 3
    assert found.errors[""] <= 2
    assert found.equal[""]


@pytest.mark.parametrize("phase", _PHASES[1:])
def test_survivors_of_a_death_fail_and_retry_together(found: Found, phase: str) -> None:
    survivors = 5 - [p for _, p in DEATHS].index(phase)
    assert len(found.failed[phase]) in (0, survivors)
    if phase != "agreement":  # where all have all parts, the last words decide whether it counts
        assert len(found.failed[phase]) == survivors, found.failed[phase]
    if found.failed[phase]:
        assert found.kept_whole[phase]
    assert found.errors[phase] <= 2
    assert found.equal[phase]


def test_no_peer_waits_longer_than_two_timeouts(found: Found) -> None:
    assert max(found.seconds.values()) < 1.5 + 1.0 + 2 * 3.0, found.seconds
