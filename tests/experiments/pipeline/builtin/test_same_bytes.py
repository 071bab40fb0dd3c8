"""The pipelines of PRESTO give the same bytes in every order, thread and process, and their values survive their codecs."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import threading
from collections.abc import Iterable
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from cloud.datasets import power as power_data
from cloud.datasets import speech as speech_data
from cloud.datasets.stdlib import train_tokenizer
from experiments.pipeline.codecs import CODECS
from experiments.pipeline.load import load_pipeline
from experiments.pipeline.pipeline import Pipeline, apply
from experiments.pipeline.randomness import Randomness

ROOT = Path(__file__).parents[4]
NUMBERS = range(4)
TONES = speech_data.Synthesiser(speech_data.TONES)


def a_photo(number: int) -> bytes:
    levels = np.random.default_rng(number).integers(0, 256, (40 + number, 50, 3), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(levels).save(file, "png")
    return file.getvalue()


def samples() -> dict[str, list[dict]]:
    speech = speech_data.speech_records(len(NUMBERS), 0, synthesiser=TONES, sound="flac")
    members = {
        "imagenet-resize": [{"png": a_photo(n), "cls": b"1"} for n in NUMBERS],
        "text": [{"html": f"<p>page {n} of many".encode()} for n in NUMBERS],
        "speech-mel": [record.members for record in speech],
        "power": [record.members for record in power_data.power_records(len(NUMBERS), 0)],
    }
    return {
        name: [{"__key__": f"{n:04d}", "__url__": "s3://b/t.tar", **found} for n, found in enumerate(all_of)]
        for name, all_of in members.items()
    }


def pipelines(tokenizer: str) -> dict[str, Pipeline]:
    crop = load_pipeline("imagenet-resize", {"size": 24, "resize": 30})
    rest = {name: load_pipeline(name) for name in ("speech-mel", "power")}
    return {"imagenet-resize": crop, "text": load_pipeline("text", {"tokenizer": tokenizer}), **rest}


def digests(tokenizer: str, order: Iterable[int] = NUMBERS) -> dict[str, dict[int, str]]:
    found = pipelines(tokenizer)
    order = list(order)
    return {
        name: {
            number: sha256(
                b"".join(
                    CODECS[CODEC[type(value)]].encode(value)
                    for _, value in sorted(found[name].run(given[number], 3, 1).items())
                )
            ).hexdigest()
            for number in sorted(order, key=order.index)
        }
        for name, given in SAMPLES.items()
    }


SAMPLES = samples()
CODEC = {np.ndarray: "npy", int: "json"}


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory) -> str:
    path = tmp_path_factory.mktemp("t") / "tokenizer.json"
    path.write_bytes(train_tokenizer(["page 1 of many"], 262))
    return str(path)


@pytest.fixture(scope="module")
def expected(tokenizer) -> dict[str, dict[int, str]]:
    return digests(tokenizer)


@settings(max_examples=5, deadline=None)
@given(st.permutations(NUMBERS))
def test_order_does_not_change_a_sample(tokenizer, expected, order):
    assert digests(tokenizer, order) == expected


def test_threads_do_not_change_a_sample(tokenizer, expected):
    found: list[dict] = []
    threads = [threading.Thread(target=lambda: found.append(digests(tokenizer))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [expected] * 4


def test_another_process_gives_the_same_bytes_and_fingerprints(tokenizer, expected):
    program = (
        "import json, sys; from tests.experiments.pipeline.builtin import test_same_bytes as t; "
        "p = t.pipelines(sys.argv[1]); "
        "print(json.dumps([t.digests(sys.argv[1], [3, 1, 0, 2]), {name: p[name].fingerprint() for name in p}]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, tokenizer],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONHASHSEED": "7", "PATH": ""},
    )
    found, fingerprints = json.loads(done.stdout)
    assert {name: {int(n): digest for n, digest in by.items()} for name, by in found.items()} == expected
    assert fingerprints == {name: pipeline.fingerprint() for name, pipeline in pipelines(tokenizer).items()}


@pytest.mark.parametrize("name", list(SAMPLES))
def test_a_value_stored_after_any_operation_goes_on_as_if_it_were_not(name, tokenizer):
    pipeline = pipelines(tokenizer)[name]
    sample = SAMPLES[name][0]
    randomness = Randomness(3, 1, sample["__key__"])
    item, stored = pipeline.start(sample), pipeline.start(sample)
    for op in pipeline.ops:
        item[op.output] = apply(op, item[op.field], randomness)
        codec = CODECS[op.codec]
        stored[op.output] = codec.decode(codec.encode(apply(op, stored[op.field], randomness)))
        assert codec.encode(stored[op.output]) == codec.encode(item[op.output]), op.name
