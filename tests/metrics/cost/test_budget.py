"""The reserve covers what is spent until the last VM is gone, whatever the rates."""

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metrics.cost.budget import reserve_usd

USD = st.decimals(0, 10_000, places=3)
SECONDS = st.floats(0, 1e5)


def reserve(burn, egress, metering_s, decision_s, teardown_s) -> Decimal:
    return reserve_usd(
        burn, egress, metering_period_s=metering_s, decision_s=decision_s, teardown_s=teardown_s
    )


def test_by_hand():
    # $2.40 and $1.20 an hour for a tenth of an hour
    assert reserve(Decimal("2.40"), Decimal("1.20"), 60.0, 30.0, 270.0) == Decimal("0.36")


@given(USD, USD, SECONDS, SECONDS, SECONDS, SECONDS)
def test_reserve_grows_with_each_argument(burn, egress, metering_s, decision_s, teardown_s, more_s):
    kept = reserve(burn, egress, metering_s, decision_s, teardown_s)
    assert kept >= 0
    assert reserve(burn + 1, egress, metering_s, decision_s, teardown_s) >= kept
    assert reserve(burn, egress + 1, metering_s, decision_s, teardown_s) >= kept
    assert reserve(burn, egress, metering_s, decision_s, teardown_s + more_s) >= kept


@given(USD, USD, st.integers(0, 600), st.integers(0, 600), st.integers(0, 600), st.data())
def test_a_run_stopped_at_the_reserve_ends_within_its_budget(
    burn, egress, metering_s, decision_s, teardown_s, data
):
    """A second by second model: bills that come late, a slow decision, VMs that end one by one."""
    kept = reserve(burn, egress, metering_s, decision_s, teardown_s)
    budget = kept + data.draw(USD)
    per_s = (burn + egress) / 3600
    late_s = data.draw(st.integers(0, metering_s))
    decides_s = data.draw(st.integers(0, decision_s))
    ends_s = data.draw(st.integers(0, teardown_s))
    told = budget - kept  # the newest bill that still lets the run go on is below this
    spent = told + per_s * (late_s + decides_s + ends_s)
    assert spent <= budget + Decimal("1e-9")


@pytest.mark.parametrize("wrong", [(-1, 0, 1, 1, 1), (0, -1, 1, 1, 1), (1, 1, 1, 1, -1)])
def test_nothing_is_negative(wrong):
    with pytest.raises(ValueError, match="negative"):
        reserve(*(Decimal(w) for w in wrong[:2]), *wrong[2:])
