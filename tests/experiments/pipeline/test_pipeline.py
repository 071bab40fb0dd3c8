"""Pipelines: joints checked when declared, bad samples named, fingerprints, the same bytes everywhere."""

from __future__ import annotations

import json
import pickle
import random
import subprocess
import sys
import threading
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cloud.storage.errors import ShardError
from experiments.pipeline import op as op_module
from experiments.pipeline.codecs import CODECS
from experiments.pipeline.errors import BadSampleError, PipelineError
from experiments.pipeline.op import Op
from experiments.pipeline.pipeline import Pipeline

HERE = "tests.experiments.pipeline.ops_for_tests"
ROOT = Path(__file__).parents[3]


def an_op(name, takes="bytes", gives="text", field="text", **other):
    return Op(name, f"{HERE}:{name}", field, takes, gives, **other)


FIELDS = {"text": ("txt", "md")}
TEXT, UPPER = an_op("text"), an_op("upper", "text", "text")
LENGTH = an_op("length", "text", "number", parameters={"add": 1})
NOISE = an_op("noise", "bytes", "array", field="noise", random=True)
SHORT = Pipeline("short", FIELDS, (TEXT, UPPER, LENGTH))
NOISY = Pipeline(
    "noisy",
    {"noise": ("txt",)},
    (NOISE, an_op("add_noise", "array", "array", field="noise", random=True)),
)


def a_sample(key="0001", url="s3://b/t.tar", **members):
    return {"__key__": key, "__url__": url, **(members or {"txt": b"abc"})}


@pytest.mark.parametrize(
    ("fields", "ops", "sentence"),
    [
        (FIELDS, (UPPER,), "pipeline p: operation upper takes text, but field text is bytes there"),
        (FIELDS, (TEXT, LENGTH, UPPER), "operation upper takes text, but field text is number there"),
        (FIELDS, (NOISE,), "operation noise works on field 'noise', which does not exist; use text"),
        (FIELDS, (TEXT, TEXT), "two operations are named text; rename one"),
        ({"text": "txt"}, (), r"field text needs a tuple of extensions, .*not 'txt'"),
        ({"text": ()}, (), r"field text needs a tuple of extensions"),
    ],
)
def test_a_joint_that_does_not_fit_is_refused_when_declared(fields, ops, sentence):
    with pytest.raises(PipelineError, match=sentence):
        Pipeline("p", fields, ops)


KINDS = ("bytes", "text", "number", "image", "array")


@given(st.lists(st.tuples(st.sampled_from(KINDS), st.sampled_from(KINDS)), max_size=4))
def test_a_chain_is_accepted_exactly_if_each_takes_what_the_one_before_gives(joints):
    ops = tuple(Op(str(at), f"{HERE}:text", "text", takes, gives) for at, (takes, gives) in enumerate(joints))
    given_there = ["bytes", *(gives for _, gives in joints)]
    if all(takes == there for (takes, _), there in zip(joints, given_there, strict=False)):
        pipeline = Pipeline("p", FIELDS, ops)
        assert [pipeline.kinds(k)["text"] for k in range(len(ops) + 1)] == given_there
    else:
        with pytest.raises(PipelineError, match="takes"):
            Pipeline("p", FIELDS, ops)


def test_runs_the_operations_in_order():
    assert SHORT.run(a_sample(), 0, 0) == {"text": 4}
    assert SHORT.kinds() == {"text": "number"}
    assert SHORT.kinds(1) == {"text": "text"}


def test_the_first_extension_present_is_taken():
    pipeline = Pipeline("p", FIELDS, (TEXT,))
    assert pipeline.run(a_sample(md=b"second"), 0, 0) == {"text": "second"}
    assert pipeline.run(a_sample(md=b"second", txt=b"first"), 0, 0) == {"text": "first"}


def test_an_operation_can_write_another_field():
    counted = an_op("length", "text", "number", into="size")
    pipeline = Pipeline("p", FIELDS, (TEXT, counted, UPPER))
    assert pipeline.run(a_sample(), 0, 0) == {"text": "ABC", "size": 3}
    assert pipeline.kinds() == {"text": "text", "size": "number"}
    with pytest.raises(PipelineError, match="takes text, but field size is number"):
        Pipeline("p", FIELDS, (TEXT, counted, an_op("upper", "text", "text", field="size")))


def test_a_file_is_given_as_its_path(tmp_path):
    (tmp_path / "f").write_bytes(b"from the file, ")
    pipeline = Pipeline("p", FIELDS, (an_op("read", gives="bytes", files={"path": str(tmp_path / "f")}),))
    assert pipeline.run(a_sample(), 0, 0) == {"text": b"from the file, abc"}


def bad(pipeline, sample) -> BadSampleError:
    with pytest.raises(BadSampleError) as caught:
        pipeline.run(sample, 0, 0)
    assert isinstance(caught.value, ShardError)
    again = pickle.loads(pickle.dumps(caught.value))
    assert (str(again), again.shard, again.key, again.op) == (
        str(caught.value),
        caught.value.shard,
        caught.value.key,
        caught.value.op,
    )
    return caught.value


def test_a_missing_member_names_shard_and_members():
    error = bad(SHORT, a_sample(cls=b"1"))
    assert str(error).startswith("s3://b/t.tar: sample 0001: it has no member 0001.txt or 0001.md; ")
    assert (error.shard, error.key, error.op) == ("s3://b/t.tar", "0001", "")


