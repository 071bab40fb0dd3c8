"""How far a peer calculates ahead, as a state machine: nothing is calculated twice, lost, or too much of."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from experiments.peer.optimizer.overlap_policy import Move, NextEpochProgress


def test_the_last_step_waits_for_the_update() -> None:
    ahead, moves = NextEpochProgress(share=64), []
    for _ in range(3):
        moves.append(ahead.move(16, over=False, newcomers=False))
        ahead.add(16)
    moves.append(ahead.move(16, over=False, newcomers=False))
    assert moves == [Move.CALCULATE] * 3 + [Move.WAIT]
    assert (ahead.samples, ahead.steps, ahead.left) == (48, 3, 16)


def test_epoch_of_one_step_never_calculates_ahead() -> None:
    assert NextEpochProgress(share=16).move(16, over=False, newcomers=False) is Move.WAIT


def test_no_calculation_ahead_with_newcomers() -> None:
    assert NextEpochProgress(share=64).move(16, over=False, newcomers=True) is Move.WAIT
    assert NextEpochProgress(share=64).move(16, over=True, newcomers=True) is Move.UPDATE


@given(st.integers(0, 500), st.integers(1, 60), st.booleans())
def test_calculation_ahead_never_exceeds_the_share(share: int, step: int, newcomers: bool) -> None:
    ahead = NextEpochProgress(share)
    while ahead.move(step, False, newcomers) is Move.CALCULATE:
        ahead.add(step)
    assert ahead.samples == 0 or ahead.samples < share
    assert newcomers or ahead.samples + step >= share  # and as far as it may
    assert ahead.samples + ahead.left == max(share, ahead.samples)


class OneRoundAtATime(RuleBasedStateMachine):
    """A peer's loop as `overlap` runs it, with rounds that end whenever they like."""

    def __init__(self) -> None:
        super().__init__()
        self.calculated = self.used = self.given = self.credit = 0
        self.weights = self.stale = 0
        self.ahead: NextEpochProgress | None = None
        self.over = False

    @rule(step=st.integers(1, 8))
    def calculate(self, step: int) -> None:
        if self.ahead is None:
            self.calculated += step
            self.credit += step
            if self.credit >= 32:  # this peer's share is there: its round begins
                self.given, self.ahead, self.over, self.credit = self.credit, NextEpochProgress(32), False, 0
            return
        move = self.ahead.move(step, self.over, newcomers=False)
        if move is Move.CALCULATE:
            self.calculated += step
            self.ahead.add(step)
            self.stale = max(self.stale, 1)
        elif move is Move.UPDATE:
            self.used, self.weights = self.used + self.given, self.weights + 1
            self.credit, self.ahead = self.ahead.samples, None

    @precondition(lambda self: self.ahead is not None)
    @rule()
    def end(self) -> None:
        self.over = True

    @invariant()
    def every_sample_is_somewhere_once(self) -> None:
        under_way = 0 if self.ahead is None else self.given + self.ahead.samples
        assert self.calculated == self.used + under_way + self.credit

    @invariant()
    def an_epoch_has_hardly_more_than_its_share(self) -> None:
        assert self.given < 32 + 8
        assert self.credit < 32 + 8


TestOneRoundAtATime = OneRoundAtATime.TestCase
