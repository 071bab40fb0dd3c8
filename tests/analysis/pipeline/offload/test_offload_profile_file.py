"""The two texts of a two-stage profile: read as written, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import made_up_offload
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_up_offload import between, profile

from analysis.pipeline.offload.io_bound import exactly
from analysis.pipeline.offload.offload_profile import CodecPlace, MeasuredCodec, OffloadProfile
from analysis.pipeline.offload.offload_profile_file import (
    OffloadProfileFileError,
    from_texts,
    to_texts,
)
from analysis.pipeline.offload.sample_profile import SampleProfile
from metrics.stats import Estimate


def assert_same(one: OffloadProfile, other: OffloadProfile) -> None:
    assert one.head == other.head
    assert list(one.samples.keys) == list(other.samples.keys)
    assert one.samples.op_s is not None
    assert other.samples.op_s is not None
    pairs = [
        (one.samples.raw_bytes, other.samples.raw_bytes),
        (one.samples.size_bytes, other.samples.size_bytes),
        (one.samples.op_s, other.samples.op_s),
    ]
    for mine, its in zip(one.codecs, other.codecs, strict=True):
        assert mine.place == its.place
        pairs += [
            (mine.size_bytes, its.size_bytes),
            (mine.write_s, its.write_s),
            (mine.read_s, its.read_s),
        ]
    assert all(np.array_equal(mine, its) for mine, its in pairs)


@st.composite
def profiles(draw: st.DrawFn) -> OffloadProfile:
    names = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=5)
    keys = draw(st.lists(names | st.just("\udcff"), min_size=1, max_size=4, unique=True))
    ops = tuple(draw(st.lists(names, min_size=1, max_size=3, unique=True)))
    n, m = len(keys), len(ops)

    def table(*shape: int) -> np.ndarray:
        count = int(np.prod(shape))
        values = st.floats(0, 1e15) | st.integers(0, 10**15).map(float)
        return np.array(draw(st.lists(values, min_size=count, max_size=count))).reshape(shape)

    places = draw(
        st.lists(
            st.builds(CodecPlace, st.sampled_from(["zstd", "webp"]), st.integers(1, m), st.integers(0, n)),
            max_size=2,
            unique_by=lambda place: place.name,
        )
    )
    rate = st.sampled_from([between(1, 3), exactly(2.5), Estimate(1.25, None, None, 1)])
    stage = made_up_offload.stage(draw(rate), draw(rate), draw(rate))
    return OffloadProfile(
        made_up_offload.head(n, tuple(places), stage, ops),
        SampleProfile(keys, ops, table(n), table(n, m), table(n, m)),
        tuple(MeasuredCodec(place, table(n), table(n), table(n)) for place in places),
    )


@given(profiles())
def test_a_profile_is_read_as_it_was_written(made: OffloadProfile):
    assert_same(from_texts(*to_texts(made)), made)


def test_the_columns_and_the_verdict_are_there_to_be_read_by_others():
    head, samples = to_texts(profile())
    assert json.loads(head)["stage_1"]["io_bound"] == "io_bound"
    assert samples.splitlines()[:2] == [
        '"key","raw_bytes","decode_bytes","decode_s","crop_bytes","crop_s",'
        '"webp:2_bytes","webp:2_write_s","webp:2_read_s"',
        '"a",300000,2400000,0.016,150528,0.002,60000,0.003,0.001',
    ]


def changed(**values: Any) -> Callable[[str], str]:
    """A head with other values."""
    return lambda text: json.dumps({**json.loads(text), **values})


def in_stage(name: str, value: Any) -> Callable[[str], str]:
    def change(text: str) -> str:
        head = json.loads(text)
        head["stage_1"][name] = value
        return json.dumps(head)

    return change


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda text: text[:-20], "no JSON"),
        (lambda text: "[" * 100_000, "no JSON"),
        (lambda text: "7", "schema_version is None, not 1"),
        (changed(schema_version=2), "schema_version is 2, not 1"),
        (changed(ops=None), "ops: Input should be a valid tuple"),
        (changed(samples=4), "it has 3 samples, and its head says 4; a part of it is missing"),
        (changed(ops=[], codecs=[]), "it needs an operation, a core and a worker at least"),
        (changed(cores=0), "it needs an operation, a core and a worker at least"),
        (changed(ops=["decode", "resize"]), "line 1: the columns are not those of its head"),
        (
            changed(codecs=[{"codec": "webp", "ops": 3}]),
            "codec webp:3 follows none of its 2 operations",
        ),
        (changed(seconds=float("nan")), "NaN is not a number"),
        (
            in_stage("fetch_sps", {"value": 0, "low": 0, "high": 0, "n": 1}),
            "stage_1.fetch_sps is 0, and a rate",
        ),
        (
            in_stage("trainer_sps", {"value": -1, "low": None, "high": None, "n": 1}),
            "stage_1.trainer_sps is -1",
        ),
    ],
)
def test_bad_heads(change: Callable[[str], str], says: str):
    head, samples = to_texts(profile())
    with pytest.raises(OffloadProfileFileError) as raised:
        from_texts(change(head), samples)
    assert says in str(raised.value)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda text: text[:-1], "its last line is cut"),
        (lambda text: text[:-9], "line 4: 8 values, not 9"),
        (lambda text: text.rpartition('"c"')[0], "it has 2 samples, and its head says 3"),
        (
            lambda text: text.replace("0.016", "nan"),
            "line 2: decode_s is 'nan', not a number from 0 to 1e+15",
        ),
        (lambda text: text.replace("0.016", "-0.016"), "line 2: decode_s is '-0.016', not a number"),
        (lambda text: text.replace("0.016", "1e400"), "line 2: decode_s is '1e400', not a number"),
        (lambda text: text.replace("500000", "half"), "line 4: raw_bytes is 'half', not a number"),
        (lambda text: text.replace('"c"', '"a"'), "line 4: sample a is there twice"),
        (lambda text: text.partition("\n")[0] + "\n", "it has no samples"),
        (lambda text: "", "line 1: the columns are not those of its head"),
        (lambda text: text.replace('"b"', '"b'), "no CSV"),
    ],
)
def test_bad_samples(change: Callable[[str], str], says: str):
    head, samples = to_texts(profile())
    with pytest.raises(OffloadProfileFileError) as raised:
        from_texts(head, change(samples))
    assert says in str(raised.value)
