"""`swarm.overlap`: what the plan expects of it, what it cannot be combined with, and what it is beside the study."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments.averaging.overlap import BLOCKING, DELAYED
from experiments.emulation.scales import full_size, resolve_emulation
from experiments.parse import SpecError, library, load
from experiments.study_file.basis import paper_basis

OVERLAP = "swarm.overlap=delayed"
SECONDS = st.floats(0.0, 1e4)


def test_off_by_default_in_every_experiment_of_the_library() -> None:
    assert {load(entry.name).swarm.overlap for entry in library()} == {"none"}


@pytest.mark.parametrize(("name", "longer"), [("geo-c8", "calculation"), ("geo-c8-nlp", "communication")])
def test_an_epoch_is_expected_to_take_the_longer_of_both(name: str, longer: str) -> None:
    plain, plan = (
        resolve_emulation(load(name, [*more, "emulation.samples_scale=1"]), 8) for more in ([], [OVERLAP])
    )
    assert plan.calc_s is not None
    assert plan.epoch_s is not None
    assert (plan.calc_s, plan.comm_s) == (plain.calc_s, plain.comm_s)
    least = max(plan.calc_s, plan.comm_s)
    assert least == (plan.calc_s if longer == "calculation" else plan.comm_s)
    assert least <= plan.epoch_s < least + 2.5  # the last step of an epoch is never behind a round
    assert plan.study_epoch_s == plan.reckoned_epoch_s == plan.epoch_s
    (note,) = load(name, [OVERLAP]).swarm.method.plan_notes([], plan.study_calc_s, plan.comm_s)
    assert f"as long as its {longer}" in note
    assert load(name).swarm.method.plan_notes([], plan.study_calc_s, plan.comm_s) == []


def test_on_rented_vms_too() -> None:
    more = ["emulation=null"]
    plain, plan = full_size(load("geo-c8", more)), full_size(load("geo-c8", [*more, OVERLAP]))
    assert plain.epoch_s is not None
    assert plan.epoch_s is not None
    assert plan.epoch_s < plain.epoch_s


@given(SECONDS, SECONDS, SECONDS)
def test_overlapped_epoch_is_bounded_by_its_parts_and_their_sum(
    calc_s: float, comm_s: float, step_s: float
) -> None:
    found = DELAYED.epoch_s(calc_s, comm_s, step_s)
    assert max(calc_s, comm_s) <= found <= calc_s + comm_s
    assert BLOCKING.epoch_s(calc_s, comm_s, step_s) == calc_s + comm_s


def test_calculation_is_not_shortened_with_overlap() -> None:
    """What it hides would not be the same share of it."""
    assert resolve_emulation(load("geo-c8"), 2).samples_scale > 1
    plan = resolve_emulation(load("geo-c8", [OVERLAP]), 2)
    assert (plan.samples_scale, plan.raw_target_batch_size) == (1.0, 32768)
    assert any("overlaps with" in reason and "does not scale" in reason for reason in plan.reasons)


@pytest.mark.parametrize(
    ("name", "more", "says"),
    [
        ("geo-a1", [], "swarm.overlap: a plain loop has no communication to overlap"),
        ("geo-c8", ["emulation.samples_scale=4"], "found 4; must be 1 with 'swarm.overlap: delayed'"),
        ("geo-c8", ["swarm.overlap=twice"], "delayed"),
    ],
)
def test_invalid_combinations_are_rejected(name: str, more: list[str], says: str) -> None:
    with pytest.raises(SpecError, match=says):
        load(name, [OVERLAP, *more])


@pytest.mark.parametrize(
    "more", [["swarm.averaging=hierarchical"], ["network_tuning=wan"], ["swarm.compression=uniform8bit"]]
)
def test_valid_combinations_are_accepted(more: list[str]) -> None:
    assert resolve_emulation(load("geo-c8-nlp", [OVERLAP, *more]), 8).samples_scale == 1


def test_overlap_is_an_option_relative_to_the_paper() -> None:
    basis = paper_basis(load("geo-c8", [OVERLAP]))
    assert basis.published is not None
    assert basis.options == (
        "swarm.overlap delayed (calculation and communication overlap: an epoch is shorter than their sum)",
    )
    assert paper_basis(load("geo-c8")).options == ()
