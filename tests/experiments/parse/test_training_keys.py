"""`swarm.schedule`, `swarm.clip_norm` and `swarm.precision`: from the file to a peer's config, and what they cannot be."""

from __future__ import annotations

from typing import get_args

import pytest

from experiments import catalog
from experiments.learning_rate import KINDS, RateSchedule
from experiments.parse import SpecError, checks, library, load
from experiments.schema import models as schema

NAME = "local-2"


def one_problem(*changes: str) -> str:
    with pytest.raises(SpecError) as caught:
        load(NAME, list(changes))
    (problem,) = caught.value.problems
    return f"{problem.path}: {problem.message}"


def test_every_precision_is_one_of_the_peers() -> None:
    task = pytest.importorskip("experiments.peer.training.precision")
    assert get_args(schema.Swarm.model_fields["precision"].annotation) == tuple(task._TYPES)
    assert load(NAME).swarm.precision == "fp32"


def test_no_experiment_of_the_library_has_them() -> None:
    assert {(spec.swarm.schedule, spec.swarm.clip_norm) for spec in (load(e.name) for e in library())} == {
        (None, None)
    }


def test_every_kind_of_schedule_has_a_formula() -> None:
    assert get_args(schema.RateSchedule.model_fields["kind"].annotation) == tuple(KINDS)
    for kind in KINDS:
        spec = load(NAME, [f"swarm.schedule={{kind: {kind}, warmup_epochs: 1}}", "swarm.clip_norm=0.5"])
        assert spec.swarm.clip_norm == 0.5
        assert spec.swarm.schedule is not None
        made = RateSchedule.of(spec.swarm.schedule.as_mapping(spec.measure.all_epochs))
        assert made == RateSchedule(kind, spec.measure.warmup_epochs + spec.measure.epochs, 1, 0.0)


def test_what_linear_and_cosine_fall_towards() -> None:
    spec = load(NAME, ["swarm.schedule={kind: linear, final: 0.25}"])
    assert spec.swarm.schedule is not None
    assert RateSchedule.of(spec.swarm.schedule.as_mapping(4)).factor(5) == 0.25
    assert "constant has no 'final' (only linear and cosine)" in one_problem(
        "swarm.schedule={kind: constant, final: 0.1}"
    )


@pytest.mark.parametrize("emulation", ["auto", "null"])
def test_the_network_of_the_digits_has_no_gradient_checkpointing(emulation: str) -> None:
    text = one_problem("swarm.gradient_checkpointing=true", "model=digits", f"emulation={emulation}")
    assert text.startswith(
        "swarm.gradient_checkpointing: the small network that is trained as digits has no gradient "
    )


def test_no_model_for_images_has_gradient_checkpointing() -> None:
    torch = pytest.importorskip("torch")
    built = pytest.importorskip("experiments.tasks.models")
    offers = pytest.importorskip("experiments.tasks.gradient_checkpointing").offers_gradient_checkpointing
    assert {name for name, model in catalog.models().items() if model.kind == "vision"} == set(built.VISION)
    for name in built.VISION:
        with torch.device("meta"):
            assert not offers(built.build_model(name, 0))
    text = one_problem("swarm.gradient_checkpointing=true", "model=ResNet50", "emulation=null")
    assert text.startswith(
        "swarm.gradient_checkpointing: ResNet50 has no gradient checkpointing; remove the key"
    )


def test_the_models_that_are_the_network_of_the_digits() -> None:
    network = pytest.importorskip("experiments.peer.training.emulated_model")
    assert checks._DIGITS_NETWORK == network.DIGITS


def test_a_warm_up_that_never_ends_is_refused() -> None:
    text = one_problem(
        "swarm.schedule={kind: cosine, warmup_epochs: 4}", "measure={warmup_epochs: 1, epochs: 3}"
    )
    assert "swarm.schedule.warmup_epochs" in text
    assert "found 4; must be below measure.warmup_epochs + measure.epochs = 4" in text
    load(NAME, ["swarm.schedule={kind: cosine, warmup_epochs: 3}", "measure={warmup_epochs: 1, epochs: 3}"])


def test_impossible_values() -> None:
    assert "swarm.schedule.kind" in one_problem("swarm.schedule={kind: step}")
    assert "swarm.clip_norm" in one_problem("swarm.clip_norm=0")
    assert "swarm.precision" in one_problem("swarm.precision=fp8")


def test_padded_steps_are_not_compiled() -> None:
    text = one_problem("swarm.compile=true")
    assert text.startswith("swarm.compile: the steps of padded accelerators take as long as those measured")
    assert load(NAME, ["swarm.compile=true", "emulation=null"]).swarm.compile
    assert not load(NAME, []).swarm.compile
