"""Verdicts, the best strategy and its reason."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_up_profile import SOURCE_BYTES, estimate, measurement, profile
from plan_setting import book, peer, setting

from analysis.pipeline.plan import Interval, difference, plan_pipeline, verdict_of
from analysis.pipeline.presto_score import Weights
from analysis.pipeline.profile_records import Measurement, Strategy
from metrics.stats import Estimate

EVEN = Weights(1, 1, 1)


def _verdicts(found) -> dict[str, str]:
    return {row.label: row.verdict for row in found.rows}


@pytest.mark.parametrize(
    ("usd", "baseline", "verdict"),
    [
        (Interval(2, 1.9, 2.1), Interval(3, 2.9, 3.1), "pays"),
        (Interval(3, 2.9, 3.1), Interval(2, 1.9, 2.1), "does_not"),
        (Interval(2.9, 2.7, 3.1), Interval(3, 2.9, 3.1), "no_difference"),
        (Interval(3, 3, 3), Interval(3, 3, 3), "no_difference"),
        (Interval(9.029, 9.029, 9.029), Interval(9.02901, 9.02901, 9.02901), "no_difference"),
        (Interval(0, 0, 0), Interval(3, 3, 3), "pays"),
        (Interval(2, None, None), Interval(3, 3, 3), "unknown"),
        (None, Interval(3, 3, 3), "unknown"),
        (Interval(2, 1, 3), None, "unknown"),
    ],
)
def test_verdicts(usd, baseline, verdict):
    assert verdict_of(usd, baseline) == verdict


def test_difference_by_hand():
    """Halves of 3 and 4 to the low side, 6 and 8 to the high one: 5 and 10."""
    assert difference(Interval(20, 17, 26), Interval(10, 2, 14)) == Interval(10, 5, 20)


@given(st.floats(1, 100), st.floats(0, 0.9), st.floats(1, 100), st.floats(0, 0.9))
def test_a_difference_the_other_way_round_has_the_opposite_verdict(a, spread_a, b, spread_b):
    one, other = (Interval(v, v * (1 - s), v * (1 + s)) for v, s in ((a, spread_a), (b, spread_b)))
    opposite = {"pays": "does_not", "does_not": "pays", "no_difference": "no_difference"}
    assert verdict_of(other, one) == opposite[verdict_of(one, other)]


def test_input_limits_and_its_interval_becomes_the_dollars():
    """VMs alone cost: 10 samples/s +- 10 % are $10 per million, from 10 / 1.1 to 10 / 0.9."""
    slow = replace(measurement(Strategy(0), 1e5, 10), delivered_sps=estimate(10, 0.1))
    prices = book(read="0", kept="0")
    found = plan_pipeline(profile(slow), setting(prices=prices), [1], EVEN)
    (row,) = found.rows
    assert row.bound == "input"
    assert row.usd_per_1m is not None
    assert row.usd_per_1m.value == pytest.approx(10)
    assert row.usd_per_1m.low == pytest.approx(10 / 1.1, rel=1e-4)
    assert row.usd_per_1m.high == pytest.approx(10 / 0.9, rel=1e-4)
    assert (row.sps.low, row.sps.value, row.sps.high) == pytest.approx((9, 10, 11))
    assert found.best[0].row is row


def test_more_workers_pay_where_the_input_limits_and_not_where_the_trainer_does():
    one, two = measurement(Strategy(0), 1e5, 20), measurement(Strategy(0, workers=2), 1e5, 36)
    few, many = (
        plan_pipeline(profile(one, two), setting(peer(trainer_sps=sps)), [1], EVEN) for sps in (10, 100)
    )
    label = two.strategy.label
    assert _verdicts(few)[label] == "no_difference"
    assert few.best[0].row.label == one.strategy.label
    assert _verdicts(many)[label] == "pays"
    assert many.best[0].row.label == label
    assert many.best[0].saves is not None
    assert many.best[0].saves[0] == "vm"


def test_overlapping_intervals_are_no_difference():
    one, two = measurement(Strategy(0), 1e5, 20), measurement(Strategy(0, workers=2), 1e5, 20.5)
    found = plan_pipeline(profile(one, two), setting(), [1], EVEN)
    assert _verdicts(found)[two.strategy.label] == "no_difference"
    assert found.best[0].row.verdict == "baseline"


def test_without_an_interval_nothing_is_known_to_pay():
    def once(m: Measurement) -> Measurement:
        return replace(m, delivered_sps=Estimate(m.delivered_sps.value, None, None, 1))

    found = plan_pipeline(profile(*map(once, profile().measurements)), setting(), [1, 30], EVEN)
    assert {row.verdict for row in found.rows} == {"baseline", "unknown"}
    assert [best.row.verdict for best in found.best] == ["baseline"] * 2
    assert [best.unknown for best in found.best] == [len(found.rows) // 2 - 1] * 2


def test_a_cache_larger_than_memory_is_named_and_never_best():
    found = plan_pipeline(profile(), replace(setting(), memory_bytes=24 * 10**9), [30], EVEN)
    large = [row for row in found.rows if row.verdict == "too_large"]
    assert [row.option.measured.strategy.cache for row in large] == ["memory"]
    assert large[0].peer_cache_bytes == 4 * 150_528 * 1_000_000
    assert found.best[0].row.option.measured.strategy.cache == "disk"


def test_photos_at_two_numbers_of_passes():
    """Two T4 are the limit, so only dollars differ: one pass pays nothing, thirty a cache, and a stored set less."""
    two = (peer("us-0", trainer_sps=35), peer("eu-0", trainer_sps=35))
    found = plan_pipeline(profile(), setting(*two), [1, 30], EVEN)
    once, often = found.best
    assert (once.row.verdict, once.saves, once.costs) == ("baseline", None, None)
    assert often.row.option.measured.strategy == Strategy(0, cache="disk")
    assert often.saves is not None
    assert often.saves[0] == "data"
    assert float(often.saves[1]) == pytest.approx(SOURCE_BYTES * 1e6 / 1e9 * 0.01 * 29 / 30)
    assert often.row.break_even_passes == 2
    assert {row.bound for row in found.rows} == {"trainer"}
    stored = next(r for r in found.rows if r.label == "1-webp-s1-w1t-none" and r.cost.passes == 30)
    assert stored.break_even_passes is not None


def test_json_is_complete():
    found = plan_pipeline(profile(), setting(), [1], EVEN)
    row = found.rows[0].to_json()
    assert row["verdict"] == "baseline"
    assert row["usd_per_1m_samples"]["value"] == pytest.approx(
        float(sum(row["parts_usd_per_1m_samples"].values()))
    )
