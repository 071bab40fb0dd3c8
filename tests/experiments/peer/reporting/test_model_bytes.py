"""Model bytes sent by a peer: shared by its processes, exact over real streams."""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from pathlib import Path

import pytest
import torch
from hivemind.averaging.allreduce import AllReduceRunner
from hivemind.compression import CompressionInfo, Float16Compression
from hivemind.p2p import P2P
from hivemind.proto.averaging_pb2 import AveragingData
from hypothesis import given
from hypothesis import strategies as st

from cloud.storage.counter import BytesRead
from experiments.peer.averaging.eight_bit import BLOCK
from experiments.peer.optimizer.build import compression_of
from experiments.peer.reporting import model_bytes
from experiments.peer.reporting.final_egress import FinalEgress
from experiments.peer.reporting.model_bytes import ModelBytes, address_of, by_address, count_tensors
from experiments.peer.training.epoch_accounting import EpochLedger
from metrics.records import PHASES, StepRecord
from orchestrator.controller.finish import read_egress

FIRST, SECOND = (
    "QmYyQSo1c1Ym7orWxLYvCrM2EmxFTANf8wXmmE7DWjhx5N",
    "QmSoLPppuBtQSGwKDZT2M73ULpjvfd3aZ6ha4oFGL1KrGM",
)
WIDTH = {"none": 4, "float16": 2, "uniform8bit": 1, "blockwise8bit": 1}


def raw(peer: str) -> bytes:
    from hivemind.p2p import PeerID

    return PeerID.from_base58(peer).to_bytes()


@given(st.lists(st.tuples(st.sampled_from([FIRST, SECOND]), st.integers(0, 2**40)), max_size=30))
def test_counts_add_up_by_peer(sent: list[tuple[str, int]]) -> None:
    ledger, truth = ModelBytes(), Counter[str]()
    for peer, count in sent:
        ledger.add(raw(peer), count)
        truth[peer] += count
    assert ledger.by_peer() == dict(truth)


def test_forked_processes_count_in_the_same_ledger() -> None:
    ledger = ModelBytes()
    ledger.add(raw(FIRST), 5)
    children: list[int] = []
    for peer in (SECOND, FIRST):
        child = os.fork()
        if child == 0:
            ledger.add(raw(peer), 100)
            os._exit(0)
        children.append(child)
    assert [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children] == [0, 0]
    ledger.add(raw(SECOND), 7)
    assert ledger.by_peer() == {FIRST: 105, SECOND: 107}


def test_too_many_peers_are_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_bytes, "_LAST", model_bytes._ENTRY.size)
    monkeypatch.setattr(model_bytes, "_PEERS", 2)
    ledger = ModelBytes()
    ledger.add(raw(FIRST), 5)
    assert ledger.by_peer() == {FIRST: 5}
    ledger.add(raw(SECOND), 5)
    assert ledger.by_peer() is None


def test_peers_are_mapped_to_known_addresses() -> None:
    maddrs = [
        f"/ip4/10.77.0.3/tcp/31000/p2p/{FIRST}",
        f"/ip4/127.0.0.1/tcp/31000/p2p/{SECOND}",
        "/dns4/x/tcp/1",
    ]
    known = address_of(maddrs)
    assert known == {FIRST: "10.77.0.3", SECOND: "127.0.0.1"}
    assert by_address({FIRST: 7, SECOND: 8, "Qm": 9}, known) == {
        "10.77.0.3": 7
    }  # the meter leaves loopback out too


def test_records_hold_both_counts_and_the_rest_is_written_at_the_end(tmp_path: Path) -> None:
    sent, handed = Counter[str](), Counter[str]()
    step = StepRecord("a", 1, 0, 100.0, 2.0, **dict.fromkeys((f"{p}_s" for p in PHASES), 0.0), samples=32)
    final = FinalEgress("a", tmp_path / "egress.csv", lambda: dict(sent), lambda: 0.0, lambda: dict(handed))
    ledger = EpochLedger(
        "a", lambda: dict(sent), lambda: BytesRead(0, 0, 0), "digits", 0.0, lambda: dict(handed)
    )
    for epoch in (1, 2):
        ledger.begin(100.0)
        ledger.losses.append(1.0)
        ledger.add(step)
        sent["10.0.0.2"] += 30
        ledger.round_begins()
        sent["10.0.0.2"] += 1100
        handed["10.0.0.2"] += 1000
        handed["10.0.0.3"] += 50  # none of it on the wire yet
        ledger.round_ends()
        _, egress, _ = ledger.end(epoch, 3)
        assert [(r.dst_address, r.phase, r.bytes, r.model_bytes) for r in egress] == [
            ("10.0.0.2", "calc", 30, 0),
            ("10.0.0.2", "comm", 1100, 1000),
            ("10.0.0.3", "comm", 0, 50),
        ]
        final.published(epoch, egress)
    sent["10.0.0.2"] += 40
    handed["10.0.0.2"] += 20
    final.write()
    (left,) = read_egress(tmp_path / "egress.csv", "a")
    assert (left.phase, left.bytes, left.model_bytes) == ("leaving", 40, 20)


