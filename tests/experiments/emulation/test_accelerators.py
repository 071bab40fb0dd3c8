"""Tasks, and models whose steps are not padded: what is emulated of them, and what the plan says of it."""

from __future__ import annotations

from typing import Any

import pytest

from experiments.emulation.accelerators import is_padded
from experiments.emulation.scales import full_size, resolve_emulation
from experiments.parse.load import from_document, load, to_document
from experiments.schema.errors import SpecError
from experiments.schema.models import ExperimentSpec
from experiments.schema.trained_model import is_resolved, model_of

FACTS = {"sha256": "a" * 64, "parameters": 1_000_000, "shapes": [[[1000, 990], 1], [[10000], 1]]}


def task_spec(
    *, facts: dict[str, Any] | None = FACTS, task: dict[str, Any] | None = None, **emulation: Any
) -> ExperimentSpec:
    """geo-b2 with a task instead of its model."""
    document = to_document(load("geo-b2"))
    chosen = {"python": "/x/my_task.py:build"} if task is None else task
    document |= {"model": None, "task": {**chosen, "facts": facts}}
    document["emulation"] |= emulation
    return from_document(document)


def test_a_task_runs_at_the_speed_of_the_host():
    spec = task_spec()
    plan = resolve_emulation(spec, 2)
    assert (plan.accelerators, plan.bytes_scale, plan.time_scale, plan.samples_scale) == ("host", 1, 1, 1)
    assert plan.raw_target_batch_size == spec.swarm.target_batch_size
    assert (plan.calc_s, plan.epoch_s, plan.study_calc_s, plan.study_epoch_s, plan.host_busy) == (None,) * 5
    assert (plan.parameters, plan.matrices) == (1_000_000, ())
    # 2 MB of float16 to one peer by halves, in the parts of 512 KiB that Hivemind uses at full scale
    assert (plan.parts, plan.part_size_bytes) == (2, 500_000)
    assert plan.comm_s > spec.swarm.matchmaking_time_s
    assert plan.reckoned_epoch_s == plan.comm_s
    assert plan.windows == "paced"
    said = "\n".join(plan.reasons)
    assert "calculation times are those of this machine, which 2 peers share, not of the accelerators" in said
    assert "host busy" not in said, "the estimate assumes that peers sleep while they calculate"


def test_a_switch_that_cannot_keep_up_is_warned_of():
    document = to_document(task_spec(network="study-2023-04"))
    document["task"]["facts"] |= {"parameters": 200_000_000, "shapes": []}
    for group in document["peers"]:
        group |= {"count": 8}
        group["resources"] |= {"infra": "gcp/us-central1/us-central1-a"}
    document["swarm"] |= {"target_batch_size": 32768}
    plan = resolve_emulation(from_document(document), 2)
    assert [r for r in plan.reasons if r.startswith("warning: the switch is expected")]


def test_a_model_can_run_unpadded_too():
    spec = load("geo-b2", ["model=ResNet18", "emulation.accelerators=host"])
    plan = resolve_emulation(spec, 2)
    assert (plan.accelerators, plan.parameters) == ("host", model_of(spec).parameters)
    assert not is_padded(spec)
    assert is_padded(load("geo-b2"))
    assert resolve_emulation(load("geo-b2"), 2).accelerators == "padded"


def test_a_task_is_padded_on_request_without_being_scaled_down():
    named = {"name": "image-classification", "with": {"model": "ConvNextLarge"}}
    plan = resolve_emulation(task_spec(task=named, accelerators="padded"), 2)
    model = resolve_emulation(load("geo-b2"), 2)
    assert (plan.accelerators, plan.bytes_scale, plan.parameters) == ("padded", 1, 1_000_000)
    assert plan.study_calc_s == model.study_calc_s
    with pytest.raises(SpecError, match="cannot be reduced"):
        task_spec(task=named, accelerators="padded", bytes_scale=2)


def test_full_size_of_a_task():
    plan = full_size(task_spec())
    assert (plan.accelerators, plan.parameters, plan.calc_s) == ("real", 1_000_000, None)
    named = {"name": "image-classification", "with": {"model": "ConvNextLarge"}}
    assert full_size(task_spec(task=named)).calc_s == full_size(load("geo-b2")).calc_s


def test_powersgd_uses_the_shapes_of_the_task():
    document = to_document(task_spec())
    document["swarm"]["compression"] = "powersgd:4"
    plan = resolve_emulation(from_document(document), 2)
    sent = 4 * (1000 + 990) + 10_000
    assert plan.part_size_bytes * plan.parts == pytest.approx(sent * 2 / 2, abs=plan.parts)
    assert any("1.8 % of the task's 1000000 values" in reason for reason in plan.reasons)


def test_bytes_of_a_sample_are_given_or_those_of_the_embedded_store():
    assert model_of(task_spec()).bytes_per_sample == 2060
    document = to_document(task_spec())
    document["data"]["endpoint"] = "http://store:80"
    assert model_of(from_document(document)).bytes_per_sample is None
    document["data"]["bytes_per_sample"] = 1234.4
    assert model_of(from_document(document)).bytes_per_sample == 1234
    assert model_of(load("geo-b2", ["data.bytes_per_sample=5"])).bytes_per_sample == 5
    assert model_of(load("geo-b2")).bytes_per_sample == 124_000


def test_a_task_that_was_not_built_has_no_model():
    spec = task_spec(facts=None)
    assert not is_resolved(spec)
    with pytest.raises(
        SpecError, match="the size of the task my_task:build is unknown; `orch plan` builds it"
    ):
        model_of(spec)
