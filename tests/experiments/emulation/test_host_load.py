"""How busy a run keeps the host, and the scale of bytes that follows."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments.emulation.bytes_scale import (
    SLOWEST_STREAM_BPS,
    VALIDATED_SCALE,
    Traffic,
    bytes_scale,
    chunk_timeout_s,
)
from experiments.emulation.host_load import HALF, NEARLY_ALL, HostLoad, Round, host_load, smallest_scale


def traffic(peers: int = 8, parameters: int = 560_142_482, slowest_mbps: float = 6900, **more) -> Traffic:
    """A round of NLP in one zone."""
    pair_bits = 2 * parameters * 2 / peers * 8
    transfer_s = max(pair_bits / slowest_mbps / 1e6, pair_bits * (peers - 1) / 1.1e9)
    known = {"transfer_s": transfer_s, "epoch_s": 14 + 5 + transfer_s, "time_scale": 1.0} | more
    return Traffic(peers, parameters, 2, slowest_mbps * 1e6, 1.1e9, **known)


def test_a_round_by_hand():
    # Four peers; 0.1 GB and 12 pairs x 100 parts: 3.5 s of the switch, 0.64 of averaging, 1.2 of parts.
    load = host_load(Round(4, 0.1e9, 100, transfer_s=10.0, epoch_s=30.0), cores=2)
    assert load.epoch == pytest.approx((0.1 + 0.22 + 5.34 / 30) / 2)
    assert load.averaging == pytest.approx((0.1 + 0.22 + 5.34 / 10) / 2)
    assert load.switch == pytest.approx(0.35)


def test_a_burst_of_milliseconds_is_no_load():
    load = host_load(Round(2, 1e5, 1, transfer_s=0.005, epoch_s=5.0), cores=2)
    assert load.switch < 0.01


def test_host_needs_a_core():
    with pytest.raises(ValueError, match="must be at least 1"):
        host_load(Round(2, 1e5, 1, 1.0, 5.0), cores=0)


_TRAFFIC = st.builds(
    traffic,
    peers=st.integers(1, 32),
    parameters=st.integers(10_000, 2 * 10**9),
    slowest_mbps=st.floats(10, 7000),
    parts=st.none() | st.integers(1, 2000),
)


@given(_TRAFFIC, st.integers(1, 64), st.floats(1, 1000))
def test_more_cores_are_never_busier(what: Traffic, cores: int, scale: float):
    assert what.load(scale, cores + 1).epoch < what.load(scale, cores).epoch
    assert what.load(scale, cores + 1).switch == what.load(scale, cores).switch  # it is one process


@given(st.integers(1, 500), st.integers(1, 1000))
def test_smallest_scale_keeps_the_load_under_half(threshold: int, most: int):
    def load_at(scale: float) -> HostLoad:
        return HostLoad(0.4 if scale >= threshold else 0.6, 1.0, 0.1)

    assert smallest_scale(load_at, most) == (threshold if threshold <= most else None)


@given(_TRAFFIC, st.integers(1, 64))
def test_auto_scale_keeps_the_load_under_half_or_warns(what: Traffic, cores: int):
    chosen = bytes_scale(what, cores, None)
    most = max(1.0, min(what.stream_bps / SLOWEST_STREAM_BPS, what.parameters / 10_000))
    assert 1 <= chosen.scale <= most  # what does not shrink along stays small
    assert chosen.load == what.load(chosen.scale, cores)
    warned = any(r.startswith("warning") and "is 50 % or more" in r for r in chosen.reasons)
    assert warned == (not chosen.load.under_half)
    if warned:  # then no scale would have done
        assert not any(what.load(s, cores).under_half for s in range(1, int(most) + 1, 7))
    assert chosen.scale >= min(VALIDATED_SCALE, int(most))
    assert sum(f"host busy: {100 * chosen.load.epoch:.0f} % expected" in r for r in chosen.reasons) == 1
    noted = any(r.startswith("note: averaging may take longer") for r in chosen.reasons)
    assert noted == (chosen.load.under_half and chosen.load.averaging > NEARLY_ALL)


def test_many_peers_on_eight_cores_get_more_than_the_validated_scale():
    chosen = bytes_scale(traffic(peers=12), 8, None)
    assert VALIDATED_SCALE < chosen.scale < 143
    assert chosen.load.switch == pytest.approx(HALF, abs=0.01)


def test_many_peers_on_two_cores_give_a_warning():
    chosen = bytes_scale(traffic(peers=12), 2, None)
    assert chosen.scale == VALIDATED_SCALE  # more would not help
    assert any("is 50 % or more" in r for r in chosen.reasons)


def test_host_busy_only_during_transfers_gives_a_note():
    """The reckoning of `a10-8-rbase`, by hand: 56 pairs x 48 parts x 1 ms, and 0.0349 GB x 41.4 s."""
    small = traffic(parameters=124_697_433)
    (note,) = (r for r in bytes_scale(small, 2, None).reasons if r.startswith("note"))
    load = small.load(VALIDATED_SCALE, 2)
    assert load.under_half
    assert load.averaging == pytest.approx((0.1 + 8 * 0.055 + 4.133 / small.transfer_s) / 2, rel=0.01)
    assert f"expected to be {100 * load.averaging:.0f} % busy" in note
    assert not any(r.startswith("note") for r in bytes_scale(small, 4, None).reasons)


def test_parts_slower_than_the_timeout_give_a_warning():
    few = traffic(slowest_mbps=70, parts=1)
    assert 4 * few.part_s(100) == pytest.approx(4 * 16, rel=0.01)  # 140 MB at 70 Mb/s
    assert chunk_timeout_s(1) == 20
    assert any("averaging may fail" in r for r in bytes_scale(few, 2, None).reasons)
    assert not any("given up" in r for r in bytes_scale(traffic(slowest_mbps=70), 2, None).reasons)