def test_an_error_of_an_operation_names_shard_key_operation_and_line():
    error = bad(Pipeline("p", FIELDS, (an_op("fail"),)), a_sample())
    assert error.op == "fail"
    assert "s3://b/t.tar: sample 0001, operation fail: " in str(error)
    assert f"{ROOT / 'tests/experiments/pipeline/ops_for_tests.py'}:" in str(error)
    assert "KeyError: b'abc'; correct the sample, or leave it out with data.bad_samples: skip" in str(error)


def test_of_an_error_in_a_library_the_users_line_is_named():
    error = bad(Pipeline("p", FIELDS, (an_op("fail_in_library"),)), a_sample())
    assert "ops_for_tests.py:" in str(error)
    assert "numpy/" not in str(error)


def test_an_operation_can_refuse_in_its_own_words():
    error = bad(Pipeline("p", FIELDS, (an_op("refuse"),)), a_sample())
    assert error.reason == "it is 3 bytes long, not 4"


def test_wrong_utf8_is_a_bad_sample():
    assert "operation text: " in str(bad(SHORT, a_sample(txt=b"\xff")))


def test_a_result_of_another_kind_is_an_error_of_the_pipeline():
    with pytest.raises(
        PipelineError, match=r"operation nothing \(.*:nothing\) returned NoneType, but it declares text"
    ):
        Pipeline("p", FIELDS, (an_op("nothing"),)).run(a_sample(), 0, 0)


def test_fingerprints_change_with_what_determines_the_output_and_with_nothing_else(monkeypatch):
    base = SHORT.fingerprint()
    assert Pipeline("another name", FIELDS, SHORT.ops).fingerprint() == base
    assert (
        Pipeline(
            "p", FIELDS, (TEXT, UPPER, an_op("length", "text", "number", parameters={"add": 1}))
        ).fingerprint()
        == base
    )
    others = [
        Pipeline("p", {"text": ("md", "txt")}, SHORT.ops),
        Pipeline("p", {**FIELDS, "more": ("cls",)}, SHORT.ops),
        Pipeline("p", FIELDS, SHORT.ops[:2]),
        Pipeline("p", FIELDS, (TEXT, LENGTH)),
        Pipeline("p", FIELDS, (TEXT, UPPER, an_op("length", "text", "number", parameters={"add": 2}))),
        Pipeline("p", FIELDS, (TEXT, UPPER, an_op("length", "text", "number"))),
    ]
    fingerprints = {base, *(other.fingerprint() for other in others)}
    assert len(fingerprints) == len(others) + 1
    monkeypatch.setattr(op_module, "_source", lambda call: "another source")
    assert SHORT.fingerprint() not in fingerprints


def test_fingerprint_of_a_part_is_that_of_the_shorter_pipeline():
    for k in range(4):
        assert SHORT.fingerprint(k) == Pipeline("p", FIELDS, SHORT.ops[:k]).fingerprint()
    assert SHORT.fingerprint(3) == SHORT.fingerprint()


def test_fingerprint_changes_with_codec_and_library_version(monkeypatch):
    def image(codec="", libraries=()):
        return Pipeline(
            "p",
            FIELDS,
            (Op("i", f"{HERE}:text", "text", "bytes", "image", codec=codec, libraries=libraries),),
        ).fingerprint()

    assert image("pixels") == image() != image("png")
    before = image(libraries=("pillow",))
    monkeypatch.setattr(op_module, "version", lambda name: "0.0.1")
    assert image(libraries=("pillow",)) != before
    assert image() == image("pixels")


def digests(keys, seed=3, pass_number=1):
    return {
        key: sha256(CODECS["npy"].encode(NOISY.run(a_sample(key), seed, pass_number)["noise"])).hexdigest()
        for key in keys
    }


ALL_KEYS = [f"{n:04d}" for n in range(40)]


def test_random_operations_differ_by_sample_seed_pass_and_name():
    assert len(set(digests(ALL_KEYS).values())) == 40
    one = {digests(["k"], seed, pass_number)["k"] for seed in range(5) for pass_number in range(5)}
    assert len(one) == 25
    renamed = Op("other", f"{HERE}:noise", "noise", "bytes", "array", random=True)
    values = [
        Pipeline("p", {"noise": ("txt",)}, (op,)).run(a_sample(), 0, 0)["noise"] for op in (NOISE, renamed)
    ]
    assert not np.array_equal(*values)


@settings(max_examples=10)
@given(st.permutations(ALL_KEYS))
def test_order_does_not_change_a_sample(keys):
    np.random.seed(random.randrange(1000))  # global state is not used
    assert digests(keys) == digests(ALL_KEYS)


def test_threads_do_not_change_a_sample():
    found: list[dict] = []
    threads = [threading.Thread(target=lambda: found.append(digests(ALL_KEYS))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [digests(ALL_KEYS)] * 4


def test_another_process_gives_the_same_bytes_and_fingerprint():
    program = (
        "import json; from tests.experiments.pipeline import test_pipeline as t; "
        "print(json.dumps([t.digests(t.ALL_KEYS[::-1]), t.NOISY.fingerprint()]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONHASHSEED": "7", "PATH": ""},
    )
    assert json.loads(done.stdout) == [digests(ALL_KEYS), NOISY.fingerprint()]


def test_a_pipeline_can_be_sent_to_a_worker_process():
    again = pickle.loads(pickle.dumps(NOISY))
    assert again == NOISY
    assert np.array_equal(again.run(a_sample(), 1, 2)["noise"], NOISY.run(a_sample(), 1, 2)["noise"])
