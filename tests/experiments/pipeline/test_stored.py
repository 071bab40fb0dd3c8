"""Stored prefixes end before the first random operation, have a fingerprint, and say what differs from the pipeline."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments.pipeline import op as op_module
from experiments.pipeline.builtin import digits, imagenet, imagenet_resize, power, speech_mel
from experiments.pipeline.errors import PipelineError
from experiments.pipeline.op import Op
from experiments.pipeline.pipeline import Pipeline
from experiments.pipeline.stored import (
    check_same_pipeline,
    check_storable,
    storable,
    stored_declaration,
    stored_key,
)

HERE = "tests.experiments.pipeline.ops_for_tests"


@pytest.mark.parametrize(
    ("pipeline", "most"),
    [
        (imagenet.pipeline(), 1),
        (imagenet.heldout_pipeline(), 6),
        (imagenet_resize.pipeline(), 3),
        (speech_mel.pipeline(), 3),
        (power.pipeline(), 2),
        (digits.pipeline(), 2),
    ],
    ids=lambda value: value.name if isinstance(value, Pipeline) else str(value),
)
def test_the_built_in_ones_can_be_stored_up_to_their_first_random_operation(pipeline, most):
    assert storable(pipeline) == most


def a_pipeline(random: list[bool]) -> Pipeline:
    ops = [
        Op(str(at), f"{HERE}:text", "text", "bytes", "bytes", random=is_random)
        for at, is_random in enumerate(random)
    ]
    return Pipeline("p", {"text": ("txt",)}, tuple(ops))


@given(st.lists(st.booleans(), max_size=6), st.integers(-1, 8))
def test_a_prefix_may_be_stored_exactly_if_none_of_it_is_random(random, ops):
    pipeline = a_pipeline(random)
    assert storable(pipeline) == max(k for k in range(len(random) + 1) if not any(random[:k]))
    if 0 <= ops <= len(random) and not any(random[:ops]):
        check_storable(pipeline, ops)
        assert stored_key(pipeline, ops) == pipeline.fingerprint(ops)
    else:
        for check in (check_storable, stored_key, stored_declaration):
            with pytest.raises(PipelineError):
                check(pipeline, ops)


def test_the_refusal_says_why():
    with pytest.raises(PipelineError) as caught:
        check_storable(imagenet_resize.pipeline(), 4)
    assert str(caught.value) == (
        "pipeline imagenet-resize: operation crop is random, so only the operations before it (decode, resize, center) "
        "may be stored: a stored random op is random no more, and accuracy falls; store the first 3 or fewer, not 4"
    )
    with pytest.raises(PipelineError, match=r"before it \(none\) may be stored"):
        check_storable(a_pipeline([True]), 1)
    with pytest.raises(
        PipelineError, match="has 5 operations, so the first 9 of them cannot be stored; use 0 to 3"
    ):
        check_storable(imagenet_resize.pipeline(), 9)


def refused(stored, pipeline, ops) -> str:
    with pytest.raises(PipelineError) as caught:
        check_same_pipeline(json.loads(json.dumps(stored)), pipeline, ops)
    assert str(caught.value).startswith(
        f"the stored shards are not of the first {ops} operations of pipeline {pipeline.name}: "
    )
    return str(caught.value)


def test_what_differs_is_named(monkeypatch):
    pipeline = imagenet_resize.pipeline()
    stored = stored_declaration(pipeline, 2)
    assert "source" not in stored["ops"][0]
    check_same_pipeline(json.loads(json.dumps(stored)), pipeline, 2)
    check_same_pipeline(stored, imagenet_resize.pipeline(200), 2)  # the crop comes after what is stored
    other = imagenet_resize.pipeline(200, 232)
    assert "operation resize: parameters size was 256, now 232; store them again" in refused(stored, other, 2)
    assert "their operations are decode, resize, now they are decode; " in refused(stored, pipeline, 1)
    renamed = Pipeline("p", {"image": ("png",), "label": ("cls",)}, pipeline.ops)
    assert "their fields are {'image': ['jpg'" in refused(stored, renamed, 2)
    with monkeypatch.context() as patch:
        patch.setattr(op_module, "version", lambda name: "0.0.1")
        assert "operation decode: libraries numpy was " in refused(stored, pipeline, 2)
        assert "operation resize: libraries pillow was " in refused(stored, pipeline, 2)
    with monkeypatch.context() as patch:
        patch.setattr(op_module, "_source", lambda call: "another source")
        assert "operation decode: source was changed; operation resize: source was changed;" in refused(
            stored, pipeline, 2
        )


@pytest.mark.parametrize(
    "change", [{"format": 2}, {"ops": None}, {"ops": [1]}, {"ops": [{}]}, {"fields": []}, {"format": None}]
)
def test_a_declaration_that_cannot_be_read_is_refused(change):
    pipeline = power.pipeline()
    stored = {**stored_declaration(pipeline, 1), "fingerprint": "0" * 64, **change}
    assert "cannot be read by this version of orch" in refused(stored, pipeline, 1)
    assert "cannot be read by this version of orch" in refused({}, pipeline, 1)


def test_another_fingerprint_alone_is_refused():
    pipeline = power.pipeline()
    stored = {**stored_declaration(pipeline, 1), "fingerprint": "0" * 64}
    assert "their fingerprint is another one" in refused(stored, pipeline, 1)