@pytest.mark.parametrize("name", ["none", "float16", "uniform8bit", "blockwise8bit"])
@given(st.lists(st.integers(1, 9000), min_size=1, max_size=5))
def test_only_what_grows_with_the_model_is_counted(name: str, sizes: list[int]) -> None:
    """However a gradient is split into parts, its values count and the levels sent with each part do not."""
    codec = compression_of(name)
    info = CompressionInfo.from_tensor(torch.zeros(1))
    parts = [codec.compress(torch.linspace(-1, 1, size), info) for size in sizes]
    counted = sum(model_bytes._tensor_bytes(AveragingData(tensor_part=part)) for part in parts)
    scales = sum(4 * -(-size // BLOCK) for size in sizes) if name == "blockwise8bit" else 0
    assert counted == sum(sizes) * WIDTH[name] + scales
    assert model_bytes._tensor_bytes(AveragingData(group_id=b"round")) == 0


def test_without_a_ledger_model_bytes_are_unknown(tmp_path: Path) -> None:
    final = FinalEgress("a", tmp_path / "egress.csv", lambda: {"10.0.0.2": 40}, lambda: 0.0)
    final.write()
    (left,) = read_egress(tmp_path / "egress.csv", "a")
    assert left.model_bytes is None


@pytest.fixture
def streams(monkeypatch: pytest.MonkeyPatch) -> ModelBytes:
    """Hivemind's streams with counting, restored afterwards."""
    for name in ("_add_protobuf_stream_handler", "_iterate_protobuf_stream_handler"):
        monkeypatch.setattr(P2P, name, getattr(P2P, name))
    ledger = ModelBytes()
    count_tensors(ledger)
    return ledger


@pytest.mark.processes  # p2pd's; two seconds
@pytest.mark.timeout(300)  # at idle priority too
def test_model_bytes_of_a_round_match_the_formula(streams: ModelBytes) -> None:
    """2 (n-1)/n x parameters x 2 bytes per peer, for any part size, without message headers."""
    values, peers = 30_000, 3

    async def average() -> list[str]:
        nodes = [await P2P.create()]
        first = await nodes[0].get_visible_maddrs()
        nodes += [await P2P.create(initial_peers=first) for _ in range(peers - 1)]
        for node in nodes:
            await node.wait_for_at_least_n_peers(1)
        ids = [node.peer_id for node in nodes]
        runners = [
            AllReduceRunner(
                p2p=node,
                servicer_type=AllReduceRunner,
                prefix=None,
                group_id=b"round",
                tensors=[torch.full((values,), float(i))],
                ordered_peer_ids=ids,
                peer_fractions=(1 / peers,) * peers,
                part_size_bytes=5000,
                compression=Float16Compression(),
            )
            for i, node in enumerate(nodes)
        ]
        for node, runner in zip(nodes, runners, strict=True):
            await runner.add_p2p_handlers(node)

        async def run(runner: AllReduceRunner) -> None:
            async for delta in runner:
                assert delta.numel() == values

        await asyncio.gather(*map(run, runners))
        for node in nodes:
            await node.shutdown()
        return [str(peer) for peer in ids]

    ids = asyncio.run(average())
    found = streams.by_peer()
    assert found is not None
    # To each peer: its third of the gradients from two others, and two thirds of the averages back.
    assert found == {peer: pytest.approx(2 * (peers - 1) / peers * values * 2, rel=0.01) for peer in ids}
    assert sum(found.values()) == 2 * (peers - 1) * values * 2
