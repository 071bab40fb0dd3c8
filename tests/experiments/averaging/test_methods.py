"""The records of averaging methods: what everything else relies on when one is added."""

from __future__ import annotations

import inspect
from dataclasses import MISSING, fields, replace

import pytest
from peer_rig import config_of

from experiments.averaging.fixed_width import FLOAT16
from experiments.averaging.methods import (
    COMPRESSION_FAMILIES,
    COMPRESSIONS,
    EXCHANGES,
    METHOD_KEYS,
    OVERLAPS,
    compression_of,
    method_of,
)
from experiments.averaging.records import Setting
from experiments.averaging.single_peer import SINGLE_PEER
from experiments.peer.config import PeerConfig, PeerConfigError
from experiments.peer.optimizer import build, single_peer
from experiments.schema.models import Swarm

COMPRESSED = (*COMPRESSIONS, compression_of("powersgd:4"))
MBPS_100 = 1e8


def test_every_key_is_one_of_the_file_and_of_the_peer_with_one_default() -> None:
    defaults = {name: p.default for name, p in inspect.signature(method_of).parameters.items()}
    assert tuple(defaults) == METHOD_KEYS
    assert {key: Swarm.model_fields[key].default for key in METHOD_KEYS} == defaults
    of_peer = {field.name: field.default for field in fields(PeerConfig)}
    assert {
        key: of_peer[key] for key in METHOD_KEYS if of_peer[key] is not MISSING
    }.items() <= defaults.items()


def test_the_peer_builds_every_class_that_a_record_names() -> None:
    averagers = {e.averager for e in EXCHANGES} | {c.averager for c in COMPRESSED if c.averager}
    assert averagers == set(build._AVERAGERS)
    assert {name for c in COMPRESSED for name in (c.codec, c.update_codec)} == set(build._CODECS)
    assert {schedule.optimizer for schedule in OVERLAPS} == set(build._SWARM_OPTIMIZERS)
    assert SINGLE_PEER.optimizer == single_peer.PlainOptimizer.__name__


def test_a_name_means_one_record() -> None:
    for records in (EXCHANGES, OVERLAPS, COMPRESSIONS):
        assert len({record.name for record in records}) == len(records)
    for record in COMPRESSIONS:
        assert [f for f in COMPRESSION_FAMILIES if f.parse(record.name)] == []
        assert compression_of(record.name) is record


def test_a_plain_loop_takes_effect_before_overlap_and_has_no_rounds() -> None:
    method = method_of(plain=True, overlap="delayed")
    assert method.schedule is SINGLE_PEER
    assert not method.schedule.has_rounds
    assert [path for path, _ in method.problems(Setting(peers=2, samples_scale=4))] == [
        ("swarm", "plain"),
        ("swarm", "overlap"),
        ("emulation", "samples_scale"),
    ]
    assert list(method_of(plain=True).problems(Setting(peers=1))) == []


def test_every_other_combination_of_fixed_width_is_allowed() -> None:
    for exchange in EXCHANGES:
        for overlap in OVERLAPS:
            for compression in COMPRESSIONS:
                method = method_of(
                    averaging=exchange.name, overlap=overlap.name, compression=compression.name
                )
                assert list(method.problems(Setting(peers=8, samples_scale="auto"))) == []


def test_a_compression_of_other_bytes_needs_its_record_only() -> None:
    """One value in ten with its index: 16 + 32 bits."""
    sparse = replace(
        FLOAT16, name="sparse", bits_per_value=48, sent_values=lambda model, parameters: parameters // 10
    )
    dense = method_of()
    method = replace(dense, compression=sparse)
    assert sparse.gradient_bytes(None, 1000) == 600
    assert replace(FLOAT16, bits_per_value=4).gradient_bytes(None, 1001) == 501  # whole bytes
    times = [m.transfer_s("ConvNextLarge", 10**6, 4, MBPS_100, MBPS_100) for m in (method, dense)]
    assert times[0] == pytest.approx(0.3 * times[1])
    assert sparse.plan_reasons("ConvNextLarge", 1000) == [
        "compression sparse: 10 % of ConvNextLarge's 1000 values are sent, as float16"
    ]
    assert FLOAT16.plan_reasons("ConvNextLarge", 1000) == []


def test_the_peer_refuses_what_the_file_may_not_say() -> None:
    config = config_of("a", "", (), compression="powersgd:4", averaging="hierarchical")
    with pytest.raises(PeerConfigError, match="compression: 'powersgd:4' is averaged in two rounds"):
        build.method_of_config(config)


@pytest.mark.parametrize("regions", [["a"], ["a", "b"], ["a", "a", "b"], list("aabbccdd")])
def test_a_round_sends_what_its_peers_send(regions: list[str]) -> None:
    for exchange in EXCHANGES:
        by_peer = sum(exchange.peer_share(regions, region) for region in regions)
        assert by_peer == sum(exchange.sent(regions).values())
        assert by_peer >= 2 * (len(regions) - 1)  # the least of any all-reduce
