"""Plans of offloading: the document, and one sentence for each mistake in it."""

from __future__ import annotations

import json

import pytest

from experiments.offload.errors import PlanError
from experiments.offload.plan import Choice, OffloadPlan
from experiments.pipeline.builtin import imagenet

PIPELINE = imagenet.pipeline(size=16)


def document(**changes) -> str:
    plan = OffloadPlan.of(PIPELINE, 7, {"a": Choice(2, "webp"), "b": Choice(0)})
    return json.dumps({**json.loads(plan.to_json()), **changes})


def test_a_plan_comes_back_from_its_document_with_the_same_hash() -> None:
    plan = OffloadPlan.of(PIPELINE, 7, {"\udcff": Choice(5), "a": Choice(2, "webp")})
    again = OffloadPlan.from_json(plan.to_json(), "plan.json")
    assert again == plan
    assert again.sha256 == plan.sha256
    again.check(PIPELINE)
    assert OffloadPlan.of(PIPELINE, 8, plan.choices).sha256 != plan.sha256


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("{", "not a plan of offloading"),
        ("[" * 100_000, "not a plan of offloading"),
        ("[]", "its keys must be choices, fingerprint"),
        (document(more=1), "its keys must be"),
        (document(schema_version=2), "has version 2"),
        (document(seed=1.5), "seed is 1.5, not a whole number"),
        (document(seed=True), "seed is True, not a whole number"),
        (document(seed=float("nan")), "it has the number NaN"),
        (document(choices=[]), "choices is [], not an object"),
        (document(choices={"a": 2}), "sample a: 2 is not a choice"),
        (document(choices={"a": [float("nan"), "none"]}), "it has the number NaN"),
        (document(choices={"a": [-1, "none"]}), "sample a: -1 operations cannot be offloaded"),
        (document(choices={"a": [1.0, "none"]}), "sample a: 1.0 operations cannot be offloaded"),
        (document(choices={"a": [1, "brotli"]}), "codec 'brotli' is unknown"),
        (document(choices={"a": [1, "jpeg"]}), "codec jpeg loses information"),
    ],
)
def test_a_damaged_document_is_refused(text: str, sentence: str) -> None:
    with pytest.raises(PlanError) as refused:
        OffloadPlan.from_json(text, "plan.json")
    assert sentence in str(refused.value)
    assert str(refused.value).startswith("plan.json")


@pytest.mark.parametrize(
    ("choice", "sentence"),
    [
        (Choice(7), "sample a: 7 operations cannot be offloaded, because pipeline imagenet has 6"),
        (Choice(-1), "sample a: -1 operations cannot be offloaded"),
        (Choice(4, "webp"), "codec webp holds images only, and the first 4 operations give none"),
    ],
)
def test_a_choice_that_the_pipeline_does_not_allow_is_refused(choice: Choice, sentence: str) -> None:
    with pytest.raises(PlanError, match=sentence):
        OffloadPlan.of(PIPELINE, 7, {"a": choice})


def test_a_plan_for_another_pipeline_is_refused() -> None:
    plan = OffloadPlan.of(PIPELINE, 7, {})
    with pytest.raises(PlanError, match="made for pipeline imagenet with fingerprint"):
        plan.check(imagenet.pipeline(size=32))
