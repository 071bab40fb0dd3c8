"""Rates of strategies in an experiment: what limits a peer, and how long all peers need together."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_up_profile import measurement, profile
from plan_setting import peer, setting

from analysis.pipeline.options import NO_LINK, Link, at_t4, baseline_of, options_of, rate, train
from analysis.pipeline.profile_records import Strategy
from metrics.stats import Estimate

RATES = st.floats(0.5, 5000)


@pytest.mark.parametrize(
    ("t4", "trainer", "link", "expected"),
    [
        (100.0, 1000.0, Link(0.02, 0.005), (40.0, "link")),
        (50.0, 1000.0, Link(0.015, 0.004), (50.0, "input")),
        (100.0, 30.0, Link(0.02, 0.005), (30.0, "trainer")),
        (100.0, 1000.0, NO_LINK, (100.0, "input")),
    ],
)
def test_the_slowest_of_three_limits_a_peer(t4, trainer, link, expected):
    assert rate(t4, trainer, link) == (pytest.approx(expected[0]), expected[1])


def test_a_cache_is_filled_at_the_rate_without_it():
    """1000 samples at 10/s, as without a cache, then 3000 at 40/s: 100 s + 75 s."""
    plain, cached = measurement(Strategy(0), 1e5, 10), measurement(Strategy(0, cache="disk"), 1e5, 40, 1e5)
    option = options_of(profile(plain, cached))[1]
    where = setting(peer(trainer_sps=500), samples=1000)
    assert train(option, where, 1).seconds == pytest.approx(100)
    assert train(option, where, 4).seconds == pytest.approx(175)
    assert train(option, where, 4).bound == "input"


def test_peers_of_different_speed_share_the_passes():
    """Caches at 10 and 20 samples/s, later 10 and 50: shares of 100 each, filled after 10 s and 5 s.

    Two passes are 400 samples: 150 after 5 s, then 60/s: 250 / 60 s more.
    """
    plain, cached = measurement(Strategy(0), 1e5, 20), measurement(Strategy(0, cache="disk"), 1e5, 50, 1e5)
    option = options_of(profile(plain, cached))[1]
    where = setting(peer("slow", trainer_sps=10), peer("fast", trainer_sps=500), samples=200)
    found = train(option, where, 2)
    assert found.seconds == pytest.approx(5 + 250 / 60)
    assert found.peer_samples == pytest.approx({"slow": 10 * (5 + 250 / 60), "fast": 100 + 50 * 250 / 60})


@given(
    st.lists(st.tuples(RATES, st.floats(1, 1e4)), min_size=1, max_size=6),
    RATES,
    RATES,
    st.integers(1, 10**6),
    st.integers(1, 50),
)
def test_all_samples_are_trained_on_and_uncached_rates_add_up(peers, t4, cached_t4, samples, passes):
    plain = measurement(Strategy(0), 1e5, t4)
    cached = measurement(Strategy(0, cache="disk"), 1e5, cached_t4, 1e5)
    where = setting(
        *(peer(f"p-{n}", trainer_sps=sps, stream_bps=mbps * 1e6) for n, (sps, mbps) in enumerate(peers)),
        samples=samples,
    )
    for option in options_of(profile(plain, cached)):
        found = train(option, where, passes)
        assert found.seconds > 0
        assert math.fsum(found.peer_samples.values()) == pytest.approx(passes * samples)
        if option.measured.strategy.cache == "none":
            alone = [train(option, replace(where, peers=(one,)), passes).sps for one in where.peers]
            assert found.sps == pytest.approx(math.fsum(alone))


@given(RATES, st.floats(1, 3), st.integers(1, 30))
def test_a_faster_input_is_never_slower(t4, factor, passes):
    where = setting(peer(trainer_sps=300, stream_bps=50e6), samples=1000)
    slow, fast = (options_of(profile(measurement(Strategy(0), 1e5, sps)))[0] for sps in (t4, t4 * factor))
    assert train(fast, where, passes).seconds <= train(slow, where, passes).seconds * (1 + 1e-12)


def test_the_baseline_stores_and_caches_nothing_with_the_fewest_streams_and_workers():
    assert baseline_of(profile()).strategy == Strategy(0)
    with pytest.raises(ValueError, match="no strategy with split 0, no codec and no cache"):
        options_of(profile(measurement(Strategy(1), 1e5, 10, offline_s=0.01)))


def test_no_interval_of_t4_no_option_at_its_end():
    one = measurement(Strategy(0), 1e5, 10)
    low = at_t4(options_of(profile(one))[0], "low")
    assert low is not None
    assert low.measured.delivered_sps.value == pytest.approx(9.7)
    for t4 in (Estimate(10.0, None, None, 1), Estimate(10.0, -3.0, 23.0, 2)):
        assert at_t4(options_of(profile(replace(one, delivered_sps=t4)))[0], "low") is None
