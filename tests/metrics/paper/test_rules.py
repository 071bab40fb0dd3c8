"""The authors' rules on steps made up by hand, and against pandas, which they used."""

from __future__ import annotations

from random import Random

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from metrics.paper.rules import paper_granularity, single_rates

PHASES = ("load_s", "move_s", "forward_s", "backward_s", "optimizer_local_s", "optimizer_sync_s")


def columns(*rows: dict) -> dict[str, list]:
    """Steps by column; what a row does not say is 0."""
    names = ("vm", "step", "samples", "began_s", "wall_s", *PHASES)
    defaults = {"vm": "a", "samples": 32}
    return {n: [{**defaults, "step": k, **row}.get(n, 0.0) for k, row in enumerate(rows)] for n in names}


def a_step(optimizer_s: float = 0.0, **other) -> dict:
    return {
        "load_s": 5.0,
        "move_s": 0.1,
        "forward_s": 0.2,
        "backward_s": 0.7,
        "optimizer_sync_s": optimizer_s,
    } | other


def test_steps_up_to_the_first_synchronising_one_are_dropped_and_trailing_ones_count():
    local = a_step(optimizer_local_s=0.5)
    long = a_step(30.0)
    ran = [*[local] * 7, long, *[local] * 20, a_step(20.0), *[local] * 4]
    found = paper_granularity(columns(*ran))
    # 24 local steps and one synchronising one after the first: 25 x 1.0 of phases, 24 x 0.5 of optimizer.
    assert found.value == pytest.approx((25 * 1.0 + 24 * 0.5) / 20.0)
    assert found.syncs == {"a": 2}


def test_the_value_is_the_mean_over_vms_in_whatever_order_the_rows_come():
    ran = []
    for vm, last in (("a", 10.0), ("b", 20.0)):
        ran += [{**a_step(last if k in (5, 29) else 0.0), "vm": vm, "step": k} for k in range(30)]
    Random(1).shuffle(ran)
    found = paper_granularity(columns(*ran))
    assert found.by_vm == pytest.approx({"a": 24 / 10, "b": 24 / 20})
    assert found.value == pytest.approx((24 / 10 + 24 / 20) / 2)


@pytest.mark.parametrize(
    ("long", "reason"),
    [((), "no optimizer step stands out"), ((3,), "one optimizer step stands out, and the first is dropped")],
)
def test_rule_without_a_value_says_why(long: tuple[int, ...], reason: str):
    found = paper_granularity(columns(*[a_step(9.0 if k in long else 0.0) for k in range(12)]))
    assert found.value is None
    assert found.without == {"a": reason}


def test_no_steps_give_nothing():
    assert paper_granularity(columns()).value is None
    rates = single_rates(columns())
    assert (rates.sps_wall, rates.sps_phase_timed) == (None, None)


@given(st.integers(0, 10_000))
def test_the_rule_is_what_pandas_makes_of_it(seed: int):
    random = Random(seed)
    rows = [
        {p: random.uniform(0, 1) for p in PHASES[:4]} | {"optimizer_sync_s": random.expovariate(1)}
        for _ in range(random.randint(3, 120))
    ]
    found = paper_granularity(columns(*rows))
    frame = pd.DataFrame(rows)
    step = frame.optimizer_sync_s
    long = step >= step.median() + 2 * step.std()
    if long.sum() < 2:
        assert found.value is None
        return
    after = frame[long.idxmax() + 1 :]
    timers = after[["move_s", "forward_s", "backward_s"]].sum().sum()
    late = long[after.index]
    expected = (timers + after.optimizer_sync_s[~late].sum()) / after.optimizer_sync_s[late].sum()
    assert found.value == pytest.approx(expected, rel=1e-9)


def test_single_gpu_has_wall_clock_and_phase_timed_rates():
    # The first 4 steps wait for data; the timers see 0.4 s of each later step's second.
    rows = [{"began_s": 10.0 * k, "wall_s": 10.0, "load_s": 9.6, "forward_s": 0.4} for k in range(4)] + [
        {"began_s": 40.0 + k, "wall_s": 1.0, "forward_s": 0.4} for k in range(36)
    ]
    rates = single_rates(columns(*rows))
    assert rates.sps_wall is not None
    assert rates.sps_phase_timed is not None
    # The clock starts at the end of step 4, the one that ends the first tenth.
    assert (rates.sps_wall.value, rates.sps_wall.n) == (pytest.approx(32.0), 10)
    assert (rates.wall_s, rates.timed_s) == (pytest.approx(35.0), pytest.approx(14.0))
    assert rates.sps_phase_timed.value == pytest.approx((4 * 32 / 10 + 36 * 32 / 0.4) / 40)


def test_too_short_for_an_interval_is_still_a_rate():
    rows = [{"began_s": float(k // 3), "wall_s": 0.0, "forward_s": 0.3} for k in range(9)]
    rates = single_rates(columns(*rows))
    assert rates.sps_wall is not None
    assert (rates.sps_wall.value, rates.sps_wall.low, rates.sps_wall.n) == (
        pytest.approx(8 * 32 / 2),
        None,
        1,
    )


def test_steps_without_timers_or_time_have_no_rate():
    rates = single_rates(columns(*[{"began_s": 5.0}] * 8))
    assert (rates.sps_wall, rates.sps_phase_timed) == (None, None)


def test_single_rates_reject_several_vms():
    with pytest.raises(ValueError, match="2 VMs"):
        single_rates(columns({"vm": "a"}, {"vm": "b"}))
