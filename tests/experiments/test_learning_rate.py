"""The learning rate by epoch: equal to torch's schedulers, and the same for whoever asks."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments.learning_rate import CONSTANT, KINDS, RateSchedule, RateScheduleError

SCHEDULES = st.builds(
    RateSchedule,
    kind=st.sampled_from(sorted(KINDS)),
    epochs=st.integers(1, 300),
    warmup_epochs=st.integers(0, 400),
    final=st.floats(0.0, 1.0),
)


@pytest.mark.parametrize(
    ("kind", "warmup", "final"), [("linear", 0, 0.25), ("linear", 3, 0.0), ("cosine", 4, 0.1)]
)
def test_it_is_what_torchs_schedulers_give_in_a_loop(kind: str, warmup: int, final: float) -> None:
    torch = pytest.importorskip("torch")
    from torch.optim.lr_scheduler import CosineAnnealingLR, LinearLR, SequentialLR

    epochs, lr = 12, 0.2
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=lr)
    after = epochs - warmup
    decay = (
        CosineAnnealingLR(optimizer, after, eta_min=final * lr)
        if kind == "cosine"
        else LinearLR(optimizer, 1.0, final, after)
    )
    scheduler = decay
    if warmup:
        rise = LinearLR(optimizer, 1.0 / warmup, 1.0, warmup - 1)
        scheduler = SequentialLR(optimizer, [rise, decay], [warmup])
    ours = RateSchedule(kind, epochs, warmup, final)
    for epoch in range(1, epochs + 1):
        assert lr * ours.factor(epoch) == pytest.approx(optimizer.param_groups[0]["lr"], rel=1e-6)
        optimizer.step()
        scheduler.step()


def test_inverse_square_root_is_that_of_the_transformer() -> None:
    schedule, warmup = RateSchedule("inverse_sqrt", 100, 4), 4
    for step in range(1, 100):
        theirs = min(step**-0.5, step * warmup**-1.5)  # times a constant
        assert schedule.factor(step) == pytest.approx(theirs / warmup**-0.5)


@given(SCHEDULES, st.integers(1, 1000))
def test_a_factor_lies_between_0_and_1_and_depends_on_the_epoch_only(
    schedule: RateSchedule, epoch: int
) -> None:
    veteran = [schedule.factor(e) for e in range(1, epoch + 1)]
    joiner = RateSchedule.of(
        {"kind": schedule.kind, "epochs": schedule.epochs, "warmup_epochs": schedule.warmup_epochs, "final": schedule.final}
    )  # fmt: skip
    assert joiner.factor(epoch) == veteran[-1]  # which has asked for no other epoch before
    assert all(0.0 <= factor <= 1.0 for factor in veteran)


@given(SCHEDULES)
def test_the_rate_rises_to_the_whole_one_and_never_again(schedule: RateSchedule) -> None:
    factors = [schedule.factor(epoch) for epoch in range(1, schedule.epochs + 3)]
    rise, fall = factors[: schedule.warmup_epochs], factors[schedule.warmup_epochs :]
    assert rise == sorted(rise)
    assert fall == sorted(fall, reverse=True)
    assert not rise or rise[0] > 0.0
    if KINDS[
        schedule.kind
    ].has_final:  # in the epoch after the last one; the first after the warm-up has the whole rate
        last = max(schedule.epochs, schedule.warmup_epochs + 1)
        assert schedule.factor(last + 1) == pytest.approx(schedule.final)
    assert schedule.factor(max(1, schedule.warmup_epochs)) == 1.0


def test_settings_of_no_schedule_are_refused() -> None:
    assert [CONSTANT.factor(epoch) for epoch in (1, 5, 1000)] == [1.0, 1.0, 1.0]
    with pytest.raises(
        RateScheduleError, match="'step' is not one of constant, linear, cosine, inverse_sqrt"
    ):
        RateSchedule.of({"kind": "step", "epochs": 3})
    with pytest.raises(RateScheduleError, match="gamma"):
        RateSchedule.of({"kind": "cosine", "epochs": 3, "gamma": 0.1})
    assert math.isclose(RateSchedule.of({"kind": "cosine", "epochs": 3}).factor(2), 0.75)
