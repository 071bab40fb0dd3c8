"""Generators of samples: determined by seed, pass, key and operation alone."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from experiments.pipeline.randomness import Randomness

NAMES = st.text(st.characters(codec=None, exclude_categories=(), exclude_characters="\0"), max_size=8)
SEEDS = st.integers(0, 2**63)
WHO = st.tuples(SEEDS, SEEDS, NAMES, NAMES)


def drawn(who, count=4):
    seed, pass_number, key, op = who
    return tuple(Randomness(seed, pass_number, key).generator(op).integers(0, 2**63, count))


@given(WHO)
def test_equal_arguments_give_equal_numbers_whatever_was_drawn_before(who):
    first = drawn(who)
    drawn((1, 2, "k", "other"), 100)
    assert drawn(who) == first


@given(WHO, WHO)
def test_different_arguments_give_different_numbers(one, other):
    assert (drawn(one) == drawn(other)) == (one == other)


def test_the_parts_are_not_mixed_up():
    assert (
        len(
            {
                drawn(who)
                for who in [(1, 11, "k", "o"), (11, 1, "k", "o"), (1, 1, "1k", "o"), (1, 1, "k", "1o")]
            }
        )
        == 4
    )


def test_a_key_that_is_not_utf8_has_numbers_of_its_own():
    keys = [
        b"caf\xe9".decode("utf-8", "surrogateescape"),
        b"caf\xe8".decode("utf-8", "surrogateescape"),
        "café",
    ]
    assert len({drawn((0, 0, key, "op")) for key in keys}) == 3


def test_numbers_are_the_same_on_every_machine():
    """A change of this value changes every training run."""
    assert drawn((0, 0, "00000000", "crop"), 2) == (1477583233817264305, 7052776430373790830)


def test_numbers_of_many_samples_are_uniform_and_independent():
    values = np.array([Randomness(0, 0, f"{n:06d}").generator("flip").random(2) for n in range(4000)])
    assert abs(values.mean() - 0.5) < 0.02
    assert abs(np.corrcoef(values.T)[0, 1]) < 0.05
    assert abs(np.corrcoef(values[:-1, 0], values[1:, 0])[0, 1]) < 0.05
